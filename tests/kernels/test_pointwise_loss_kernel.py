"""The kernel of the losses that are sums over elements: every kind, any length, weights, bad values, NaN."""

import numpy as np
import pytest
from devices import Exact, check_kernel, in_storage, on_devices

import gpulayers as gl
from gpulayers.cuda import check_errors, error_flag
from gpulayers.ops.pointwise_loss import FORMULAS, LOSS_BLOCKS, LOSS_THREADS, pointwise_loss

PARAMETER = {"huber": 0.75, "smooth": 0.75, "hinge": 0.5}


def draw(rng, kind, size):
    x, target = rng.normal(0, 2, (2, size))
    if kind in ("bce", "bce_logits"):
        target = rng.choice([0, 1, 0.25, 0.5], size)
    if kind == "bce":
        x = rng.uniform(0.02, 0.98, size)
    if kind in ("kl", "kl_log"):
        x, target = np.log(rng.uniform(0.02, 1, (2, size)))
        target = rng.choice([0, 0.125, 0.75], size) if kind == "kl" else target
    if kind == "hinge":
        target = rng.choice([-1, 1], size)
    return x.astype(np.float32), target.astype(np.float32)


def number(value):
    return Exact(np.array(value, np.float32))


@on_devices
@in_storage
@pytest.mark.parametrize("kind", FORMULAS)
def test_against_the_reference(device, storage, kind, rng):
    p = PARAMETER.get(kind, 0.0)
    for size in (0, 1, 7, 1023):
        x, target = draw(rng, kind, size)
        check_kernel(
            pointwise_loss, device, kind, x, target, None, None, p, 1 / max(size, 1), None, False, storage=storage
        )
    weight, few = (Exact(rng.uniform(0.5, 2, n).astype(np.float32)) for n in (1023, 31))
    args = kind, x[::-1], target[::-1]
    check_kernel(pointwise_loss, device, *args, weight, few, p, 1.0, number(3), True, storage=storage)
    check_kernel(pointwise_loss, device, *args, few, weight, p, 0.5, number(3), False, storage=storage)


@on_devices
@pytest.mark.parametrize("kind", ["huber", "bce_logits"])
def test_more_elements_than_one_pass_of_the_grid(device, kind, monkeypatch, rng):
    monkeypatch.setattr("gpulayers.ops.pointwise_loss.LOSS_BLOCKS", 2)
    x, target = draw(rng, kind, 5001)
    assert LOSS_BLOCKS * LOSS_THREADS > 5001 > 2 * 4 * LOSS_THREADS
    few = Exact(rng.uniform(0.5, 2, 3).astype(np.float32))
    for each in (False, True):
        check_kernel(pointwise_loss, device, kind, x, target, few, few, 0.75, 0.5, None, each, spare=False)


@on_devices
@pytest.mark.parametrize("kind", FORMULAS)
def test_extremes_and_nan(device, kind):
    """Also where a formula changes, and infinities."""
    x, target = np.array(
        {
            "kl": [(-np.inf, 0), (-1, 0), (np.nan, 0), (-1, np.nan), (-np.inf, 0.5), (-1, -1)],
            "kl_log": [(-np.inf, -np.inf), (-1, -np.inf), (np.nan, 0), (-1, np.nan), (-np.inf, -1)],
            "bce": [(0, 1), (1, 0), (0, 0), (1, 1), (np.nan, 0.5), (0.5, np.nan)],
            "bce_logits": [
                (1e4, 0), (1e4, 1), (-1e4, 0), (-1e4, 1), (np.inf, 1), (np.inf, 0), (-np.inf, 0), (-np.inf, 1),
                (np.nan, 1), (1, np.nan), (0, 0.5), (0, 1),
            ],
            "hinge": [
                (0.5, -1), (0.6, -1), (np.inf, 1), (np.inf, -1), (-np.inf, -1),
                (np.nan, 1), (np.nan, -1), (1, np.nan),
            ],
        }.get(kind, [
            (0.75, 0), (-0.75, 0), (0, 0), (np.inf, 0), (-np.inf, 0), (np.inf, np.inf), (np.nan, 0), (0, np.nan),
        ]),
        np.float32,
    ).T  # fmt: skip
    p = PARAMETER.get(kind, 0.0)
    losses, dx = check_kernel(pointwise_loss, device, kind, x, target, None, None, p, 1.0, None, True)
    wanted = pointwise_loss.reference(kind, x.astype(np.float64), target.astype(np.float64), None, None, p, 1, None, 1)
    for found, exact in zip((losses.get(), dx.get()), wanted, strict=True):
        assert found == pytest.approx(exact, rel=1e-5, abs=1e-30, nan_ok=True)  # one by one, beside infinities


@on_devices
@pytest.mark.parametrize(
    ("kind", "x", "target", "code", "message"),
    [
        ("bce", [0.5, 0.5, 1.5], [0, 1, 1], 5, "binary_cross_entropy: number 2 of the probabilities or of the targets"),
        ("bce", [0.5, 0.5, 0.5], [0, 1, -1], 5, "number 2"),
        ("bce_logits", [3, 3, 3], [0, 1, 2], 5, "number 2"),
        ("hinge", [3, 3, 3], [1, -1, 0], 6, "number 2 of the targets of an embedding loss is neither 1 nor -1"),
    ],
)
def test_what_means_nothing_is_noted(device, kind, x, target, code, message):
    x, target = (gl.to_device(np.array(a, np.float32), device) for a in (x, target))
    losses, dx = pointwise_loss(kind, x, target, None, None, 1.0, 1.0, None, True)
    assert np.isnan(losses.get()).tolist() == [False, False, True]
    assert dx.get()[2] == 0
    assert error_flag(x).get()[:2].tolist() == [code, 2]
    with pytest.raises(ValueError, match=message):
        check_errors(x)
    for body in ("reference", "cpu"):
        found = pointwise_loss.bodies[body](kind, x.get(), target.get(), None, None, 1.0, 1.0, None, True)
        assert np.isnan(found[0]).tolist() == [False, False, True]
        assert found[1][2] == 0


@on_devices
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_whole_call(device, reduction, rng):
    """The same as on the CPU, on the device; float64 there too."""
    for loss, kind, named in (
        (gl.l1_loss, "absolute", ("weight",)),
        (gl.huber_loss, "huber", ("weight",)),
        (gl.binary_cross_entropy_with_logits, "bce_logits", ("weight", "pos_weight")),
        (gl.kl_div, "kl", ()),
        (gl.hinge_embedding_loss, "hinge", ()),
    ):
        x, target = (a.reshape(4, 33) for a in draw(rng, kind, 132))
        weights = {name: rng.uniform(0.5, 2, 33).astype(np.float32) for name in named}
        for dtype in (np.float32, np.float64):
            args = x.astype(dtype), target.astype(dtype)
            wanted = loss(*args, reduction=reduction, **weights)
            there = {name: gl.to_device(w, device) for name, w in weights.items()}
            found = loss(*(gl.to_device(a, device) for a in args), reduction=reduction, **there)
            for a, b in zip(found, wanted, strict=True):
                assert gl.device_of(a) == device
                assert a.dtype == b.dtype
                assert a.get() == pytest.approx(b, rel=2e-6, abs=1e-6)


@on_devices
def test_nothing_to_do(device):
    nothing = gl.to_device(np.zeros((2, 0), np.float32), device)
    for reduction in ("mean", "sum", "none"):
        loss, dx = gl.l1_loss(nothing, nothing, reduction, nothing)
        assert loss.shape == ((2, 0) if reduction == "none" else ())
        assert not loss.get().any()
        assert dx.shape == (2, 0)
