"""The kernel between the products of attention: masks of any kind, dropout, both passes."""

import numpy as np
import pytest
from devices import STORAGE, check_kernel, in_storage, on_devices, only_block
from tolerances import assert_close

import gpulayers as gl
from gpulayers.backend import empty
from gpulayers.masks import padding_mask
from gpulayers.ops.masked_softmax import (
    backward_with_dropout,
    forward_with_dropout,
    masked_softmax,
    masked_softmax_backward,
)
from gpulayers.random import keep_threshold, random_bits
from gpulayers.step import Key

SHAPES = [(1, 1, 1, 1), (2, 3, 7, 5), (1, 2, 3, 33), (2, 2, 5, 128), (1, 1, 1, 1023)]


def empty_like(x):
    return empty(x.shape, x.dtype, like=x)


def masks(shape, causal, rng):
    B, H, T, S = shape
    if causal:
        return None, rng.random((1, H, T, 1)) < 0.3
    return padding_mask(lengths=rng.integers(0, S + 1, B), size=S), rng.random((B, H, T, S)) < 0.5


@on_devices
@in_storage
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("causal", [False, True])
def test_against_the_reference(causal, shape, storage, device, rng):
    scores, dweights = rng.normal(0, 3, (2, *shape)).astype(np.float32)
    for hide in masks(shape, causal, rng):
        check_kernel(masked_softmax, device, scores, hide, 0.3, causal, storage=storage)
        weights = masked_softmax.reference(scores, hide, 0.3, causal)
        terms = 0.3 * np.abs(dweights * weights).max(initial=0)  # dscores is a difference of two of them
        check_kernel(
            masked_softmax_backward, device, dweights, weights, hide, 0.3, causal, storage=storage, scale=terms
        )


@on_devices
@in_storage
@pytest.mark.parametrize(("shape", "causal"), [((2, 3, 7, 5), True), ((1, 2, 3, 33), False), ((1, 1, 1, 1023), False)])
def test_soft_cap(shape, causal, storage, device, rng):
    """On scores far below and far above it; and NaN where they are hidden."""
    scores = rng.normal(0, 3, shape).astype(np.float32)
    hide = rng.random((1, 1, *shape[2:])) < 0.3
    for softcap in (0.5, 50.0):
        check_kernel(masked_softmax, device, scores, hide, 2.0, causal, softcap, storage=storage, factor=2)
    poisoned = np.where(hide, np.float32(np.nan), scores)
    check_kernel(masked_softmax, device, poisoned, hide, 2.0, causal, 3.0, storage=storage, factor=2)


@on_devices
@pytest.mark.parametrize(("storage", "keys"), [("float32", 8201), ("bfloat16", 16393)])
def test_a_row_that_no_block_can_hold(storage, keys, device, rng):
    """More than 512 threads with 4 packs each: it is read twice."""
    scores, dweights = rng.normal(0, 3, (2, 1, 1, 1, keys)).astype(np.float32)
    hide = rng.random((1, 1, 1, keys)) < 0.2
    check_kernel(masked_softmax, device, scores, hide, 1.0, False, storage=storage)
    weights = masked_softmax.reference(scores, hide, 1.0, False)
    check_kernel(masked_softmax_backward, device, dweights, weights, hide, 1.0, False, storage=storage, factor=2)
    check_dropout(device, storage, scores, dweights, hide, False, Key(1, 2, 3, 4), 0.1)


VIEWS = {  # of a mask for (2, 3, 4, 7), and how many bytes the kernel's copy of it has (0: none)
    "whole": (lambda a: a, 0),
    "of a longer one": (lambda a: a[:, :, 1:5, 2:9], 0),
    "heads before samples": (lambda a: a[:, :, :4, :7].swapaxes(0, 1)[:2], 0),
    "backwards": (lambda a: a[::-1, ::-1, 3::-1, :7], 0),
    "one row for all": (lambda a: np.broadcast_to(a[:, :1, :1, :7], (2, 3, 4, 7)), 0),
    "one key for all": (lambda a: np.broadcast_to(a[:, :, :4, :1], (2, 3, 4, 7)), 0),
    "keys backwards": (lambda a: a[:, :, :4, 6::-1], 2 * 3 * 4 * 7),
    "keys backwards, one row for all": (lambda a: np.broadcast_to(a[:, :1, :1, 6::-1], (2, 3, 4, 7)), 2 * 7),
}


@on_devices
@pytest.mark.parametrize("name", VIEWS)
def test_a_mask_that_is_a_view_is_not_copied(name, device, rng, monkeypatch):
    view, size = VIEWS[name]
    shape = (2, 3, 4, 7) if name == "whole" else (2, 3, 6, 9) if name != "heads before samples" else (3, 2, 6, 9)
    whole, scores = rng.random(shape) < 0.4, rng.normal(size=(2, 3, 4, 7)).astype(np.float32)
    there = gl.to_device(whole, device)
    broadcast, xp = np.broadcast_to, gl.array_module(there)
    with monkeypatch.context() as patch:
        patch.setattr(np, "broadcast_to", xp.broadcast_to)
        hide = view(there)
    copies = []

    def contiguous(a):
        if not a.flags.c_contiguous:
            copies.append(a.nbytes)
        return gl.cuda.contiguous(a)

    monkeypatch.setattr("gpulayers.ops.masked_softmax.contiguous", contiguous)
    weights = masked_softmax(gl.to_device(scores, device), hide, 0.5, True)
    assert sum(copies) == size
    assert np.broadcast_to is broadcast
    assert_close(weights.get(), masked_softmax.reference(scores, view(whole), 0.5, True))


@on_devices
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 3e38])
def test_hidden_entries_never_matter(poison, device, rng):
    """And a row in which everything is hidden is 0: H05 (pytorch #103963)."""
    scores, dweights = rng.normal(size=(2, 2, 2, 4, 9)).astype(np.float32)
    hide = rng.random((2, 1, 4, 9)) < 0.4
    hide[1, :, 2] = True
    hidden = np.broadcast_to(hide | ~np.tri(4, 9, 5, dtype=bool), scores.shape)
    there = gl.to_device(hide, device)

    def run(scores, dweights):
        weights = masked_softmax(gl.to_device(scores, device), there, 2.0, True)
        return weights.get(), masked_softmax_backward(gl.to_device(dweights, device), weights, there, 2.0, True).get()

    clean = run(scores, dweights)
    bad = run(*np.where(hidden, np.float32(poison), [scores, dweights]))
    for a, b in zip(clean, bad, strict=True):
        assert np.array_equal(a, b)
        assert not b[hidden].any()
        assert not b[1, :, 2].any()


@on_devices
def test_h06_causal_with_fewer_queries_than_keys(device):
    """Dao-AILab/flash-attention #282: the last query sees all keys."""
    (weights,) = check_kernel(masked_softmax, device, np.zeros((1, 1, 3, 5), np.float32), None, 1.0, True)
    seen = np.tri(3, 5, 2)
    assert weights.get()[0, 0] == pytest.approx(seen / seen.sum(axis=1, keepdims=True))
    (weights,) = check_kernel(masked_softmax, device, np.zeros((1, 1, 5, 3), np.float32), None, 1.0, True)
    assert not weights.get()[0, 0, :2].any()


@on_devices
def test_infinities(device):
    """A visible NaN or inf spoils its row and no other; -inf is a weight of 0."""
    scores = np.array([[np.nan, 1, 2], [np.inf, 1, 2], [-np.inf, 1, 2], [-np.inf] * 3, [1, 2, 3]], np.float32)
    with np.errstate(invalid="ignore"):
        check_kernel(masked_softmax, device, scores[None, None], None, 0.5, False)
    check_kernel(
        masked_softmax, device, np.array([[[[65504, -65504, 0]]]], np.float32), None, 1.0, False, storage="float16"
    )


# ------------------------------------------------------------------------------------------------- dropout


def check_dropout(device, storage, scores, dweights, hide, causal, key, p):
    """Both passes: kept entries are where the CPU's bits say, and are the weights times 1 / (1 - p)."""
    scores, dweights = scores.astype(STORAGE[storage]), dweights.astype(STORAGE[storage])
    there = [None if a is None else gl.to_device(a, device) for a in (scores, dweights, hide)]
    weights, dropped = forward_with_dropout(there[0], there[2], 0.7, causal, p, key, empty_like(there[0]))
    B = len(scores)
    bits = random_bits(key, scores.size // B if B else 0, B).reshape(scores.shape)
    keep = bits >= keep_threshold(p)
    w = weights.get().astype(np.float32)
    assert_close(w, masked_softmax.reference(scores.astype(np.float64), hide, 0.7, causal), storage)
    wanted = np.where(keep, w * np.float32(1 / (1 - p)), 0).astype(STORAGE[storage])
    assert np.array_equal(dropped.get(), wanted)

    ds, again = backward_with_dropout(there[1], weights, there[2], 0.7, causal, p, key, empty_like(there[0]))
    assert np.array_equal(again.get(), wanted)
    dw = np.where(keep, dweights.astype(np.float64) / (1 - p), 0)
    exact = masked_softmax_backward.reference(dw, w.astype(np.float64), hide, 0.7, causal)
    assert_close(ds.get().astype(np.float64), exact, storage, factor=2, scale=np.abs(dw * w).max(initial=0))


@on_devices
@in_storage
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (3, 2, 4, 8), (1, 1, 3, 161)])
@pytest.mark.parametrize("first_sample", [0, 3])
def test_dropout(first_sample, shape, storage, device, rng):
    scores, dweights = rng.normal(0, 3, (2, *shape)).astype(np.float32)
    for hide in (None, rng.random(shape) < 0.3):
        check_dropout(device, storage, scores, dweights, hide, hide is None, Key(7, 8, 9, first_sample), 0.25)


@on_devices
@in_storage
def test_in_place(storage, device, rng):
    """As attention calls it: the weights take the memory of the scores, dscores that of dweights."""
    scores, dweights = (gl.to_device(a, device) for a in rng.normal(size=(2, 2, 2, 3, 37)).astype(STORAGE[storage]))
    for p in (0.0, 0.3):
        key = Key(1, 1, 1, 1)
        a, b = scores.copy(), dweights.copy()
        weights, dropped = forward_with_dropout(scores, None, 0.7, True, p, key, empty_like(scores))
        weights2, dropped2 = forward_with_dropout(a, None, 0.7, True, p, key, a)
        ds, again = backward_with_dropout(dweights, weights, None, 0.7, True, p, key, empty_like(scores))
        ds2, again2 = backward_with_dropout(b, weights2, None, 0.7, True, p, key, b)
        for one, other in ((weights, a), (dropped, dropped2), (ds, b), (ds2, b), (again, again2), (again, dropped)):
            assert np.array_equal(one.get(), other.get())


# ------------------------------------------------------------------------------------------------- layouts, refusals


@on_devices
def test_views_and_nothing(device, rng):
    """H09 (cupy #9233), for scores and masks; H13 (pytorch PR 80893)."""
    scores = rng.normal(size=(7, 5, 3, 2)).astype(np.float32).T
    hide = (rng.random((7, 1, 3, 2)) < 0.4).T
    check_kernel(masked_softmax, device, scores, hide, 1.0, True)
    check_kernel(masked_softmax, device, scores[::-1, :, 1:], np.broadcast_to(hide[:1], (2, 3, 4, 7)), 1.0, False)
    weights = np.asfortranarray(masked_softmax.reference(scores, hide, 1.0, True))
    check_kernel(masked_softmax_backward, device, scores[::-1], weights, hide, 1.0, True)
    for shape in ((0, 2, 3, 3), (2, 0, 3, 3), (2, 2, 0, 3), (2, 2, 3, 0)):
        nothing = np.zeros(shape, np.float32)
        check_kernel(masked_softmax, device, nothing, None, 1.0, True)
        check_kernel(masked_softmax_backward, device, nothing, nothing, None, 1.0, True)


@on_devices
def test_refusals(device):
    x, other = (gl.to_device(np.ones(shape, np.float32), device) for shape in ((1, 1, 2, 3), (1, 1, 3, 2)))
    with pytest.raises(ValueError, match=r"one shape and dtype, got float32 \(1, 1, 3, 2\) and float32 \(1, 1, 2, 3\)"):
        masked_softmax_backward(other, x, None, 1.0, False)
    with pytest.raises(ValueError, match=r"a mask that broadcasts to \(B, H, T, S\) = \(1, 1, 2, 3\), got"):
        masked_softmax(x, gl.to_device(np.ones((1, 1, 3, 2), bool), device), 1.0, False)
    with pytest.raises(TypeError, match="float32 array"):
        masked_softmax(x, x, 1.0, False)


def test_h11_beyond_32_bits(monkeypatch, rng):
    """cupy #7539: the last rows of scores (1, 2, 32770, 32770) begin beyond 2^31 elements. Only their block runs."""
    T, cp = 32_770, gl.use("emulated")
    scores = cp.zeros((1, 2, T, T), np.float16)
    row = rng.normal(0, 3, T).astype(np.float16)
    scores[0, 1, -1] = cp.asarray(row)
    only_block(monkeypatch, 2 * T - 1)
    key = Key(1, 2, 3, 0)
    forward_with_dropout(scores, None, 1.0, True, 0.0, None, scores)
    exact = masked_softmax.reference(row.astype(np.float64).reshape(1, 1, 1, T), None, 1.0, True)
    assert np.allclose(scores[0, 1, -1].get(), exact[0, 0, 0], atol=1e-6, rtol=1e-3)
    weights = scores[0, 1, -1].get()
    _, dropped = backward_with_dropout(scores, scores, None, 1.0, True, 0.5, key, scores)
    start = (2 * T - 1) * T
    generator = np.random.Philox(key=np.array([1, 2 << 24 | 3], np.uint64), counter=[start // 8, 0, 0, 0])
    bits = generator.random_raw(4 * (T // 8 + 2)).view(np.uint32)[start % 8 :][:T]
    assert np.array_equal(dropped[0, 1, -1].get() != 0, (bits >= 1 << 31) & (weights != 0))
    assert not dropped[0, 1, -2].get().any()
