"""Optimizers on a GPU: the same steps as on the CPU, in few launches, and no step waits for the device."""

import threading

import numpy as np
import pytest
from devices import on_devices, refuse_waiting
from tolerances import assert_close

import gpulayers as gl
from gpulayers.emulator.settings import record_launches
from gpulayers.ops.cross_entropy import cross_entropy
from gpulayers.optim import SGD, Adam, AdamW, Group, LossScale, make_schedule

KINDS = pytest.mark.parametrize(
    "make",
    [
        lambda model, **k: SGD(model, 0.1, **k),
        lambda model, **k: SGD(model, 0.1, 0.9, True, **k),
        lambda model, **k: Adam(model, weight_decay=0.1, **k),
        lambda model, **k: AdamW(model, **k),
    ],
    ids=["sgd", "nesterov", "adam", "adamw"],
)
OPTIONS = [
    {},
    {"clip_norm": 1.0},
    {"clip_norm": 1.0, "clip_value": 0.5, "l1": 0.01, "groups": [Group("bias", lr_scale=2, weight_decay=0.1)]},
]


def add_gradients(model, k: int) -> None:
    rng = np.random.default_rng(k)
    for parameter in model.parameters():
        g = rng.normal(size=parameter.shape).astype(np.float32)
        parameter.add_grad(gl.to_device(g, gl.device_of(parameter.data)).astype(parameter.dtype))


@on_devices
@KINDS
@pytest.mark.parametrize("options", OPTIONS)
def test_the_same_steps_as_on_the_cpu(device, make, options, model):
    there = type(model)("float32", **model.state_dict()).to(device)
    options = {**options, "schedule": make_schedule("cosine", 6, 2)}
    here, on_device = make(model, **options), make(there, **options)
    for k in range(5):
        add_gradients(model, k)
        add_gradients(there, k)
        if k == 2:
            there.bias.grad[3] = model.bias.grad[3] = np.nan
        here.step(count=3)
        on_device.step(count=gl.to_device(np.array(3.0, np.float32), device))
        assert on_device.grad_norm == pytest.approx(here.grad_norm, rel=1e-6, nan_ok=True)
    assert (on_device.applied, on_device.skipped) == (here.applied, here.skipped) == (4, 1)
    for name, value in (there.state_dict() | on_device.state_dict()).items():
        wanted = (model.state_dict() | here.state_dict())[name]
        assert_close(value, wanted, "float32", factor=4)  # of five steps


@KINDS
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_step_does_not_wait(make, dtype, model, monkeypatch):
    model.to("emulated", dtype)
    scaling = {"loss_scale": LossScale()} if dtype == "float16" else {}
    optimizer = make(model, schedule=make_schedule("cosine", 6, 2), **OPTIONS[2], **scaling)
    count = gl.to_device(np.array(3.0, np.float32), "emulated")
    with monkeypatch.context() as patch:
        refuse_waiting(patch)
        for k in range(2):
            add_gradients(model, k)
            optimizer.step(count)
            add_gradients(model, k)
            optimizer.step()
        with pytest.raises(AssertionError, match="the host waits"):
            _ = optimizer.applied
    assert optimizer.applied == 4


@pytest.mark.parametrize("threads", [1, 4])
def test_launches(threads, model, monkeypatch):
    """Norm in two stages, control, one update of the whole model, all from the caller's thread, whose current stream
    they belong to."""
    model.to("emulated")
    optimizer = AdamW(model, clip_norm=1.0, threads=threads)
    add_gradients(model, 0)
    monkeypatch.setattr(threading.Thread, "start", None)
    with record_launches() as launches:
        optimizer.step()
    names = [launch.kernel for launch in launches]
    assert names == ["sum_of_squares", "sum_of_squares_total", "update_control", "adam_model"]


@on_devices
@KINDS
def test_a_bad_target_skips_the_step_and_is_raised_at_the_next_look(device, make, model, bits):
    """H02: nothing is updated from a pass that met a target outside the vocabulary."""
    model.to(device)
    optimizer = make(model)
    add_gradients(model, 0)
    optimizer.step()
    before = {name: array.tobytes() for name, array in (model.state_dict() | optimizer.state_dict()).items()}
    logits = gl.to_device(np.zeros((2, 3), np.float32), device)
    cross_entropy(logits, gl.to_device(np.array([0, 3]), device))
    add_gradients(model, 1)
    optimizer.step()
    with pytest.raises(ValueError, match=r"target 3 in row 1 is outside 0\.\.2"):
        _ = optimizer.grad_norm
    after = {name: array.tobytes() for name, array in (model.state_dict() | optimizer.state_dict()).items()}
    del before["optimizer.skipped"], after["optimizer.skipped"]
    assert after == before
    assert (optimizer.applied, optimizer.skipped, optimizer.last_step_applied) == (1, 1, False)
    add_gradients(model, 2)
    optimizer.step()
    assert optimizer.applied == 2
