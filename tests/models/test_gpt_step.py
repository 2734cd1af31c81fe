"""GPT read piece by piece: keys and values are kept, and the logits are those of whole passes."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from devices import on_devices
from test_float32_step import Watch
from tolerances import assert_close

import gpulayers as gl
from gpulayers.decoding import take_rows
from gpulayers.models.gpt import GPT, GPTConfig
from gpulayers.verify.tolerances import LAYER

TINY = GPTConfig(vocab=13, context=9, layers=2, heads=4, dim=16)
VARIANTS = {
    "plain": {},
    "one head of keys": {"kv_heads": 1},
    "grouped heads, rotary": {"kv_heads": 2, "rotary": True},
    "rotary": {"rotary": True},
    "no biases": {"bias": False},
}
FIVE: Any = 5  # what is no state
variants = pytest.mark.parametrize("changes", VARIANTS.values(), ids=list(VARIANTS))


def tiny(dtype="float64", **changes):
    return GPT(dataclasses.replace(TINY, **changes), seed=3, dtype=dtype)


@pytest.fixture
def ids(rng):
    return rng.integers(0, 13, (3, 9))


@variants
@pytest.mark.parametrize("pieces", [[4] + [1] * 5, [1] * 9, [3, 2, 4], [9], [0, 8, 0, 1]], ids=str)
def test_pieces_equal_the_whole_pass(changes, pieces, ids):
    """Dao-AILab/flash-attention #282: the newest query sees all keys, and one of several in a piece its own past."""
    model, state, start = tiny(**changes), None, 0
    whole = model(ids)
    for size in pieces:
        before = state
        logits, state = model.step(ids[:, start : start + size], state)
        assert logits.shape == (3, size, 13)
        assert np.abs(logits - whole[:, start : start + size]).max(initial=0) < 1e-12
        again, _ = model.step(ids[:, start : start + size], before)
        assert np.array_equal(logits, again)  # the old state is still what it was
        start += size
    assert state is not None
    assert state.length == 9


def test_float32_and_one_id_each(ids):
    model, state = tiny("float32"), None
    whole = model(ids)
    for t in range(9):
        logits, state = model.step(ids[:, t], state)
        assert logits.dtype == np.float32
        assert_close(logits, whole[:, t], factor=LAYER)


def test_the_last_ids_logits_alone(ids):
    model = tiny()
    logits, state = model.step(ids[:, :5], last=True)
    assert np.abs(logits - model(ids[:, :5])[:, -1]).max() < 1e-12
    logits, _ = model.step(ids[:, 5:8], state, last=True)
    assert np.abs(logits - model(ids[:, :8])[:, -1]).max() < 1e-12


@variants
def test_texts_of_unequal_length(changes, ids):
    """Each row is what it is alone, whatever its padding holds; several ids at a time, and one."""
    model, lengths = tiny(**changes), [5, 1, 3]
    padded = np.array([[7] * (5 - n) + row[:n].tolist() for row, n in zip(ids, lengths, strict=True)])
    logits, state = model.step(padded, padding=[0, 4, 2])
    ahead, state = model.step(ids[:, 5:7], state)
    one, state = model.step(ids[:, 7], state)
    for i, n in enumerate(lengths):
        text = np.concatenate([ids[i, :n], ids[i, 5:8]])
        alone = model(text[None])[0]
        found = np.concatenate([logits[i, 5 - n :], ahead[i], one[i : i + 1]])
        assert np.abs(found - alone).max() < 1e-12
    other = np.where(np.arange(5) < np.array([[0], [4], [2]]), 11, padded)
    assert np.array_equal(model.step(other, padding=[0, 4, 2], last=True)[0], logits[:, -1])


def test_padding_may_reach_beyond_the_context(ids):
    """Only real ids count: when the longest text has ended, the others go on."""
    model = tiny()
    _, state = model.step(ids[:2, :7], padding=np.array([0, 6]))
    state = take_rows(state, np.array([1]))
    for t in range(7, 9):
        _, state = model.step(ids[:1, t], state)
    for t in range(6):
        logits, state = model.step(ids[:1, t], state)
    alone = model(np.concatenate([ids[1, 6:7], ids[0, 7:9], ids[0, :6]])[None])[0, -1]
    assert np.abs(logits[0] - alone).max() < 1e-12
    with pytest.raises(ValueError, match="a text of 10 ids is longer than the context of 9"):
        model.step(ids[:1, 0], state)


def test_rows_of_a_state(ids):
    model = tiny()
    _, state = model.step(ids[:, :4], padding=[1, 0, 2])
    order = np.array([2, 2, 0])
    found, _ = model.step(ids[order, 4], take_rows(state, order))
    assert np.abs(found - model.step(ids[:, 4], state)[0][order]).max() < 1e-12


def test_nothing_in_padding_comes_through(ids):
    """A table with NaN in a row that only padding looks up."""
    model = tiny("float32")
    model.wte.weight.data[12] = np.nan
    ids = ids % 12
    padded = np.concatenate([np.full((1, 3), 12), ids[:1, :4]], axis=1)
    _, state = model.step(padded, padding=[3])
    hidden, _ = model.blocks[0].step(np.ones((1, 1, 16), np.float32), state.caches[0], np.arange(8) < 3)
    assert np.isfinite(hidden).all()


def test_no_float64_in_a_float32_step(ids):
    for changes in ({}, {"rotary": True}):
        model = tiny("float32", **changes)
        _, state = model.step(ids[:, :3], padding=[0, 2, 1])
        model.step(ids[:, 3], state)
        with Watch() as watch:
            _, state = model.step(ids[:, :3], padding=[0, 2, 1])
            model.step(ids[:, 3], state)
        assert not watch.found


@on_devices
@pytest.mark.parametrize("changes", [{}, {"rotary": True, "kv_heads": 2}], ids=["learned", "rotary"])
def test_on_devices(device, changes, ids):
    model, there = (tiny("float32", layers=1, **changes).to(where) for where in ("numpy", device))
    state = state_there = None
    for piece, padding in ((ids[:, :3], [0, 2, 1]), (ids[:, 3:5], None), (ids[:, 5], None)):
        logits, state = model.step(piece, state, padding=padding)
        found, state_there = there.step(gl.to_device(piece.copy(), device), state_there, padding=padding)
        real = logits if padding is None else logits[:, -1]
        assert_close(gl.to_numpy(found if padding is None else found[:, -1]), real, factor=LAYER)


def test_bad_arguments_are_one_sentence(ids):
    model = tiny()
    _, state = model.step(ids[:, :2])
    with pytest.raises(ValueError, match=r"takes ids of shape \(3, T\) or \(3,\), got \(2,\)"):
        model.step(ids[:2, 2], state)
    with pytest.raises(ValueError, match="a text of 11 ids is longer than the context of 9"):
        model.step(ids, state)
    with pytest.raises(TypeError, match="takes an array of integer ids, got float64"):
        model.step(ids * 1.0)
    with pytest.raises(TypeError, match="takes the state that step gave, got int"):
        model.step(ids, FIVE)
    with pytest.raises(ValueError, match=r"the id at position .* is 13, outside 0..12"):
        model.step(ids[:, 2] * 0 + 13, state)
    with pytest.raises(ValueError, match="padding= with the first piece only"):
        model.step(ids[:, 2], state, padding=[0, 0, 1])
    for bad in ([0, 1], [0, 0, 9], [0, -1, 0], [0.5, 0, 0]):
        with pytest.raises(ValueError, match=r"takes padding= as 3 integers in 0..8"):
            model.step(ids, padding=bad)
