"""The losses that are sums over elements: bodies, gradients, weights, what is degenerate, what is refused."""

import ml_dtypes
import numpy as np
import pytest
from contract import check_op
from hypothesis import given, settings
from hypothesis import strategies as st

import gpulayers as gl
from gpulayers.gradcheck import gradcheck
from gpulayers.ops.pointwise_loss import FORMULAS, pointwise_loss

float32 = np.float32
PARAMETER = {"huber": 0.7, "smooth": 0.7, "hinge": 0.5}


def draw(rng, kind, *shape):
    """x and target as the kind takes them, away from its kinks by chance."""
    x = rng.normal(0, 2, shape)
    target = rng.normal(0, 2, shape)
    if kind in ("bce", "bce_logits"):
        target = rng.choice([0, 1, 0.25, 0.9], shape)
    if kind == "bce":
        x = rng.uniform(0.02, 0.98, shape)
    if kind in ("kl", "kl_log"):
        x = np.log(rng.uniform(0.02, 1, shape))
        target = rng.choice([0, 0.1, 0.7], shape) if kind == "kl" else np.log(rng.uniform(0.02, 1, shape))
    if kind == "hinge":
        target = rng.choice([-1, 1], shape)
    return x, np.asarray(target, float)


LOSSES = {  # name -> (function of (x, target, **options), the kind of its arguments)
    "mse": (gl.mse_loss, "squared"),
    "l1": (gl.l1_loss, "absolute"),
    "huber": (lambda x, t, **o: gl.huber_loss(x, t, delta=0.7, **o), "huber"),
    "smooth_l1": (lambda x, t, **o: gl.smooth_l1_loss(x, t, beta=0.7, **o), "smooth"),
    "kl_div": (gl.kl_div, "kl"),
    "kl_div of logarithms": (lambda x, t, **o: gl.kl_div(x, t, log_target=True, **o), "kl_log"),
    "bce": (gl.binary_cross_entropy, "bce"),
    "bce with logits": (gl.binary_cross_entropy_with_logits, "bce_logits"),
    "hinge": (lambda x, t, **o: gl.hinge_embedding_loss(x, t, margin=0.5, **o), "hinge"),
}
WEIGHTED = ["mse", "l1", "huber", "bce", "bce with logits"]
every_loss = pytest.mark.parametrize("name", LOSSES)


@pytest.mark.parametrize("kind", FORMULAS)
@pytest.mark.parametrize("size", [0, 1, 1023, 70_000])
def test_bodies_agree(kind, size, rng):
    x, target = (a.astype(float32) for a in draw(rng, kind, size))
    p = PARAMETER.get(kind, 0.0)
    check_op(pointwise_loss, kind, x, target, None, None, p, 1 / max(size, 1), None, False)
    weight = rng.uniform(0, 2, size).astype(float32)
    check_op(pointwise_loss, kind, x[::-1], target[::-1], weight, None, p, 1.0, np.array(3, float32), True)
    if size % 3 == 0:  # a row vector, which begins anew in the middle of a block
        few = rng.uniform(0, 2, min(size, 33)).astype(float32)
        check_op(pointwise_loss, kind, x, target, few, few[:3], p, 1.0, None, False)


@every_loss
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(), (7,), (2, 3, 5)])
def test_gradient(name, reduction, shape, rng):
    loss, kind = LOSSES[name]
    x, target = draw(rng, kind, *shape)
    gradcheck(lambda x: loss(x, target, reduction=reduction), x)


@pytest.mark.parametrize("name", WEIGHTED)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(4, 5), (5,), (4, 1), (), (1, 5)])
def test_gradient_with_weights(name, reduction, shape, rng):
    loss, kind = LOSSES[name]
    x, target = draw(rng, kind, 4, 5)
    options = {"weight": rng.uniform(0.5, 2, shape)}
    if name == "bce with logits":
        options["pos_weight"] = rng.uniform(0.5, 3, shape)
    gradcheck(lambda x: loss(x, target, reduction=reduction, **options), x)
    full = {key: np.broadcast_to(w, (4, 5)).copy() for key, w in options.items()}
    for a, b in zip(loss(x, target, **options), loss(x, target, **full), strict=True):
        assert np.allclose(a, b, rtol=1e-12)


layouts = st.sampled_from(["plain", "transposed", "every other", "reversed"])


@settings(deadline=None, max_examples=120)
@given(
    name=st.sampled_from(list(LOSSES)),
    rows=st.integers(0, 7),
    cols=st.sampled_from([1, 2, 7, 33]),
    layout=layouts,
    reduction=st.sampled_from(["mean", "sum", "none"]),
    weighted=st.sampled_from([None, "all", "row", "column", "one"]),
    dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
    seed=st.integers(0, 1 << 32),
)
def test_any_call(name, rows, cols, layout, reduction, weighted, dtype, seed):
    """What a narrow dtype gives is what float64 gives of the same numbers, whatever the layout; float64 nowhere."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    loss, kind = LOSSES[name]
    x, target = (laid_out(a.astype(dtype), layout) for a in draw(rng, kind, rows, cols))
    options = {"reduction": reduction}
    if weighted and name in WEIGHTED:
        shape = {"all": (rows, cols), "row": (cols,), "column": (rows, 1), "one": ()}[weighted]
        options["weight"] = np.asarray(rng.uniform(0.5, 2, shape)).astype(float32)
    before = x.copy(), target.copy()
    found, dx = loss(x, target, **options)
    exact, exact_dx = loss(x.astype(np.float64), target.astype(np.float64), **{k: wide(v) for k, v in options.items()})
    assert found.dtype == float32
    assert dx.dtype == dtype
    assert dx.shape == x.shape
    assert found.shape == ((rows, cols) if reduction == "none" else ())
    assert np.array_equal(x, before[0])
    assert np.array_equal(target, before[1])
    assert np.allclose(found, exact, rtol=3e-6, atol=1e-6)
    tolerance = {2: 8e-3 if dtype.name == "bfloat16" else 1e-3, 4: 3e-6}[dtype.itemsize]
    assert np.allclose(dx.astype(np.float64), exact_dx, rtol=tolerance, atol=1e-6)


def wide(value):
    return value.astype(np.float64) if isinstance(value, np.ndarray) else value


def laid_out(a, layout):
    return {
        "plain": a,
        "transposed": np.ascontiguousarray(a.T).T,
        "every other": np.repeat(a, 2, axis=1)[:, ::2],
        "reversed": a[::-1, ::-1].copy()[::-1, ::-1],
    }[layout]


# ------------------------------------------------------------------------------------------------- values


def test_worked_numbers():
    x, target = np.array([0.0, 2.0, -3.0]), np.array([0.5, 2.0, 1.0])
    for loss, wanted, slope in (
        (gl.l1_loss, [0.5, 0, 4], [-1, 0, -1]),
        (gl.huber_loss, [0.125, 0, 3.5], [-0.5, 0, -1]),
        (lambda *a, **o: gl.huber_loss(*a, delta=2.0, **o), [0.125, 0, 6], [-0.5, 0, -2]),
        (lambda *a, **o: gl.smooth_l1_loss(*a, beta=2.0, **o), [0.0625, 0, 3], [-0.25, 0, -1]),
        (lambda *a, **o: gl.smooth_l1_loss(*a, beta=0, **o), [0.5, 0, 4], [-1, 0, -1]),
    ):
        losses, dx = loss(x, target, reduction="none")
        assert (losses.tolist(), dx.tolist()) == (wanted, slope)
        total, dx = loss(x, target)
        assert total == pytest.approx(sum(wanted) / 3)
        assert dx == pytest.approx(np.array(slope) / 3)


def test_means_of_weights():
    """l1 and mse divide by the weights' sum, huber and binary cross-entropy by the number, all as PyTorch does."""
    x, target, weight = np.array([1.0, 3.0]), np.array([0.0, 0.0]), np.array([3.0, 1.0])
    assert gl.l1_loss(x, target, weight=weight)[0] == 6 / 4
    assert gl.mse_loss(x, target, weight=weight)[0] == 12 / 4
    assert gl.huber_loss(x, target, weight=weight)[0] == (3 * 0.5 + 2.5) / 2
    found, _ = gl.binary_cross_entropy_with_logits(np.zeros(2), np.array([0.0, 1.0]), weight)
    assert found == pytest.approx(2 * np.log(2))


@pytest.mark.parametrize("loss", [gl.l1_loss, gl.mse_loss])
def test_weights_that_sum_to_nothing(loss):
    found, dx = loss(np.array([1, np.inf], float32), np.zeros(2, float32), weight=np.zeros(2, float32))
    assert (float(found), found.dtype) == (0, float32)
    assert dx[0] == 0


def test_batchmean_is_the_divergence():
    p, q = np.array([[0.5, 0.5, 0], [0.1, 0.2, 0.7]]), np.array([[0.25, 0.25, 0.5], [0.1, 0.2, 0.7]])
    found, dx = gl.kl_div(np.log(q), p, "batchmean")
    assert found == pytest.approx(np.log(2) / 2)
    assert dx == pytest.approx(-p / 2)
    with np.errstate(divide="ignore"):
        found, dx = gl.kl_div(np.log(q), np.log(p), "batchmean", log_target=True)
        assert found == pytest.approx(np.log(2) / 2)
        assert dx == pytest.approx(-p / 2)
        found, dx = gl.kl_div(np.log(np.array([[0.5, 0.5, 0]])), p[:1], "sum")  # 0 log (0 / 0) = 0
    assert (found, dx.tolist()) == (0, [[-0.5, -0.5, 0]])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("x", "target", "loss", "dx"),
    [
        (1e4, 1, 0, 0),
        (1e4, 0, 1e4, 1),
        (-1e4, 1, 1e4, -1),
        (-1e4, 0, 0, 0),
        (np.inf, 1, 0, 0),
        (-np.inf, 0, 0, 0),
        (-np.inf, 1, np.inf, -1),
        (0, 0.5, np.log(2), 0),
        (-40, 0, np.exp(-40), np.exp(-40)),  # small, and not rounded away
        (40, 1, np.exp(-40), -np.exp(-40)),
    ],
)
def test_logits_of_any_size(dtype, x, target, loss, dx):
    found, slope = gl.binary_cross_entropy_with_logits(np.array([x], dtype), np.array([target], dtype))
    assert found == pytest.approx(loss, rel=1e-6, abs=0)
    assert slope[0] == pytest.approx(dx, rel=1e-6, abs=0)


def test_bce_holds_its_logarithms():
    x, target = np.array([0, 1, 0, 1], float32), np.array([1, 0, 0, 1], float32)
    losses, dx = gl.binary_cross_entropy(x, target, reduction="none")
    assert losses.tolist() == [100, 100, 0, 0]
    assert dx.tolist() == [float32(-1e12), float32(1e12), 0, 0]


@every_loss
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("where", ["x", "target"])
def test_nan_is_not_hidden(name, dtype, where, rng):
    loss, kind = LOSSES[name]
    x, target = (a.astype(dtype) for a in draw(rng, kind, 6))
    target[1] = {"hinge": -1}.get(kind, target[1])
    (x if where == "x" else target)[1] = np.nan
    losses, dx = loss(x, target, reduction="none")
    assert np.isnan(losses).tolist() == np.isnan(dx).tolist() == [False, True, *[False] * 4]
    assert np.isnan(loss(x, target)[0])


@pytest.mark.parametrize("name", ["mse", "l1", "huber", "smooth_l1"])
@pytest.mark.parametrize("x", [np.inf, -np.inf])
def test_an_infinite_distance(name, x):
    found, dx = LOSSES[name][0](np.array([x, 0], float32), np.zeros(2, float32), reduction="none")
    assert found.tolist() == [np.inf, 0]
    assert not np.isnan(dx).any()
    assert np.sign(dx[0]) == np.sign(x)


@every_loss
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3)])
def test_nothing(name, reduction, shape):
    loss, dx = LOSSES[name][0](np.zeros(shape, float32), np.zeros(shape, float32), reduction=reduction)
    assert not np.any(loss)
    assert np.shape(loss) == (shape if reduction == "none" else ())
    assert loss.dtype == dx.dtype == float32
    assert dx.shape == shape


@every_loss
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_scale_is_of_the_gradient_alone(name, reduction, rng):
    loss, kind = LOSSES[name]
    x, target = (a.astype(float32) for a in draw(rng, kind, 3, 4))
    options = {"reduction": reduction}
    if name in WEIGHTED:
        options["weight"] = rng.uniform(0.5, 2, 4).astype(float32)
    plain, dx = loss(x, target, **options)
    scaled_loss, scaled = loss(x, target, scale=np.array(1024, float32), **options)
    assert np.array_equal(plain, scaled_loss)
    assert np.array_equal(1024 * dx, scaled)  # a power of two changes no digit


def test_hinge_takes_integers():
    x = np.array([0.3, 2, 0.1], float32)
    losses, dx = gl.hinge_embedding_loss(x, np.array([1, -1, -1], np.int8), reduction="none")
    assert losses == pytest.approx([0.3, 0, 0.9])
    assert dx.tolist() == [1, 0, -1]


# ------------------------------------------------------------------------------------------------- refusals

X = np.full((2, 3), 0.5, float32)


@every_loss
@pytest.mark.parametrize(
    ("x", "target", "options", "error", "message"),
    [
        (X, X[:1], {}, ValueError, r"takes a target of the shape of x, \(2, 3\), got \(1, 3\)"),
        (X, X, {"reduction": "avg"}, ValueError, "reduction must be one of mean, sum, none.*, got 'avg'"),
        (X, X, {"scale": 8.0}, ValueError, "scale must be a scalar array, got float"),
        (X, X, {"scale": np.ones(1, float32)}, ValueError, r"scale must be a scalar array, got shape \(1,\)"),
        ([0.5], X, {}, TypeError, "expected an array of numpy or cupy, got list"),
        (X.astype(int), X.astype(int), {}, TypeError, "floating.*got int64"),
    ],
)
def test_refusals(name, x, target, options, error, message):
    with pytest.raises(error, match=message):
        LOSSES[name][0](x, target, **options)


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "hinge"])
def test_two_dtypes(name):
    with pytest.raises(TypeError, match="one floating dtype, got float32 and float64"):
        LOSSES[name][0](X, X.astype(np.float64))


@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_that_do_not_fit(name):
    loss = LOSSES[name][0]
    for shape in [(2,), (3, 1), (4, 2, 3), (0,)]:
        with pytest.raises(ValueError, match=r"takes a weight that broadcasts to the shape of x, \(2, 3\), got"):
            loss(X, X, weight=np.ones(shape, float32))
    with pytest.raises(TypeError, match="takes a floating weight, got int64"):
        loss(X, X, weight=np.ones(3, int))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gl.huber_loss(X, X, delta=0), "huber_loss: delta must be above 0, got 0"),
        (lambda: gl.huber_loss(X, X, delta=np.nan), "delta must be above 0, got nan"),
        (lambda: gl.smooth_l1_loss(X, X, beta=-1), "smooth_l1_loss: beta must be 0 or more, got -1"),
        (lambda: gl.hinge_embedding_loss(X, 2 * X, margin=np.nan), "margin must be a number, got nan"),
        (lambda: gl.hinge_embedding_loss(X, X), r"takes targets that are 1 or -1, got 0\.5 at \(0, 0\)"),
        (lambda: gl.kl_div(np.array(0.0), np.array(1.0), "batchmean"), "batchmean divides by the length"),
        (lambda: gl.l1_loss(X, X, "batchmean"), "one of mean, sum, none, got 'batchmean'"),
        (lambda: gl.binary_cross_entropy(3 * X, X), r"takes probabilities in 0\.\.1 .*, got 1\.5 at \(0, 0\)"),
        (lambda: gl.binary_cross_entropy(X, -X), r"takes targets in 0\.\.1, got -0\.5 at \(0, 0\)"),
        (lambda: gl.binary_cross_entropy_with_logits(X[0], 4 * X[0]), r"takes targets in 0\.\.1, got 2\.0 at 0"),
    ],
)
def test_wrong_values(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_unsigned_targets_of_hinge():
    with pytest.raises(TypeError, match="1 and -1, floating or signed integers, got uint8"):
        gl.hinge_embedding_loss(X, X.astype(np.uint8))
