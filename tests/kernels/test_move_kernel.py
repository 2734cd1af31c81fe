import numpy as np
import pytest
from contract import check_signatures
from devices import STORAGE, on_devices, only_block
from rules import SKIP, STEP
from tolerances import assert_close
from updates import placed

import gpulayers as gl
from gpulayers.emulator.settings import using
from gpulayers.ops.move import follow, move
from gpulayers.ops.update import THREADS


def test_signatures():
    check_signatures(move)
    check_signatures(follow)


@on_devices
@pytest.mark.parametrize("storage", ["float32", "float16"])
@pytest.mark.parametrize("size", [0, 1, 5, 1027])
@pytest.mark.parametrize("start", [0, 1, 4])
@pytest.mark.parametrize("totals", [None, (2.0, 8.0), (0.0, 8.0), (2.0, 0.0)])
def test_move(device, storage, size, start, totals, rng):
    p, u = rng.normal(size=(2, size)).astype(np.float32)
    totals = (None, None) if totals is None else tuple(np.array([t]) for t in totals)
    exact = p.astype(np.float64)
    move.reference(exact, u.astype(np.float64), np.array(STEP, np.float64), 3.0, 0.7, 0.1, *totals)
    control = gl.to_device(np.array(STEP, np.float32), device)
    there_totals = [None if t is None else gl.to_device(t, device) for t in totals]
    copy = None if storage == "float32" else np.zeros(size, STORAGE[storage])
    views, wholes = zip(*(placed(device, a, start) for a in (p, u, copy)), strict=True)
    move.cuda(*views[:2], control, 3.0, 0.7, 0.1, *there_totals, views[2])
    for whole in wholes:
        assert whole is None or (np.delete(whole.get(), slice(start, start + size)) == 7).all()
    assert_close(views[0].get(), exact)
    assert np.array_equal(views[1].get(), u)
    if copy is not None:
        assert np.array_equal(views[2].get(), views[0].get().astype(copy.dtype))


@on_devices
@pytest.mark.parametrize("size", [0, 1, 1027])
@pytest.mark.parametrize("start", [(0, 0), (1, 0), (0, 1)])
@pytest.mark.parametrize("with_control", [False, True])
def test_follow(device, size, start, with_control, rng):
    average, p = rng.normal(size=(2, size)).astype(np.float32)
    control = gl.to_device(np.array(STEP, np.float32), device) if with_control else None
    (view, whole), (there, _) = (placed(device, a, at) for a, at in zip((average, p), start, strict=True))
    follow.cuda(view, there, 0.999, control)
    assert_close(view.get(), 0.999 * average.astype(np.float64) + 0.001 * p.astype(np.float64))
    assert (np.delete(whole.get(), slice(start[0], start[0] + size)) == 7).all()


@on_devices
def test_a_skipped_step_changes_no_bit(device, rng):
    p, u = rng.normal(size=(2, 33)).astype(np.float32)
    u[3] = np.nan
    there, along, control = (gl.to_device(a, device) for a in (p, u, np.array(SKIP, np.float32)))
    copy = gl.to_device(np.full(33, 3, np.float16), device)
    move.cuda(there, along, control, 1.0, 1.0, 0.1, None, None, copy)
    follow.cuda(there, along, 0.9, control)
    assert there.get().tobytes() == p.tobytes()
    assert (copy.get() == 3).all()


@on_devices
@pytest.mark.parametrize(
    ("which", "bad", "sentence"),
    [
        (0, np.zeros(4, np.float16), r"move takes float32 arrays of one axis, got float16 \(4,\)"),
        (1, np.zeros(3, np.float32), r"move: read must be float32 \(4,\) as x is, got float32 \(3,\)"),
        (2, np.zeros(6, np.float32), r"move: control must be float32 \(8,\), got float32 \(6,\)"),
        (3, np.zeros(1, np.float32), r"move: p_total must be float64 of shape \(1,\), got float32 \(1,\)"),
    ],
)
def test_refused(device, which, bad, sentence):
    given = [np.zeros(4, np.float32), np.zeros(4, np.float32), np.array(STEP, np.float32), np.zeros(1), np.zeros(1)]
    given[which] = bad
    p, u, control, *totals = (gl.to_device(a, device) for a in given)
    with pytest.raises((TypeError, ValueError), match=sentence):
        move.cuda(p, u, control, 1.0, 1.0, 0.0, *totals)


@pytest.mark.parametrize("op", ["move", "follow"])
def test_h11_the_last_block_beyond_2_to_the_31(op, monkeypatch):
    """H11 (cupy#7539): a 32-bit element offset wraps to a negative one."""
    size = 2**31 + 5
    a, b = (gl.use("emulated").zeros(size, np.float32) for _ in range(2))
    b[size - 5 :] = gl.to_device(np.ones(5, np.float32), "emulated")
    control = gl.to_device(np.array(STEP, np.float32), "emulated")
    only_block(monkeypatch, -(-size // (THREADS * 4)) - 1)
    with using(check_races=False):  # whose notes take as much memory again, all of it touched
        if op == "move":
            move.cuda(a, b, control, 1.0, 1.0, 0.0)
        else:
            follow.cuda(a, b, 0.75, control)
    assert a[size - 5 :].get() == pytest.approx(np.full(5, -0.01 if op == "move" else 0.25), rel=1e-6)
