import numpy as np
import pytest
from contract import check_signatures
from tolerances import assert_close

from gpulayers.ops.op import BLOCK
from gpulayers.ops.sgd import sgd
from gpulayers.ops.update_control import Control

STEP = Control(apply=1, scale=0.5, limit=np.inf, rate=1e-2, correction1=1, correction2=1)
SKIP = Control(0, 0, 0, 0, 0, 0)
BODIES = pytest.mark.parametrize("body", [sgd.reference, sgd.cpu], ids=["reference", "cpu"])
KINDS = pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])


def textbook(p, m, g, c, lr_scale, momentum, nesterov, weight_decay, l1):
    p, m, g = (x.astype(np.float64) for x in (p, m, g))
    g = np.clip(g * c.scale, -c.limit, c.limit) + weight_decay * p + l1 * np.sign(p)
    m = momentum * m + g
    direction = g + momentum * m if nesterov else m
    return p - c.rate * lr_scale * (direction if momentum else g), m


@BODIES
@KINDS
@pytest.mark.parametrize("size", [0, 1, 1023, BLOCK + 17])
@pytest.mark.parametrize(("weight_decay", "l1", "limit"), [(0.0, 0.0, np.inf), (0.1, 0.2, np.inf), (0.0, 0.0, 0.25)])
def test_formula(body, momentum, nesterov, size, weight_decay, l1, limit, rng):
    p, m, g = rng.normal(size=(3, size)).astype(np.float32)
    control = STEP._replace(limit=limit)
    expected = textbook(p, m, g, control, 2.0, momentum, nesterov, weight_decay, l1)
    before = g.copy()
    body(p, m if momentum else None, g, np.array(control, np.float32), 2.0, momentum, nesterov, weight_decay, l1)
    assert np.array_equal(g, before)
    assert_close(p, expected[0], "float32")
    if momentum:
        assert_close(m, expected[1], "float32")


@BODIES
@KINDS
def test_skip_changes_no_bit(body, momentum, nesterov, rng):
    p, m, g = rng.normal(size=(3, 1023)).astype(np.float32)
    g[5], g[6], p[7] = np.nan, np.inf, -0.0
    before = [x.tobytes() for x in (p, m, g)]
    body(p, m if momentum else None, g, np.array(SKIP, np.float32), 1.0, momentum, nesterov, 0.1, 0.1)
    assert [x.tobytes() for x in (p, m, g)] == before


@BODIES
@KINDS
def test_views(body, momentum, nesterov, rng):
    p, m, g = rng.normal(size=(3, 200)).astype(np.float32)
    expected = textbook(p[::2], m[::2], g[::-2], STEP, 1.0, momentum, nesterov, 0.0, 0.0)
    rest = p[1::2].copy()
    body(p[::2], m[::2] if momentum else None, g[::-2], np.array(STEP, np.float32), 1.0, momentum, nesterov, 0.0, 0.0)
    assert_close(p[::2], expected[0], "float32")
    assert np.array_equal(p[1::2], rest)


@BODIES
@KINDS
@pytest.mark.parametrize("control", [STEP, SKIP])
def test_copy_and_clear(body, momentum, nesterov, control, rng):
    p, m, g = rng.normal(size=(3, BLOCK + 17)).astype(np.float32)
    g, copy, before = g.astype(np.float16), np.full(p.size, 7, np.float16), p.copy()
    m = m if momentum else None
    body(p, m, g, np.array(control, np.float32), 1.0, momentum, nesterov, 0.0, 0.0, copy, True)
    assert not g.any()
    assert np.array_equal(p, before) == (not control.apply)
    assert np.array_equal(copy, p.astype(np.float16) if control.apply else np.full(p.size, 7, np.float16))


def test_signatures():
    check_signatures(sgd)


@BODIES
@pytest.mark.parametrize("t", [1.0, 2.0])
def test_dampening(body, t, rng):
    p, m, g = rng.normal(size=(3, 33)).astype(np.float32)
    part = 1 if t == 1 else 0.75
    p0, m0 = p.astype(np.float64), m.astype(np.float64)
    body(p, m, g, np.array(STEP._replace(t=t), np.float32), 1.0, 0.9, False, 0.0, 0.0, dampening=0.25)
    assert_close(m, 0.9 * m0 + part * 0.5 * g, "float32")
    assert_close(p, p0 - 1e-2 * (0.9 * m0 + part * 0.5 * g), "float32")
