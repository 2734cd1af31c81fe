import ml_dtypes
import numpy as np
import pytest
from contract import check_signatures
from tolerances import assert_close

from gpulayers.ops.adam import BLOCK, adam
from gpulayers.ops.update_control import Control

STEP = Control(apply=1, scale=0.5, limit=np.inf, rate=1e-3, correction1=0.271, correction2=0.002997001)
SKIP = Control(0, 0, 0, 0, 0, 0)
HOST = [body for name, body in adam.bodies.items() if name != "cuda"]
BODIES = pytest.mark.parametrize("body", HOST, ids=["reference", "cpu"])


def options(**changes):
    return {
        "lr_scale": 1.0,
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
        "weight_decay": 0.0,
        "decoupled": False,
        "l1": 0.0,
        **changes,
    }


def arrays(rng, size):
    """p, m, v, g"""
    p, m, g = rng.normal(size=(3, size)).astype(np.float32)
    return p, m, rng.uniform(0, 2, size).astype(np.float32), g


def textbook(p, m, v, g, c, lr_scale, beta1, beta2, eps, weight_decay, decoupled, l1):
    p, m, v, g = (x.astype(np.float64) for x in (p, m, v, g))
    g = np.clip(g * c.scale, -c.limit, c.limit) + l1 * np.sign(p)
    rate = c.rate * lr_scale
    g = g if decoupled else g + weight_decay * p
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    p = p - rate * (m / c.correction1) / (np.sqrt(v / c.correction2) + eps) - rate * weight_decay * p * decoupled
    return p, m, v


@BODIES
@pytest.mark.parametrize("size", [0, 1, 1023, BLOCK, BLOCK + 17])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"weight_decay": 0.1, "decoupled": True},
        {"weight_decay": 0.1, "lr_scale": 3.0},
        {"l1": 0.1, "eps": 0.1},
        {"beta1": 0.0, "beta2": 0.0},
    ],
)
def test_formula(body, size, changes, rng):
    p, m, v, g = arrays(rng, size)
    expected = textbook(p, m, v, g, STEP, **options(**changes))
    before = g.copy()
    body(p, m, v, g, np.array(STEP, np.float32), **options(**changes))
    assert np.array_equal(g, before)
    for found, wanted in zip((p, m, v), expected, strict=True):
        assert found.dtype == np.float32
        assert_close(found, wanted, "float32")


@BODIES
def test_limit(body, rng):
    p, m, v, g = arrays(rng, 1023)
    control = STEP._replace(limit=0.25)
    expected = textbook(p, m, v, g, control, **options())
    body(p, m, v, g, np.array(control, np.float32), **options())
    for found, wanted in zip((p, m, v), expected, strict=True):
        assert_close(found, wanted, "float32")


@BODIES
@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_skip_changes_no_bit(body, bad, rng):
    p, m, v, g = arrays(rng, 1023)
    g[5], p[7], m[0] = bad, -0.0, np.float32(1e-42)
    before = [x.tobytes() for x in (p, m, v, g)]
    body(p, m, v, g, np.array(SKIP, np.float32), **options(weight_decay=0.1, l1=0.1))
    assert [x.tobytes() for x in (p, m, v, g)] == before


@BODIES
def test_rate_zero_moves_moments_only(body, rng):
    p, m, v, g = arrays(rng, 100)
    v[:50] = g[:50] = 0  # sqrt(v) = 0 must not meet 1 / rate
    before = [x.copy() for x in (p, m, v)]
    body(p, m, v, g, np.array(STEP._replace(rate=0), np.float32), **options(weight_decay=0.1, decoupled=True))
    assert np.array_equal(p, before[0])
    assert not np.array_equal(m, before[1])
    assert not np.array_equal(v, before[2])


@BODIES
def test_views(body, rng):
    """Every second element of larger arrays, g backwards; what lies between stays."""
    p, m, v, g = arrays(rng, 200)
    expected = textbook(p[::2], m[::2], v[::2], g[::-2], STEP, **options())
    between = [x[1::2].copy() for x in (p, m, v)]
    body(p[::2], m[::2], v[::2], g[::-2], np.array(STEP, np.float32), **options())
    for x, wanted, rest in zip((p, m, v), expected, between, strict=True):
        assert_close(x[::2], wanted, "float32")
        assert np.array_equal(x[1::2], rest)


@pytest.mark.parametrize("decoupled", [False, True])
def test_float16_parameters_have_float32_moments(decoupled, rng):
    for body in HOST:
        p, m, v, g = arrays(rng, 100)
        p, g = p.astype(np.float16), g.astype(np.float16)
        expected = textbook(p, m, v, g, STEP, **options(weight_decay=0.1, decoupled=decoupled))
        body(p, m, v, g, np.array(STEP, np.float32), **options(weight_decay=0.1, decoupled=decoupled))
        assert_close(p, expected[0], "float16")
        assert_close(m, expected[1], "float32")


@BODIES
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("control", [STEP, SKIP])
def test_copy_and_clear(body, dtype, control, rng):
    p, m, v, g = arrays(rng, BLOCK + 17)
    g, copy, before = g.astype(dtype), np.full(p.size, 7, dtype), p.copy()
    body(p, m, v, g, np.array(control, np.float32), **options(), copy=copy, clear=True)
    assert not g.any()
    assert np.array_equal(p, before) == (not control.apply)
    assert np.array_equal(copy, p.astype(dtype) if control.apply else np.full(p.size, 7, dtype))


def test_signatures():
    check_signatures(adam)
