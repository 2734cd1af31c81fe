"""On every rank, each with a GPU or an emulated one: steps that only some ranks have reason to skip."""

import os

import numpy as np
import pytest

import gpulayers
from gpulayers.backend import to_numpy
from gpulayers.cuda import error_flag
from gpulayers.layers import Linear
from gpulayers.optim import SGD, LossScale
from gpulayers.parallel import connect
from gpulayers.training.agree import own_device
from gpulayers.training.ranks import Ranks

DEVICE = os.environ["CHECKS_DEVICE"]
communicator = connect()
rank, size = communicator.rank, communicator.size
last = size - 1
own_device(DEVICE, communicator)
xp = gpulayers.use(DEVICE)


def begin():
    """A model in float16, its optimizer and the ranks."""
    model = Linear(4, 3, rng=0, dtype="float16").to(DEVICE)
    return model, SGD(model, lr=0.1, loss_scale=LossScale(initial=1024.0)), Ranks(model, communicator)


def step(optimizer, ranks, gradient, loss=1.0):
    """The end of `train_step` on this rank, which has summed this gradient and loss over two targets; the outcome."""
    optimizer.flat.grad[...] = gradient
    total, count = ranks.all_reduce(optimizer.flat, xp.full((), loss, np.float32), xp.full((), 2.0, np.float32))
    optimizer.step(count, total)
    return optimizer.outcome()


# one rank overflows: all skip and halve the scale
model, optimizer, ranks = begin()
before = to_numpy(model.weight.values).copy()
scales = []
for k in range(3):
    gradient = np.inf if (rank, k) == (last, 1) else 256.0 * (rank + 1)
    found = optimizer.read(step(optimizer, ranks, gradient, loss=rank + 1.0))
    scales.append((found.apply, found.loss_scale))
    assert found.loss == (size + 1) / 4  # the sum over ranks of rank + 1, over two targets each
assert scales == [(1, 1024), (0, 512), (1, 512)]
mean = 256.0 * (size + 1) / 4
assert np.allclose(before - to_numpy(model.weight.values), 0.1 * mean * (1 / 1024 + 1 / 512), rtol=1e-4, atol=0)
ranks.check_same(optimizer.flat.data, 3)

# a target out of range on the last rank, whose kernels alone can see it: no rank steps, that one says why
model, optimizer, ranks = begin()
before = to_numpy(model.weight.data).copy()
if rank == last:
    error_flag(optimizer.flat.data)[...] = xp.asarray([1, 7, 50, 3])  # as cross_entropy's kernel leaves it
outcome = step(optimizer, ranks, 1.0)
assert np.array_equal(before, to_numpy(model.weight.data))
if rank == last:
    with pytest.raises(ValueError, match="target 50 in row 7"):
        optimizer.read(outcome)
else:
    found = optimizer.read(outcome)
    assert (found.apply, found.loss_scale) == (0, 1024)
    assert np.isnan(found.loss)

# a rank without samples has gradients of zero, and Python's numbers for its sums
model, optimizer, ranks = begin()
loss, count = (0.0, 0.0) if rank == last else (xp.ones((), np.float32), xp.ones((), np.float32))
if rank != last:
    optimizer.flat.grad[...] = 1.0
loss, count = ranks.all_reduce(optimizer.flat, loss, count)
assert (float(loss), float(count)) == (size - 1, size - 1)
assert (to_numpy(optimizer.flat.grad) == size - 1).all()
