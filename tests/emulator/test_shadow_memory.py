"""The bookkeeping behind the race checks, against slow models."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayers.emulator import indexing
from gpulayers.emulator.races import ATOMIC, EPOCH_SHIFT, LEVEL_SHIFT, USED, WARP_SHIFT, Shadow, relation
from gpulayers.emulator.tables import PAGE_BITS, PagedTable

SHIFT = 7  # 128 threads a block


def word(block: int, thread: int, epoch: int = 0, warp_epoch: int = 0, level: int = 0, atomic: bool = False) -> int:
    bits = block << SHIFT | thread | epoch << EPOCH_SHIFT | warp_epoch << WARP_SHIFT | level << LEVEL_SHIFT
    return USED | bits | (int(ATOMIC) if atomic else 0)


access = st.tuples(st.integers(0, 2), st.integers(0, 127), st.integers(0, 1), st.integers(0, 1))


def model(old: tuple, level: int, new: tuple) -> int:
    """The level of the conflict, in words: who may have touched the cell, and is the new access ordered after that?"""
    if old == new and level == 0:
        return 0
    if old[0] != new[0] or level == 3:
        return 3
    if old[2] != new[2]:
        return 0
    if old[1] // 32 != new[1] // 32 or level == 2:
        return 2
    if old[3] != new[3]:
        return 0
    return 1 if level == 1 or old[1] != new[1] else 0


@settings(max_examples=300, deadline=None)
@given(access, st.integers(0, 3), access, st.booleans())
def test_the_relation_of_two_accesses(old, level, new, atomic):
    words = np.array([word(*old, level=level, atomic=atomic)], np.int64)
    found = relation(words, np.array([word(*new)], np.int64), SHIFT)
    assert (0 if found is None else int(found[0])) == model(old, level, new)


def stamps(*threads: tuple) -> np.ndarray:
    return np.array([word(*one) for one in threads], np.int64)


def test_several_readers_are_remembered():
    """Threads 3 and 40 of one block read in one instruction; then thread 3 stores: it races with 40 only."""
    shadow, where = Shadow(64, SHIFT), np.array([8, 8])
    assert shadow.load(where, 4, stamps((0, 3), (0, 40)), False) is None
    races = shadow.store(where[:1], 4, stamps((0, 3)), False)
    assert races.loads is not None
    shadow = Shadow(64, SHIFT)
    shadow.load(where[:1], 4, stamps((0, 3)), False)
    assert shadow.store(where[:1], 4, stamps((0, 3)), False).loads is None
    shadow.load(where, 4, stamps((0, 3, 1), (0, 40, 1)), False)
    assert shadow.store(where[:1], 4, stamps((0, 3, 2)), False).loads is None  # a barrier later


def test_readers_of_several_blocks_are_never_forgotten():
    shadow, where = Shadow(64, SHIFT), np.array([8])
    shadow.load(where, 4, stamps((0, 3)), False)
    shadow.load(where, 4, stamps((1, 3)), False)
    shadow.load(where, 4, stamps((1, 3, 5)), False)
    assert shadow.store(where, 4, stamps((1, 3, 6)), False).loads is not None


def test_atomics_race_with_plain_accesses_only():
    shadow, where = Shadow(64, SHIFT), np.array([16])
    for block in range(3):
        races = shadow.store(where, 4, stamps((block, 1)), True)
        assert races.stores is None
        assert races.together is None
    assert shadow.load(where, 4, stamps((2, 1)), False) is not None
    assert shadow.load(where, 4, stamps((2, 1)), True) is None


@pytest.mark.parametrize("size", [16, 8, 4, 2, 1])
def test_cells_are_split_when_smaller_accesses_come(size):
    shadow = Shadow(64, SHIFT)
    shadow.store(np.array([16]), 16, stamps((0, 1)), False)
    offsets = np.arange(0, 64, size)
    assert shadow.unwritten(np.array([16]), 16) is None
    never = shadow.unwritten(offsets, size)
    assert never is not None
    np.testing.assert_array_equal(~never, (offsets >= 16) & (offsets < 32))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3 << PAGE_BITS), st.integers(1, 100)), max_size=30))
def test_paged_tables_are_tables(entries):
    paged, plain = PagedTable(), {}
    for cell, value in entries:
        paged[np.array([cell])] = value
        plain[cell] = value
    cells = np.array(sorted({*plain, 0, 1 << PAGE_BITS, 5}))
    np.testing.assert_array_equal(paged.take(cells), [plain.get(int(cell), 0) for cell in cells])
    finer = paged.repeat(4)
    np.testing.assert_array_equal(finer.take(cells * 4 + 3), [plain.get(int(cell), 0) for cell in cells])


threads = st.one_of(
    st.builds(lambda start, count, step: slice(start, start + count * step, step),
              st.integers(0, 9), st.integers(1, 9), st.integers(1, 4)),
    st.sets(st.integers(0, 60), min_size=1).map(lambda chosen: np.array(sorted(chosen))),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(threads, st.randoms(use_true_random=False))
def test_sets_of_threads(index, random):
    numbers = indexing.positions(index)
    assert indexing.count(index) == len(numbers)
    mask = np.array([random.random() < 0.5 for _ in numbers])
    taken, rest = indexing.select(index, mask), indexing.select(index, ~mask)
    np.testing.assert_array_equal(indexing.positions(taken) if taken is not None else [], numbers[mask])
    parts = [part for part in (taken, rest) if part is not None]
    np.testing.assert_array_equal(indexing.positions(indexing.join(parts)), numbers)
    compact = indexing.compact(numbers)
    np.testing.assert_array_equal(np.arange(100)[compact], numbers)
