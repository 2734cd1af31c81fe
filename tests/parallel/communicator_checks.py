"""On every rank: what each call of a Communicator gives, in host memory and on the emulated device."""

import os
import sys

import ml_dtypes
import numpy as np
import pytest

import gpulayers
from gpulayers.backend import to_numpy
from gpulayers.parallel import Elsewhere, connect, together
from gpulayers.training.agree import own_device

DEVICE = os.environ["CHECKS_DEVICE"]
ranks = connect()
assert ranks is connect()
rank, size = ranks.rank, ranks.size
assert (ranks.local_rank, ranks.local_size) == (rank, size)
total = size * (size + 1) // 2

own_device(DEVICE, ranks)
for device in ("numpy", DEVICE):
    xp = gpulayers.use(device)
    for dtype in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16):
        for shape in ((0,), (1,), (7,), (1023,), (3, 5), ()):
            array = xp.full(shape, rank + 1, dtype)
            ranks.all_reduce(array)
            assert array.shape == shape
            assert array.dtype == dtype
            assert (to_numpy(array).astype(float) == total).all()
            array = xp.full(shape, rank + 1, dtype)
            ranks.broadcast(array, size - 1)
            assert (to_numpy(array).astype(float) == size).all()

    whole = xp.full(1000, rank + 1, np.float32)  # a stretch of a buffer, and nothing beside it
    ranks.all_reduce(whole[100:900])
    assert to_numpy(whole[100:900] == total).all()
    assert to_numpy(whole[:100] == rank + 1).all()
    assert to_numpy(whole[900:] == rank + 1).all()

    values = np.random.default_rng(rank).standard_normal(100_003)
    array = xp.asarray(values)
    ranks.all_reduce(array)
    assert len(set(ranks.gather_texts(to_numpy(array).tobytes().hex()[:64]))) == 1  # the same bits everywhere
    expected = np.sum([np.random.default_rng(r).standard_normal(values.size) for r in range(size)], axis=0)
    assert np.allclose(to_numpy(array), expected, rtol=1e-14, atol=1e-14)

    spoilt = xp.zeros(3, np.float32)
    spoilt[1] = np.nan if rank == size - 1 else 1.0
    ranks.all_reduce(spoilt)
    assert np.isnan(to_numpy(spoilt)).tolist() == [False, True, False]

    with pytest.raises(ValueError, match="contiguous"):
        ranks.all_reduce(xp.zeros((4, 4), np.float32).T[1:])
    with pytest.raises(ValueError, match=rf"root must be in 0..{size - 1}, got {size}"):
        ranks.broadcast(xp.zeros(1), size)

with pytest.raises(TypeError, match=r"all_reduce takes an array of float32, .*, got int64"):
    ranks.all_reduce(gpulayers.use(DEVICE).zeros(2, np.int64))
with pytest.raises(TypeError, match="expected an array"):
    ranks.all_reduce([1.0])

assert ranks.gather(10 * rank + 0.5).tolist() == [10 * r + 0.5 for r in range(size)]
assert ranks.gather_texts("é\udcff" * rank) == ["é\udcff" * r for r in range(size)]
assert ranks.broadcast_text(f"from {rank}", 1) == "from 1"


def fail_together(broken):
    with together(ranks):
        if rank in broken:
            raise (ValueError, OSError)[broken[0] % 2]("here" if len(broken) == size else f"on {rank}")


fail_together([])
for broken in ([size - 1], sorted({1, size - 1}), list(range(size))):
    first = broken[0]
    expected = (ValueError, OSError)[first % 2] if rank == first else Elsewhere
    with pytest.raises(expected) as caught:
        fail_together(broken)
    notes = getattr(caught.value, "__notes__", [])
    assert notes == ([f"(on rank {first} of {size})"] if rank == first and len(broken) < size else [])

assert "mpi4py.util.pkl5" not in sys.modules
