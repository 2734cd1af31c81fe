import math

import numpy as np
import pytest
from devices import on_devices, refuse_waiting

import gpulayers as gl
from gpulayers.optim import clip_grad_norm, clip_grad_norm_per_parameter, clip_grad_value, grad_norm
from gpulayers.parameter import Parameter

FINITE = [([3, 4], [0.6, 0.8]), ([0.3, 0.4], [0.3, 0.4]), ([1e20, 1e20], [0.70710678, 0.70710678]), ([0, 0], [0, 0])]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("gradient", "expected"), FINITE)
def test_norm(dtype, gradient, expected, weights):
    model = weights(dtype, p=[0.0, 0.0])
    model.p.add_grad(np.array(gradient, dtype))
    assert clip_grad_norm(model, 1.0) == pytest.approx(math.hypot(*gradient), rel=1e-6)
    assert model.p.grad == pytest.approx(np.array(expected), rel=1e-6)


def test_norm_is_over_all_parameters(model, gradients, rng):
    model.table.trainable = False
    given = gradients(model, rng)
    norm = math.sqrt(sum((given[name] ** 2).sum() for name in ("weight", "bias")))
    assert clip_grad_norm(model, 0.5) == pytest.approx(norm, rel=1e-6)
    for name in ("weight", "bias"):
        assert getattr(model, name).grad == pytest.approx(given[name] * 0.5 / norm, rel=1e-5)
    assert clip_grad_norm(model, 1.0) == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize("clip", [clip_grad_norm, clip_grad_value])
@pytest.mark.parametrize("gradient", [[math.inf, 1], [math.nan, 1], [-math.inf, math.nan]])
def test_bad_norm_is_returned_and_changes_nothing(clip, gradient, weights):
    """H16 (pytorch#46849): torch makes [inf, 1] into [nan, 0]."""
    model = weights("float32", p=[0.0, 0.0])
    given = np.array(gradient, np.float32)
    model.p.add_grad(given)
    assert not math.isfinite(clip(model, 1.0))
    assert np.array_equal(model.p.grad, given, equal_nan=True)


def test_value(weights):
    model = weights("float32", p=[0.0] * 4)
    model.p.add_grad(np.array([-3, -0.5, 0.5, 3], np.float32))
    assert clip_grad_value(model, 1.0) == pytest.approx(math.sqrt(18.5))
    assert model.p.grad.tolist() == [-1, -0.5, 0.5, 1]


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan])
def test_refused(limit, model):
    with pytest.raises(ValueError, match="clip_grad_norm: max_norm must be above 0"):
        clip_grad_norm(model, limit)
    with pytest.raises(ValueError, match="clip_grad_value: clip_value must be above 0"):
        clip_grad_value(model, limit)


@pytest.mark.parametrize("order", [0.5, 1, 1.5, 2, 3, math.inf])
@pytest.mark.parametrize("scale", [1e-150, 1.0, 1e150])
def test_norm_of_any_order(order, scale, weights, rng):
    """Against NumPy's norm of all elements side by side; powers of the sizes alone would overflow or vanish."""
    values = rng.normal(size=12)
    model = weights("float64", p=np.zeros((2, 3)), q=np.zeros(6), empty=np.zeros((0, 2)))
    model.p.add_grad(values[:6].reshape(2, 3) * scale)
    model.q.add_grad(values[6:] * scale)
    expected = float(np.linalg.norm(values, order)) * scale
    assert grad_norm(model, order) == pytest.approx(expected, rel=1e-12)
    assert clip_grad_norm(model, expected / 2, order) == pytest.approx(expected, rel=1e-12)
    assert grad_norm(model, order) == pytest.approx(expected / 2, rel=1e-12)
    assert model.q.grad == pytest.approx(values[6:] * scale / 2, rel=1e-12)


@pytest.mark.parametrize("order", [1, 3, math.inf])
def test_bad_norm_of_any_order(order, weights):
    model = weights("float32", p=[0.0, 0.0], q=[0.0])
    model.p.add_grad(np.array([math.nan, 1.0], np.float32))
    model.q.add_grad(np.array([2.0], np.float32))
    assert math.isnan(clip_grad_norm(model, 1.0, order))
    assert model.q.grad == 2
    with pytest.raises(FloatingPointError, match="clip_grad_norm: the norm of the gradients is nan"):
        clip_grad_norm(model, 1.0, order, error_if_nonfinite=True)


def test_each_parameter_by_itself(model, gradients, rng):
    given = gradients(model, rng)
    model.table.trainable = False
    norms = clip_grad_norm_per_parameter(model, 0.5)
    assert norms.keys() == {"weight", "bias", "empty"}
    for name in ("weight", "bias"):
        norm = math.sqrt((given[name].astype(np.float64) ** 2).sum())
        assert norms[name] == pytest.approx(norm, rel=1e-6)
        assert getattr(model, name).grad == pytest.approx(given[name] * min(1, 0.5 / norm), rel=1e-5)
    with pytest.raises(ValueError, match="clip_grad_norm_per_parameter: max_norm must be above 0, got 0"):
        clip_grad_norm_per_parameter(model, 0)
    with pytest.raises(ValueError, match=r"norm_type must be above 0 \(infinity for the largest element\), got 0"):
        grad_norm(model, 0)


@on_devices
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("order", [1, 2, math.inf])
def test_on_a_device(device, dtype, order, model, gradients, rng):
    model.to(dtype=dtype)
    gradients(model, rng)
    before = {name: p.grad.astype(np.float64) for name, p in model.named_parameters()}
    there = type(model)("float32", **{n: np.zeros(p.shape) for n, p in model.named_parameters()}).to(device, dtype)
    for name, parameter in there.named_parameters():
        parameter.add_grad(gl.to_device(getattr(model, name).grad, device))
    expected = np.linalg.norm(np.concatenate([g.reshape(-1) for g in before.values()]), order)
    assert float(clip_grad_norm(there, 0.5, order)) == pytest.approx(expected, rel=1e-6)
    assert float(grad_norm(there, order)) == pytest.approx(0.5, rel=1e-2)


@on_devices
@pytest.mark.parametrize("order", [2, 3, math.inf])
def test_an_infinite_limit_changes_nothing(device, order, weights):
    """`clip_grad_norm(model, math.inf)` is how many training loops read the norm."""
    model = weights("float32", p=[0.0, 0.0]).to(device)
    model.p.add_grad(gl.to_device(np.array([3.0, -4.0], np.float32), device))
    expected = np.linalg.norm([3.0, 4.0], order)
    assert float(clip_grad_norm(model, math.inf, order)) == pytest.approx(expected)
    assert float(clip_grad_norm_per_parameter(model, math.inf, order)["p"]) == pytest.approx(expected)
    clip_grad_value(model, math.inf)
    assert gl.to_numpy(model.p.grad).tolist() == [3.0, -4.0]


@on_devices
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_parameter_without_axes(device, dtype):
    parameter = Parameter(gl.to_device(np.array(1.0, dtype), device))
    parameter.add_grad(gl.to_device(np.array(4.0, dtype), device))
    assert float(clip_grad_norm([parameter], 2.0)) == 4.0
    assert float(clip_grad_value([parameter], 1.0)) == 2.0
    assert float(parameter.grad) == 1.0


@on_devices
@pytest.mark.parametrize("clip", ["norm", "norm 1", "norm inf", "norm 3", "value", "each"])
@pytest.mark.parametrize("gradient", [[3.0, -4.0], [0.0, 0.0], [0.1, 0.2], [math.inf, 1.0], [math.nan, 1.0]])
def test_nothing_waits_for_the_device(device, clip, gradient, weights, monkeypatch):
    if device == "cupy":
        pytest.skip("the reads are refused on the emulated device only")
    functions = {
        "norm": lambda m: clip_grad_norm(m, 1.0),
        "norm 1": lambda m: clip_grad_norm(m, 1.0, 1),
        "norm inf": lambda m: clip_grad_norm(m.parameters(), 1.0, math.inf),
        "norm 3": lambda m: clip_grad_norm(m, 1.0, 3),
        "value": lambda m: clip_grad_value(m.parameters(), 0.5),
        "each": lambda m: clip_grad_norm_per_parameter(m, 1.0)["p"],
    }
    here, there = weights("float32", p=[0.0, 0.0]), weights("float32", p=[0.0, 0.0]).to(device)
    here.p.add_grad(np.array(gradient, np.float32))
    there.p.add_grad(gl.to_device(np.array(gradient, np.float32), device))
    expected = functions[clip](here)
    with monkeypatch.context() as patch:
        refuse_waiting(patch)
        norm = functions[clip](there)
    assert norm.shape == ()
    assert float(norm) == pytest.approx(expected, rel=1e-6, nan_ok=True)
    assert gl.to_numpy(there.p.grad) == pytest.approx(here.p.grad, rel=1e-6, nan_ok=True)


def test_a_factor_keeps_its_digits_in_16_bits(weights):
    """1 / 300 in float16 is wrong by 2e-4; the product of the factor in float32 is right to half a bit."""
    model = weights("float16", p=[300.0])
    model.p.add_grad(np.array([300.0], np.float16))
    clip_grad_norm(model, 100.0)
    assert model.p.grad.tolist() == [100.0]
    with pytest.raises(TypeError, match="clip_grad_norm takes a Layer or its Parameters, got float16"):
        clip_grad_norm(model.p.grad, 1.0)
