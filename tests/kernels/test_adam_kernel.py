import numpy as np
import pytest
from contract import check_signatures
from devices import STORAGE, in_storage, on_devices, only_block
from tolerances import assert_close
from updates import SIZES, SKIP, STEP, check_update

import gpulayers as gl
from gpulayers.emulator.settings import using
from gpulayers.ops.adam import adam, adam_scalars
from gpulayers.ops.update import THREADS, Table, launch_model, settings_row
from gpulayers.ops.update_control import Control


def rule(**changes):
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
    """[p, m, v], g"""
    p, m, g = rng.normal(size=(3, size)).astype(np.float32)
    return [p, m, rng.uniform(0, 2, size).astype(np.float32)], g


def test_signatures():
    check_signatures(adam)


@on_devices
@in_storage
@pytest.mark.parametrize("size", SIZES)
def test_against_the_reference(device, storage, size, rng):
    check_update(adam, device, *arrays(rng, size), STEP, rule(), storage=storage)


@on_devices
@in_storage
@pytest.mark.parametrize(
    "changes",
    [
        {"weight_decay": 0.1, "decoupled": True},
        {"weight_decay": 0.1, "lr_scale": 3.0},
        {"l1": 0.1, "eps": 0.1},
        {"beta1": 0.0, "beta2": 0.0},
    ],
)
@pytest.mark.parametrize("limit", [np.inf, 0.25])
def test_rules(device, storage, changes, limit, rng):
    check_update(adam, device, *arrays(rng, 257), STEP._replace(limit=limit), rule(**changes), storage=storage)


@on_devices
@in_storage
@pytest.mark.parametrize("start", [1, 4, 8])
def test_any_alignment(device, storage, start, rng):
    check_update(adam, device, *arrays(rng, 77), STEP, rule(), storage=storage, start=start, clear=True)


@on_devices
@pytest.mark.parametrize("which", range(5))
def test_one_array_alone_is_not_aligned(device, which, rng):
    start = tuple(int(i == which) for i in range(5))
    check_update(adam, device, *arrays(rng, 77), STEP, rule(), storage="float16", start=start)


@on_devices
@pytest.mark.parametrize("storage", ["float16", "bfloat16"])
@pytest.mark.parametrize("clear", [False, True])
def test_a_float32_gradient_beside_a_16_bit_copy(device, storage, clear, rng):
    state, g = arrays(rng, 1023)
    check_update(adam, device, state, g, STEP, rule(), storage=storage, gradient="float32", clear=clear)


@on_devices
@in_storage
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("clear", [False, True])
def test_a_skipped_step_changes_no_bit(device, storage, bad, clear, rng):
    state, g = arrays(rng, 33)
    g[5], state[0][7], state[1][0] = bad, -0.0, np.float32(1e-42)
    after = check_update(adam, device, state, g, SKIP, rule(weight_decay=0.1, l1=0.1), storage=storage, clear=clear)
    assert [a.tobytes() for a in after] == [a.tobytes() for a in state]


@on_devices
def test_rate_zero_moves_moments_only(device, rng):
    state, g = arrays(rng, 100)
    state[2][:50] = g[:50] = 0  # sqrt(v) = 0 must not meet 1 / rate
    after = check_update(adam, device, state, g, STEP._replace(rate=0), rule(weight_decay=0.1, decoupled=True))
    assert np.array_equal(after[0], state[0])
    assert not np.array_equal(after[1], state[1])


def first_step(p: float, g: float, **changes: float) -> tuple[list[np.ndarray], np.ndarray, Control]:
    state = [np.array([p], np.float32), np.zeros(1, np.float32), np.zeros(1, np.float32)]
    return state, np.array([g], np.float32), STEP._replace(scale=1, correction1=0.1, correction2=0.001)


@on_devices
@pytest.mark.parametrize("decoupled", [False, True])
def test_scalars_reach_the_kernel_as_floats(device, decoupled):
    """H10 (cupy#8485): a Python float is 8 bytes, and a `float` parameter reads four of them."""
    after = check_update(adam, device, *first_step(1, 1), rule(decoupled=decoupled))
    assert after[0][0] == pytest.approx(0.999, rel=1e-6)


@on_devices
@pytest.mark.parametrize(("p", "g", "expected"), [(0, 1e-8, -5e-4), (0, 1, -1e-3), (0, -1, 1e-3)])
def test_where_epsilon_goes(device, p, g, expected):
    """H14 (tensorflow#9047, pytorch#41477): epsilon joins the root after the bias correction."""
    after = check_update(adam, device, *first_step(p, g), rule())
    assert after[0][0] == pytest.approx(expected, rel=1e-5)


@on_devices
@in_storage
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_a_whole_model_in_one_launch(device, storage, count, rng):
    """Stretches of 64 elements or fewer, with settings and control arrays of three kinds; what lies between stays."""
    kinds = [rule(), rule(weight_decay=0.1, decoupled=True, lr_scale=2.0), rule(weight_decay=0.1, l1=0.1, eps=0.1)]
    controls = [STEP, STEP._replace(rate=0.1), STEP._replace(scale=0.1)]
    places = [(64 * i, 64 * i + 1 + 21 * i % 64, i % 3) for i in range(count)]
    state, g = arrays(rng, 64 * count + 9)
    g = g.astype(STORAGE[storage])
    copy = None if storage == "float32" else np.full(g.size, -1).astype(g.dtype)
    wanted = [a.astype(np.float64) for a in state]
    for start, stop, kind in places:
        parts = (*(a[start:stop] for a in wanted), g[start:stop].astype(np.float64))
        adam.reference(*parts, np.array(controls[kind], np.float64), **kinds[kind])
    rows = []
    for i, k in enumerate(kinds):
        numbers = adam_scalars(k["beta1"], k["beta2"], k["eps"])
        rows.append(settings_row(i, k["lr_scale"], k["weight_decay"], k["l1"], k["decoupled"], numbers))
    tables = (np.array(controls, np.float32), np.stack(rows), np.array(places, np.int64))
    there_controls, there_rows, there_places = (gl.to_device(a, device) for a in tables)
    there = [None if a is None else gl.to_device(a, device) for a in (*state, copy, g)]
    table = Table(there_places, there_rows, places[-1][1])
    launch_model("adam", tuple(there[:3]), there[3], there[4], there_controls, table)
    inside = np.zeros(g.size, bool)
    for start, stop, _ in places:
        inside[start:stop] = True
    for found, exact, before in zip(there, wanted, state, strict=False):
        assert_close(found.get(), exact, "float32")
        assert np.array_equal(found.get()[~inside], before[~inside])
    if copy is not None:
        copied = np.where(inside, there[0].get().astype(copy.dtype), copy)
        assert there[3].get().tobytes() == copied.astype(copy.dtype).tobytes()


@on_devices
def test_nothing(device, rng):
    check_update(adam, device, *arrays(rng, 0), STEP, rule(), clear=True)


@on_devices
def test_a_strided_gradient_is_read_by_its_strides(device, rng):
    (p, m, v), g = arrays(rng, 40)
    control = np.array(STEP, np.float32)
    there = [gl.to_device(a, device) for a in (p, m, v, g, control)]
    adam.cuda(*(a[:20] for a in there[:3]), there[3][::-2], there[4], **rule())
    adam.reference(p[:20], m[:20], v[:20], g[::-2], control, **rule())
    assert there[0].get() == pytest.approx(p, rel=1e-6)


@on_devices
@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        ({0: np.float16}, TypeError, "adam: array 0 must be float32, got float16"),
        ({2: np.float64}, TypeError, "adam: array 2 must be float32, got float64"),
        ({4: np.float64}, TypeError, "adam: control must be float32, got float64"),
        ({3: slice(0, 3)}, ValueError, r"adam takes arrays of one length and a control array of 8, got \[\(8,\)"),
        ({4: slice(0, 5)}, ValueError, r"adam takes arrays of one length and a control array of 8, got \[\(8,\)"),
        ({"copy": np.float32, 3: np.float16}, TypeError, "a float32 copy takes a gradient of the same type or float32"),
        ({0: slice(None, None, -1)}, ValueError, "adam: p is not contiguous"),
    ],
)
def test_refused(device, change, error, sentence, rng):
    state, g = arrays(rng, 8)
    given = dict(enumerate((*state, g, np.array(STEP, np.float32)))) | {"copy": None}
    for where, what in change.items():
        old = g if given[where] is None else given[where]
        given[where] = old[what] if isinstance(what, slice) else old.astype(what)
    there = {where: gl.to_device(a, device) for where, a in given.items() if a is not None}
    for where, what in change.items():
        if isinstance(what, slice) and what.step:
            there[where] = there[where][what]
    before = [there[i].get() for i in range(3)]
    with pytest.raises(error, match=sentence):
        adam.cuda(*(there[i] for i in range(5)), **rule(), copy=there.get("copy"))
    assert all(np.array_equal(was, there[i].get()) for i, was in enumerate(before))


def test_h11_the_last_block_beyond_2_to_the_31(monkeypatch):
    """H11 (cupy#7539): a 32-bit element offset wraps to a negative one."""
    size = 2**31 + 5
    there = [gl.use("emulated").zeros(size, np.float32) for _ in range(4)]
    there[0][size - 5 :] = there[3][size - 5 :] = gl.to_device(np.ones(5, np.float32), "emulated")
    control = gl.to_device(np.array(first_step(1, 1)[2], np.float32), "emulated")
    only_block(monkeypatch, -(-size // (THREADS * 4)) - 1)
    with using(check_races=False):  # whose notes take as much memory again, all of it touched
        adam.cuda(*there, control, **rule())
    assert there[0][size - 5 :].get() == pytest.approx(np.full(5, 0.999), rel=1e-6)
