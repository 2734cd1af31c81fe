import numpy as np
import pytest
from devices import STORAGE, check_kernel, in_storage, on_devices, only_block
from tolerances import assert_close

import gpulayers as gl
from gpulayers import cuda
from gpulayers.ops.glu import GATES, glu, glu_backward

every = pytest.mark.parametrize("gate", GATES)


@on_devices
@every
@in_storage
def test_against_the_reference(device, storage, gate, rng):
    x, dy = rng.normal(0, 2, (7, 18)).astype(np.float32), rng.normal(size=(7, 9)).astype(np.float32)
    check_kernel(glu, device, x, gate, storage=storage)
    check_kernel(glu_backward, device, dy, x, gate, storage=storage)


@on_devices
@in_storage
@pytest.mark.parametrize("shape", [(5, 3), (3, 64), (17, 260)])
def test_shapes(device, storage, shape, rng):
    """Rows of whole packs and others; more elements than one block has."""
    rows, cols = shape
    x, dy = rng.normal(0, 2, (rows, 2 * cols)).astype(np.float32), rng.normal(size=shape).astype(np.float32)
    check_kernel(glu, device, x, "silu", storage=storage)
    check_kernel(glu_backward, device, dy, x, "silu", storage=storage)


@on_devices
def test_hardly_anything(device, rng):
    for shape in ((1, 1), (2, 131), (0, 4), (4, 0)):
        x, dy = rng.normal(size=(shape[0], 2 * shape[1])).astype(np.float32), rng.normal(size=shape).astype(np.float32)
        check_kernel(glu, device, x, "silu")
        check_kernel(glu_backward, device, dy, x, "silu")


@on_devices
@every
def test_each_value_has_its_digits(device, gate):
    """One by one: a small result beside large ones counts. A derivative loses digits where it or 1 - s is near 0."""
    b = np.array([-9, -5, -1, -1e-3, 0, 1e-3, 1, 5], np.float32)
    x, dy = np.concatenate([np.full(8, 3, np.float32), b])[None], np.ones((1, 8), np.float32)
    exact = glu.reference(x.astype(np.float64), gate)
    assert glu(gl.to_device(x, device), gate).get() == pytest.approx(exact, rel=3e-6)
    exact = glu_backward.reference(dy.astype(np.float64), x.astype(np.float64), gate)
    dx = glu_backward(gl.to_device(dy, device), gl.to_device(x, device), gate).get()
    assert dx == pytest.approx(exact, rel=3e-6, abs=3e-7)


@on_devices
@every
def test_extremes(device, gate):
    """Gates far out are 0 or all, and a NaN stays in its place."""
    b = np.array([-3e38, -100, 100, 1e18, np.nan], np.float32)
    x = np.concatenate([np.full(5, 2, np.float32), b])[None]
    wanted = np.array([0, 0, 2, 2, np.nan]) * (1 if gate == "sigmoid" else np.nan_to_num(b).astype(np.float64))
    assert glu(gl.to_device(x, device), gate).get()[0] == pytest.approx(wanted, rel=1e-6, abs=1e-30, nan_ok=True)
    one = gl.to_device(np.ones((1, 5), np.float32), device)
    dx = glu_backward(one, gl.to_device(x, device), gate).get()[0]
    assert dx[:5] == pytest.approx(wanted / 2, rel=1e-6, abs=1e-30, nan_ok=True)
    flat = gate == "sigmoid"
    assert dx[5:] == pytest.approx(np.array([0, 0, 0 if flat else 2, 0 if flat else 2, np.nan]), abs=1e-30, nan_ok=True)


@on_devices
@in_storage
@pytest.mark.parametrize("start", [1, 4])
def test_any_alignment(device, storage, start, rng):
    """Arrays that begin beside a 16-byte boundary, with rows that are whole packs and rows that are not."""
    flat = gl.to_device(rng.normal(size=200).astype(STORAGE[storage]), device)
    for cols in (16, 5):
        x, dy = flat[start : start + 4 * cols].reshape(2, 2 * cols), flat[100 + start : 100 + start + 2 * cols]
        dy = dy.reshape(2, cols)
        assert np.array_equal(glu(x, "silu").get(), glu(x.copy(), "silu").get())
        assert np.array_equal(glu_backward(dy, x, "silu").get(), glu_backward(dy.copy(), x.copy(), "silu").get())


@on_devices
def test_views_and_refusals(device, rng):
    x, dy = rng.normal(size=(6, 14)).astype(np.float32), rng.normal(size=(14, 3)).astype(np.float32)
    check_kernel(glu, device, x.T, "silu")
    check_kernel(glu_backward, device, dy, x.T, "silu")
    check_kernel(glu, device, x[::2, 1:-1], "gelu")
    there, d = gl.to_device(x, device), gl.to_device(dy, device)
    with pytest.raises(ValueError, match=r"glu_backward: dy must be float32 \(6, 7\) as x is, got float32 \(14, 3\)"):
        glu_backward(d, there, "silu")


def test_h11_beyond_32_bits(monkeypatch, rng):
    """cupy #7539: the last row of x begins at element 2,239,968,000. Only the block that ends it runs."""
    rows, cols = 35_000, 32_000
    cp = gl.use("emulated")
    x = cp.zeros((rows, 2 * cols), np.float16)
    row = rng.normal(0, 3, 2 * cols).astype(np.float16)
    x[-1] = cp.asarray(row)
    only_block(monkeypatch, rows * cols // (8 * 256) - 1)
    y = glu(x, "sigmoid")
    exact = glu.reference(row[None].astype(np.float64), "sigmoid")[0]
    assert y[-1, -2000:].get() == pytest.approx(exact[-2000:], rel=1e-3, abs=1e-3)
    dx = glu_backward(y, x, "sigmoid")
    exact = glu_backward.reference(y[-1:].get().astype(np.float64), row[None].astype(np.float64), "sigmoid")[0]
    assert dx[-1, -2000:].get() == pytest.approx(exact[-2000:], rel=1e-3, abs=1e-3)


@on_devices
def test_a_gate_that_is_none(device):
    there = gl.to_device(np.ones((1, 2), np.float32), device)
    for x in (there, np.ones((1, 2), np.float32), np.ones((1, 2))):
        with pytest.raises(ValueError, match="glu: gate must be one of sigmoid, silu, gelu, gelu_tanh, got 'relu'"):
            glu(x, "relu")
        with pytest.raises(ValueError, match="glu: gate must be one of sigmoid, silu, gelu, gelu_tanh, got 'relu'"):
            glu_backward(x[:, :1].copy(), x, "relu")


@on_devices
def test_a_gated_feedforward_launches_its_unit_once_each_way(device, monkeypatch, rng):
    """And gives what it gives on the CPU."""
    here, there = (gl.FeedForward(6, 10, "swiglu", rng=0) for _ in range(2))
    there.to(device=device)
    x, dy = rng.normal(size=(2, 2, 3, 6)).astype(np.float32)
    launched = []
    monkeypatch.setattr(cuda, "on_launch", lambda name, args, launch: (launched.append(name), launch()))
    y, saved = there.forward(gl.to_device(x, device))
    dx = there.backward(gl.to_device(dy, device), saved)
    assert [name for name in launched if "glu" in name] == ["glu", "glu_backward"]
    exact, kept = here.forward(x)
    assert_close(y.get(), exact, factor=5)
    assert_close(dx.get(), here.backward(dy, kept), factor=5)
    assert_close(there.up.weight.grad.get(), here.up.weight.grad, factor=5)
