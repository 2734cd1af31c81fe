import numpy as np
import pytest

from gpulayers.random import keep_threshold, philox, random_bits
from gpulayers.step import Key, Train

MASK = (1 << 64) - 1


def philox_by_hand(counter: int, key: tuple[int, int]) -> list[int]:
    """Philox4x64-10 as in the paper, section 3.3 (with its table 2), on Python integers."""
    x, (k0, k1) = [counter >> 64 * i & MASK for i in range(4)], key
    for _ in range(10):
        a, b = x[0] * 0xD2E7470EE14C6C93, x[2] * 0xCA5A826395121157
        x = [b >> 64 ^ x[1] ^ k0, b & MASK, a >> 64 ^ x[3] ^ k1, a & MASK]
        k0, k1 = k0 + 0x9E3779B97F4A7C15 & MASK, k1 + 0xBB67AE8584CAA73B & MASK
    return x


def words(blocks: range, key: tuple[int, int]) -> list[int]:
    """32-bit words of these blocks, low halves first; block i is counter i + 1."""
    return [half for i in blocks for word in philox_by_hand(i + 1, key) for half in (word & 0xFFFFFFFF, word >> 32)]


@pytest.mark.parametrize("key", [Key(0, 0, 0, 0), Key(7, 3, 5, 0), Key(MASK, (1 << 40) - 1, (1 << 24) - 1, 0)])
def test_bits_are_those_of_the_paper_and_of_numpy(key):
    found = random_bits(key, 20, 2)
    assert found.dtype == np.uint32
    assert found.shape == (2, 20)
    pair = (key.seed, key.step << 24 | key.call)
    assert found.reshape(-1).tolist() == words(range(5), pair)
    raw = np.random.Philox(key=np.array(pair, np.uint64)).random_raw(20)
    assert found.reshape(-1).tolist() == [half for w in raw.tolist() for half in (w & 0xFFFFFFFF, w >> 32)]


def test_known_answer():
    """The vector for counter 0 and key 0 of the authors' own test file (Random123, kat_vectors)."""
    assert philox_by_hand(0, (0, 0)) == [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]


@pytest.mark.parametrize("row_size", [1, 3, 8, 20, 1023])
@pytest.mark.parametrize("split", [[12], [5, 7], [1] * 12, [0, 11, 0, 1]])
def test_bits_do_not_depend_on_the_split(row_size, split):
    whole = random_bits(Key(1, 2, 3, 100), row_size, 12)
    parts, first = [], 100
    for rows in split:
        parts.append(random_bits(Key(1, 2, 3, first), row_size, rows))
        first += rows
    assert np.array_equal(np.concatenate(parts), whole)


def test_streams_differ():
    keys = [Key(0, 0, 0, 0), Key(1, 0, 0, 0), Key(0, 1, 0, 0), Key(0, 0, 1, 0), Key(0, 0, 0, 1)]
    assert len({random_bits(key, 8, 1).tobytes() for key in keys}) == len(keys)


def test_far_samples():
    key = Key(1, 2, 3, (1 << 48) - 1)
    block = key.first_sample * 1024 // 8
    assert random_bits(key, 1024, 1)[0, :8].tolist() == words(range(block, block + 1), (1, 2 << 24 | 3))


def test_bits_are_fair():
    bits = random_bits(Key(0, 0, 0, 0), 1000, 200)
    for p in (0.1, 0.5, 0.9):
        dropped = (bits < keep_threshold(p)).mean()
        assert abs(dropped - p) < 5 * np.sqrt(p * (1 - p) / bits.size)
    assert not (bits < keep_threshold(0.0)).any()
    assert (bits < keep_threshold(1.0)).all()


def test_too_many_draws():
    with pytest.raises(ValueError, match=r"more than 2\^24 draws"):
        philox(Key(0, 0, 1 << 24, 0), 0)


def test_train_gives_each_draw_its_own_key():
    train = Train(seed=3, step=4, first_sample=5)
    assert [train.draw() for _ in range(3)] == [Key(3, 4, call, 5) for call in range(3)]
