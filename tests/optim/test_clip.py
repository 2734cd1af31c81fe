import math

import numpy as np
import pytest

from gpulayers.optim import clip_grad_norm, clip_grad_value

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
    with pytest.raises(ValueError, match="clip_grad_value: value must be above 0"):
        clip_grad_value(model, limit)
