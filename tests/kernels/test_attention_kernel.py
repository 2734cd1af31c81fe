"""Attention on the device: two products and the masked softmax kernel, against the float64 reference."""

import numpy as np
import pytest
from devices import STORAGE, on_devices
from tolerances import assert_close

import gpulayers as gl
from gpulayers.backend import empty, to_numpy
from gpulayers.layers.attention import MultiHeadAttention
from gpulayers.masks import padding_mask
from gpulayers.ops.attention import attention, attention_backward
from gpulayers.step import Key, Train

# B, T, S, H, K, d, dv
SHAPES = [(1, 1, 1, 1, 1, 1, 1), (2, 5, 5, 2, 2, 4, 4), (2, 3, 7, 4, 2, 5, 3), (1, 33, 33, 1, 1, 8, 8)]


def strided(rng, B, length, heads, size):
    """A view (B, length, heads, size) between other columns, as the projections of a layer give."""
    return rng.normal(size=(B, length, 3, heads, size))[:, :, 1]


def run(q, k, v, hide, causal, p, key, dout, device, storage, softcap=0.0):
    """Outputs and gradients on `device`, and those of the float64 reference on the same, already rounded, values."""

    def both(call, arrays):
        there = [None if a is None else gl.to_device(a, device) for a in arrays]
        found = call(attention, attention_backward, *there)
        exact = call(
            attention.reference,
            attention_backward.reference,
            *(a.astype(np.float64) if a is not None and a.dtype != bool else a for a in arrays),
        )
        return [a.get().astype(np.float64) for a in found], exact

    def call(forward, backward, q, k, v, dout, hide):
        options = hide, causal, 0.5, p, key
        out, weights, inverse = forward(q, k, v, *options, softcap=softcap)
        d = [empty((*x.shape[:2], 3, *x.shape[2:]), x.dtype, like=x)[:, :, 2] for x in (q, k, v)]
        backward(dout, q, k, v, out, weights, inverse, *options, *d, softcap=softcap)
        return [out, weights if inverse is None else weights * inverse[..., None], *d]

    return both(call, [*(a.astype(STORAGE[storage]) for a in (q, k, v, dout)), hide])


@on_devices
@pytest.mark.parametrize("storage", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_against_the_reference(p, shape, storage, device, rng):
    B, T, S, H, K, d, dv = shape
    q, k, v = strided(rng, B, T, H, d), strided(rng, B, S, K, d), strided(rng, B, S, K, dv)
    dout = strided(rng, B, T, H, dv)
    padding = padding_mask(lengths=rng.integers(1, S + 1, B), size=S)
    for hide, causal in ((None, True), (padding, False), (rng.random((B, H, T, S)) < 0.3, True)):
        key = Key(1, 2, 3, 1) if p else None
        found, exact = run(q, k, v, hide, causal, p, key, dout, device, storage)
        for a, b in zip(found, exact, strict=True):
            # Scores, weights and their gradients are stored in between, each with its own rounding.
            assert_close(a, b, storage, factor=3, scale=1)


@on_devices
@pytest.mark.parametrize("storage", ["float32", "float16"])
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_soft_cap(p, storage, device, rng):
    B, T, S, H, K, d, dv = SHAPES[2]
    q, k, v = strided(rng, B, T, H, d), strided(rng, B, S, K, d), strided(rng, B, S, K, dv)
    dout, hide = strided(rng, B, T, H, dv), rng.random((B, H, T, S)) < 0.3
    key = Key(1, 2, 3, 1) if p else None
    for softcap in (0.5, 30.0):
        found, exact = run(q, k, v, hide, True, p, key, dout, device, storage, softcap)
        for a, b in zip(found, exact, strict=True):
            assert_close(a, b, storage, factor=4, scale=1)  # one more array stored in between


@on_devices
def test_h05_no_visible_key_and_whatever_is_hidden(device):
    """pytorch #103963; and NaN in padding comes through no product."""
    q, k, v = (gl.to_device(np.zeros((1, 2, 1, 1), np.float32), device) for _ in range(3))
    k[:, 1] = v[:, 1] = np.nan
    v[:, 0] = 1
    hide = gl.to_device(np.array([[False, True], [True, True]])[None, None], device)
    out, weights, _ = attention(q, k, v, hide, False, 1.0, 0.0, None)
    assert out.get().ravel().tolist() == [1, 0]
    assert weights.get().ravel().tolist() == [1, 0, 0, 0]


@on_devices
def test_h06_causal_with_fewer_queries_than_keys(device):
    """Dao-AILab/flash-attention #282."""
    q, k = (gl.to_device(np.zeros((1, n, 1, 1), np.float32), device) for n in (3, 5))
    v = gl.to_device(np.arange(1, 6, dtype=np.float32).reshape(1, 5, 1, 1), device)
    out, _, _ = attention(q, k, v, None, True, 1.0, 0.0, None)
    assert out.get().ravel() == pytest.approx([2.0, 2.5, 3.0])


@on_devices
def test_h13_no_query(device):
    """intel/torch-xpu-ops PR 4378."""
    q, kv = (gl.to_device(np.ones((1, n, 1, 2), np.float32), device) for n in (0, 3))
    out, weights, inverse = attention(q, kv, kv, None, False, 1.0, 0.0, None)
    assert out.shape == (1, 0, 1, 2)
    d = [gl.to_device(np.full(x.shape, np.nan, np.float32), device) for x in (q, kv, kv)]
    attention_backward(out, q, kv, kv, out, weights, inverse, None, False, 1.0, 0.0, None, *d)
    assert not any(x.get().any() for x in d)


@on_devices
def test_the_layer(device, rng):
    """Forward, backward, weights and decoding as on the CPU, with grouped heads, dropout and a mask."""
    x, dy = rng.normal(size=(2, 2, 6, 8)).astype(np.float32)
    hide = padding_mask(lengths=np.array([6, 3]), size=6)
    results = []
    for where in ("numpy", device):
        layer = MultiHeadAttention(8, 4, kv_heads=2, dropout=0.2, rotary=True, rng=0).to(where)
        there = [gl.to_device(a, where) for a in (x, dy, hide)]
        y, saved = layer.forward(there[0], hide=there[2], causal=True, train=Train(3, 4, 5))
        dx = layer.backward(there[1], saved)
        start, cache = layer.step(there[0][:, :5])
        last, _ = layer.step(there[0][:, 5:], cache)
        weights = layer.weights(there[0], hide=there[2], causal=True)
        arrays = [y, dx, start, last, weights, *(p.grad for p in layer.parameters())]
        results.append([to_numpy(a) for a in arrays])
    for a, b in zip(*results, strict=True):
        assert_close(b, a, factor=5, scale=1)  # several ops, each with its own rounding


@on_devices
def test_one_launch_between_the_products(device):
    if device != "emulated":
        pytest.skip("the emulator records launches")
    from gpulayers.emulator.settings import record_launches

    q = gl.to_device(np.ones((1, 4, 2, 8), np.float32), device)
    with record_launches() as launches:
        attention(q, q, q, None, True, 0.3, 0.5, Key(0, 0, 0, 0))
    assert [one.kernel for one in launches if "softmax" in one.kernel] == ["masked_softmax_dropout"]
