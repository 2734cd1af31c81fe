"""Recurrent layers on a GPU: both passes against the CPU, lengths from either side, and no waiting for the device."""

import numpy as np
import pytest
from devices import STORAGE, in_storage, on_devices, refuse_waiting
from recurrent import Flat
from tolerances import assert_close

import gpulayers as gl
from gpulayers.cuda import check_errors

KINDS = {"RNN": gl.RNN, "GRU": gl.GRU, "LSTM": gl.LSTM}
in_kinds = pytest.mark.parametrize("kind", KINDS)


def both_passes(layer, device, dtype, inputs, dy, **options):
    layer = Flat(layer).to(dtype=dtype).to(device)
    y, saved = layer.forward(*(gl.to_device(x.astype(dtype), device) for x in inputs), **options)
    dx = layer.backward(tuple(gl.to_device(d.astype(dtype), device) for d in dy), saved)
    return [gl.to_numpy(a) for a in (*y, *dx, *(p.grad for p in layer.parameters()))]


@on_devices
@in_storage
@in_kinds
def test_against_float64_on_the_cpu(device, kind, storage, rng):
    dtype, lengths = STORAGE[storage], [3, 0, 2]
    inputs = [rng.normal(size=(3, 3, 5)), *(rng.normal(size=(4, 3, 6)) for _ in range(1 + (kind == "LSTM")))]
    dy = [rng.normal(size=(3, 3, 12)), *(np.ones((4, 3, 6)) for _ in inputs[1:])]
    inputs, dy = ([a.astype(dtype).astype(np.float32) for a in arrays] for arrays in (inputs, dy))

    def make():
        return KINDS[kind](5, 6, 2, bidirectional=True, dropout=0.25, rng=0).to(dtype=dtype)

    train = gl.Train(1, 2)
    found = both_passes(make(), device, dtype, inputs, dy, lengths=lengths, train=train.snapshot())
    exact = both_passes(make(), "numpy", np.float64, inputs, dy, lengths=lengths, train=train.snapshot())
    for a, b in zip(found, exact, strict=True):
        assert a.dtype == dtype
        assert_close(a.astype(np.float64), b, storage, factor=5)


@on_devices
@in_kinds
def test_nothing_waits_for_the_device(device, kind, rng, monkeypatch):
    layer = KINDS[kind](2, 3, rng=0).to(device)
    x = gl.to_device(rng.normal(size=(2, 3, 2)).astype(np.float32), device)
    lengths = gl.to_device(np.array([3, 1]), device)
    layer(x, lengths=lengths)  # what is made once may wait
    if device == "emulated":
        refuse_waiting(monkeypatch)
    (y, _), saved = layer.forward(x, lengths=lengths)
    layer.backward((y, None), saved)
    layer.step(x[:, 0])


@on_devices
@pytest.mark.parametrize("wrong", [4, -1])
def test_a_bad_length_on_the_device_is_reported_at_the_next_reading(device, wrong, rng):
    layer = gl.GRU(2, 3, rng=0).to(device)
    x = gl.to_device(rng.normal(size=(2, 3, 2)).astype(np.float32), device)
    layer(x, lengths=gl.to_device(np.array([3, 0]), device))
    check_errors(x)
    layer(x, lengths=gl.to_device(np.array([3, wrong]), device))
    with pytest.raises(ValueError, match=rf"the length of sequence 1 is {wrong}, outside 0\.\.3"):
        check_errors(x)
    check_errors(x)


@on_devices
@in_kinds
def test_arrays_of_two_devices_are_refused(device, kind, rng):
    """H25: explosion/thinc #74 and cupy #589: no silent copy. Only lengths may come from either side."""
    x = rng.normal(size=(2, 3, 2)).astype(np.float32)
    here, there = KINDS[kind](2, 3, rng=0), KINDS[kind](2, 3, rng=0).to(device)
    h0 = np.zeros((1, 2, 3), np.float32)
    h0 = (h0, h0) if kind == "LSTM" else h0
    for call in (
        lambda: there(x),
        lambda: here(gl.to_device(x, device)),
        lambda: there(gl.to_device(x, device), h0),
        lambda: here(x, lengths=gl.to_device(np.array([1, 2]), device)),
        lambda: there.cells[0](gl.to_device(x[:, 0], device), (h0[0][0], h0[1][0]) if kind == "LSTM" else h0[0]),
        lambda: there.backward((x, None), there.forward(gl.to_device(x[:, :, :1].repeat(2, 2), device))[1]),
    ):
        with pytest.raises((TypeError, ValueError)):
            call()
