import numpy as np
import pytest
from devices import on_devices, only_block
from rules import RULES, SKIP, STEP, rule, state
from updates import check_update

import gpulayers as gl
from gpulayers.emulator.settings import using
from gpulayers.ops.adam_rules import lion
from gpulayers.ops.update import THREADS

NAMES = pytest.mark.parametrize("name", RULES)


@on_devices
@NAMES
@pytest.mark.parametrize("storage", ["float32", "float16"])
def test_against_the_reference(device, name, storage, rng):
    if name.startswith(("lamb", "muon")):
        storage = "float32"  # these write no copy: the step comes later
    check_update(RULES[name][0], device, *state(name, rng, 261), STEP, rule(name), storage=storage)


@on_devices
@NAMES
@pytest.mark.parametrize(
    ("step", "changes"),
    [
        (STEP._replace(extra=0.0), {"weight_decay": 0.1, "lr_scale": 3.0}),
        (STEP._replace(limit=0.25), {"weight_decay": 0.1, "decoupled": True}),
        (STEP._replace(scale=-0.5, t=1), {"l1": 0.1}),
    ],
)
def test_rules(device, name, step, changes, rng):
    check_update(RULES[name][0], device, *state(name, rng, 37), step, rule(name, **changes), clear=True)


@on_devices
@pytest.mark.parametrize("storage", ["float32", "float16"])
@pytest.mark.parametrize("start", [1, 4, 8])
def test_any_alignment(device, storage, start, rng):
    args = (*state("rmsprop centered", rng, 77), STEP, rule("rmsprop centered"))
    check_update(RULES["rmsprop centered"][0], device, *args, storage=storage, start=start, clear=True)


@on_devices
@pytest.mark.parametrize("which", range(6))
def test_one_array_alone_is_not_aligned(device, which, rng):
    start = tuple(int(i == which) for i in range(6))
    args = (*state("amsgrad", rng, 77), STEP, rule("amsgrad"))
    check_update(RULES["amsgrad"][0], device, *args, storage="float16", start=start)


@on_devices
def test_a_float32_gradient_beside_a_16_bit_copy(device, rng):
    args = (*state("nadam", rng, 255), STEP, rule("nadam"))
    check_update(RULES["nadam"][0], device, *args, storage="float16", gradient="float32", clear=True)


@on_devices
@NAMES
def test_a_skipped_step_changes_no_bit(device, name, rng):
    before, g = state(name, rng, 33)
    g[5], before[0][7] = np.nan, -0.0
    after = check_update(
        RULES[name][0], device, before, g, SKIP, rule(name, weight_decay=0.1, l1=0.1), storage="float16", clear=True
    )
    assert [None if a is None else a.tobytes() for a in after] == [None if a is None else a.tobytes() for a in before]


@on_devices
def test_nothing(device, rng):
    for name in RULES:
        check_update(RULES[name][0], device, *state(name, rng, 0), STEP, rule(name))


@on_devices
def test_refused(device, rng):
    (p, m, _, _), g = state("lion", rng, 8)
    there = [gl.to_device(a, device) for a in (p, m.astype(np.float64), g, np.array(STEP, np.float32))]
    with pytest.raises(TypeError, match="update_rules: array 1 must be float32, got float64"):
        lion.cuda(there[0], there[1], None, None, *there[2:], **rule("lion"))


def test_h11_the_last_block_beyond_2_to_the_31(monkeypatch):
    """H11 (cupy#7539): a 32-bit element offset wraps to a negative one."""
    size = 2**31 + 5
    p, m, g = (gl.use("emulated").zeros(size, np.float32) for _ in range(3))
    g[size - 5 :] = gl.to_device(np.ones(5, np.float32), "emulated")
    control = gl.to_device(np.array(STEP, np.float32), "emulated")
    only_block(monkeypatch, -(-size // (THREADS * 4)) - 1)
    with using(check_races=False):  # whose notes take as much memory again, all of it touched
        lion.cuda(p, m, None, None, g, control, **rule("lion"))
    assert p[size - 5 :].get() == pytest.approx(np.full(5, -1e-2), rel=1e-6)
