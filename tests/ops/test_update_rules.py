import numpy as np
import pytest
from contract import check_signatures
from rules import RULES, SKIP, STEP, rule, state
from tolerances import assert_close

from gpulayers.ops.op import BLOCK

NAMES = pytest.mark.parametrize("name", RULES)


def copies(arrays, dtype):
    return [None if a is None else a.astype(dtype) for a in arrays]


@NAMES
def test_signatures(name):
    check_signatures(RULES[name][0])


@NAMES
@pytest.mark.parametrize("size", [0, 1, 5, 1023])
@pytest.mark.parametrize(
    ("step", "changes"),
    [
        (STEP, {}),
        (STEP._replace(extra=0.0), {"weight_decay": 0.1}),
        (STEP._replace(limit=0.25), {"weight_decay": 0.1, "decoupled": True, "lr_scale": 3.0}),
        (STEP._replace(scale=-0.5), {"l1": 0.1}),
    ],
)
def test_cpu_against_the_reference(name, size, step, changes, rng):
    arrays, g = state(name, rng, size)
    exact, found = copies(arrays, np.float64), copies(arrays, np.float32)
    op = RULES[name][0]
    op.reference(*exact, g.astype(np.float64), np.array(step, np.float64), **rule(name, **changes))
    op.cpu(*found, g, np.array(step, np.float32), **rule(name, **changes))
    for new, wanted in zip(found, exact, strict=True):
        assert (new is None) == (wanted is None)
        if new is not None:
            assert new.dtype == np.float32
            assert_close(new, wanted)


@NAMES
def test_blocks_join(name, rng):
    size = BLOCK + 7
    arrays, g = state(name, rng, size)
    whole, halves = copies(arrays, np.float32), copies(arrays, np.float32)
    op, control = RULES[name][0], np.array(STEP, np.float32)
    op.cpu(*whole, g, control, **rule(name))
    for part in (slice(0, 100), slice(100, size)):
        op.cpu(*(None if a is None else a[part] for a in halves), g[part], control, **rule(name))
    assert [None if a is None else a.tobytes() for a in whole] == [None if a is None else a.tobytes() for a in halves]


@NAMES
@pytest.mark.parametrize("body", ["reference", "cpu"])
@pytest.mark.parametrize("clear", [False, True])
def test_a_skipped_step_changes_no_bit(name, body, clear, rng):
    arrays, g = state(name, rng, 33)
    g[5], arrays[0][7] = np.nan, -0.0
    found, copy = copies(arrays, np.float32), np.full(33, 3, np.float16)
    changes = {"weight_decay": 0.1, "l1": 0.1}
    RULES[name][0].bodies[body](*found, g, np.array(SKIP, np.float32), **rule(name, **changes), copy=copy, clear=clear)
    assert [None if a is None else a.tobytes() for a in found] == [None if a is None else a.tobytes() for a in arrays]
    assert (copy == 3).all()
    assert np.isnan(g[5]) != clear


@NAMES
@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_copy_and_clear(name, body, rng):
    arrays, g = state(name, rng, 33)
    copy = np.zeros(33, np.float16)
    RULES[name][0].bodies[body](*arrays, g, np.array(STEP, np.float32), **rule(name), copy=copy, clear=True)
    moves = not name.startswith(("lamb", "muon"))
    assert np.array_equal(copy, arrays[0].astype(np.float16) if moves else np.zeros(33))
    assert not g.any()


def test_zeros_stay_zeros(rng):
    """The padding between parameters is 0 in p and g, whatever lies in the state there."""
    for name in RULES:
        arrays, g = state(name, rng, 8)
        for array in (*arrays[:2], g):
            if array is not None:
                array.fill(0)
        RULES[name][0].cpu(*arrays, g, np.array(STEP, np.float32), **rule(name, weight_decay=0.1, l1=0.1))
        assert not arrays[0].any(), name


@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_centered_rmsprop_takes_0_for_a_variance_below_0(body):
    """Rounding alone leads there; its root would be NaN."""
    p, v, w, g = (np.full(3, x, np.float32) for x in (0.0, 1.0, 1.01, 2.0))
    numbers = {"numbers": (0.9, 0.5, 0.0), "weight_decay": 0.0, "decoupled": False, "l1": 0.0, "lr_scale": 1.0}
    RULES["rmsprop"][0].bodies[body](p, None, v, w, g, np.array(STEP, np.float32), **numbers)
    assert p == pytest.approx(np.full(3, -1e-2 * 1 / 0.5))
