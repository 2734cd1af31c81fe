import numpy as np
import pytest
from contract import check_signatures
from devices import in_storage, on_devices, only_block
from updates import SIZES, SKIP, STEP, check_update

import gpulayers as gl
from gpulayers.emulator.settings import using
from gpulayers.ops.sgd import sgd
from gpulayers.ops.update import THREADS


def rule(**changes):
    return {"lr_scale": 1.0, "momentum": 0.9, "nesterov": False, "weight_decay": 0.0, "l1": 0.0, **changes}


def arrays(rng, size):
    """[p, m], g"""
    p, m, g = rng.normal(size=(3, size)).astype(np.float32)
    return [p, m], g


def test_signatures():
    check_signatures(sgd)


@on_devices
@in_storage
@pytest.mark.parametrize("size", SIZES)
def test_against_the_reference(device, storage, size, rng):
    check_update(sgd, device, *arrays(rng, size), STEP._replace(rate=0.1), rule(), storage=storage)


@on_devices
@in_storage
@pytest.mark.parametrize(
    "changes", [{"nesterov": True}, {"weight_decay": 0.1, "lr_scale": 3.0}, {"l1": 0.1}, {"momentum": 0.0}]
)
@pytest.mark.parametrize("limit", [np.inf, 0.25])
def test_rules(device, storage, changes, limit, rng):
    state, g = arrays(rng, 257)
    if changes.get("momentum") == 0.0:
        state[1] = None
    check_update(sgd, device, state, g, STEP._replace(rate=0.1, limit=limit), rule(**changes), storage=storage)


@on_devices
@in_storage
@pytest.mark.parametrize("start", [1, 4, 8])
def test_any_alignment(device, storage, start, rng):
    check_update(sgd, device, *arrays(rng, 77), STEP, rule(), storage=storage, start=start, clear=True)


@on_devices
@pytest.mark.parametrize("which", range(4))
def test_one_array_alone_is_not_aligned(device, which, rng):
    start = tuple(int(i == which) for i in range(4))
    check_update(sgd, device, *arrays(rng, 77), STEP, rule(), storage="float16", start=start)


@on_devices
@pytest.mark.parametrize("storage", ["float16", "bfloat16"])
@pytest.mark.parametrize("clear", [False, True])
def test_a_float32_gradient_beside_a_16_bit_copy(device, storage, clear, rng):
    state, g = arrays(rng, 1023)
    check_update(sgd, device, state, g, STEP, rule(), storage=storage, gradient="float32", clear=clear)


@on_devices
@in_storage
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("clear", [False, True])
def test_a_skipped_step_changes_no_bit(device, storage, bad, clear, rng):
    state, g = arrays(rng, 33)
    g[5], state[0][7], state[1][0] = bad, -0.0, np.float32(1e-42)
    after = check_update(sgd, device, state, g, SKIP, rule(weight_decay=0.1, l1=0.1), storage=storage, clear=clear)
    assert [a.tobytes() for a in after] == [a.tobytes() for a in state]


@on_devices
def test_nothing(device, rng):
    check_update(sgd, device, *arrays(rng, 0), STEP, rule(), clear=True)


def test_h11_the_last_block_beyond_2_to_the_31(monkeypatch):
    """H11 (cupy#7539): a 32-bit element offset wraps to a negative one."""
    size = 2**31 + 5
    there = [gl.use("emulated").zeros(size, np.float32) for _ in range(3)]
    there[2][size - 5 :] = gl.to_device(np.ones(5, np.float32), "emulated")
    control = gl.to_device(np.array(STEP, np.float32), "emulated")
    only_block(monkeypatch, -(-size // (THREADS * 4)) - 1)
    with using(check_races=False):  # whose notes take as much memory again, all of it touched
        sgd.cuda(*there, control, **rule())
    assert there[0][size - 5 :].get() == pytest.approx(np.full(5, -5e-4), rel=1e-6)


@on_devices
@pytest.mark.parametrize("t", [1.0, 2.0])
def test_dampening(device, t, rng):
    """The first moment is the whole gradient."""
    state, g = arrays(rng, 33)
    step = STEP._replace(rate=0.1, t=t)
    after = check_update(sgd, device, state, g, step, rule(dampening=0.25))
    assert after[1] == pytest.approx(0.9 * state[1] + (1 if t == 1 else 0.75) * 0.5 * g, rel=1e-5, abs=1e-6)
