"""On every rank: a step shared out among the ranks is that of one process with the whole batch, which each computes."""

import itertools
import math

import numpy as np
import pytest

import gpulayers
from gpulayers.layers import BatchNorm, Embedding, InstanceNorm, Linear, Sequential
from gpulayers.models.gpt import GPT, GPTConfig
from gpulayers.optim import SGD, AdamW
from gpulayers.parallel import Elsewhere, ParallelError, connect
from gpulayers.training.agree import agree
from gpulayers.training.config import TrainingOptions
from gpulayers.training.loop import train_step
from gpulayers.training.options import ConfigError
from gpulayers.training.ranks import Ranks
from gpulayers.training.tasks import Part
from gpulayers.training.threads import Threads

communicator = connect()
rank, size = communicator.rank, communicator.size
last = size - 1
VOCAB = 11


def gpt(dropout=0.3):
    return GPT(GPTConfig(VOCAB, context=8, layers=1, heads=2, dim=16, dropout=dropout), seed=0, dtype="float64")


def parts_of(arrays, targets, *sizes):
    starts = np.cumsum([0, *sizes])
    return [Part(int(a), (arrays[a:b],), targets[a:b]) for a, b in itertools.pairwise(starts)]


def stepped(make, rule, batches, ranks=None, threads=0):
    """(figures of each step, state of the model and of the optimizer) after a step on each list of parts."""
    model = make()
    optimizer, outcomes = rule(model), []
    shared = None if ranks is None else Ranks(model, ranks)
    side_by_side = Threads(model, threads) if threads else None
    for k, parts in enumerate(batches):
        own = parts if shared is None else shared.share(parts)
        outcomes.append(optimizer.read(train_step(model, optimizer, own, 7, k, threads=side_by_side, ranks=shared)))
    if side_by_side is not None:
        side_by_side.close()
    if shared is not None:
        shared.check_same(optimizer.flat.data, 1)
    return outcomes, {**model.state_dict(), **optimizer.state_dict()}


def assert_close(one, many, rtol=1e-12, atol=1e-12):
    (figures, state), (its_figures, its_state) = one, many
    for mine, theirs in zip(figures, its_figures, strict=True):
        assert theirs == pytest.approx(mine, rel=1e-12, nan_ok=True)
    for name in state:
        assert np.allclose(state[name], its_state[name], rtol=rtol, atol=atol, equal_nan=True), name


# Uneven batches of 1 to 7 samples, in parts, with positions that do not count: most ranks get other numbers of samples
# and of targets, some none at all. Dropout is on, the norm is clipped, embedding and head are one table.
rng = np.random.default_rng(0)
batches = []
for sizes in [(5,), (2, 3), (1,), (1, 1), (7,)]:
    ids, targets = rng.integers(0, VOCAB, (2, sum(sizes), 8))
    targets[rng.random(targets.shape) < 0.4] = -100
    batches.append(parts_of(ids, targets, *sizes))
for rule in (
    lambda model: SGD(model, lr=0.1, momentum=0.9, clip_norm=0.5),
    lambda model: SGD(model, lr=0.1, clip_value=1e-3, clip_norm=1e-2, weight_decay=0.1),
):
    one = stepped(gpt, rule, batches)
    assert_close(one, stepped(gpt, rule, batches, communicator))
assert all(figures.norm > 0.5 for figures in one[0][1:])  # so clipping by a rank's own norm would have been seen
one = stepped(gpt, lambda model: AdamW(model, lr=1e-3), batches)
for threads in (0, 2):  # Adam divides by the root of a square: what is near 0 has fewer digits
    many = stepped(gpt, lambda model: AdamW(model, lr=1e-3), batches, communicator, threads)
    assert_close(one, many, rtol=1e-9, atol=1e-11)

# every sample is on one rank, wherever it was cut
shared = Ranks(gpt(), communicator)
for sizes in [(5,), (2, 3), (1,), (8, 8)]:
    samples = np.arange(sum(sizes))
    own = [part.targets.tolist() for part in shared.share(parts_of(samples, samples, *sizes))]
    assert [part.first_sample for part in shared.share(parts_of(samples, samples, *sizes))] == [o[0] for o in own]
    texts = communicator.gather_texts(",".join(str(n) for part in own for n in part))
    assert sorted(int(n) for text in texts if text for n in text.split(",")) == samples.tolist()

# huggingface/transformers pull request 34191: means of parts with different counts, averaged
model = Embedding(4, 2, dtype="float64")
model.weight.data[...] = [[0, 0], [0, 3], [0, 3], [0, 3]]
before, optimizer, shared = model.weight.data.copy(), SGD(model, lr=1.0), Ranks(model, communicator)
own = shared.share(parts_of(np.arange(4)[:, None], np.array([[0], [1], [1], [1]]), 4))
assert optimizer.read(train_step(model, optimizer, own, 0, 0, ranks=shared)).loss == pytest.approx(0.2097273, abs=1e-7)
assert np.allclose(before - model.weight.data, [[-0.125, 0.125]] + [[0.0118565, -0.0118565]] * 3, atol=1e-6)

# ---------------------------------------------------------------------------------------------------- not finite


for where in ("loss", "gradient"):
    model = Embedding(2 * size, 3, rng=0)
    optimizer, shared = AdamW(model, lr=0.1), Ranks(model, communicator)
    parts = parts_of(np.arange(2 * size)[:, None], np.zeros((2 * size, 1), int), 2 * size)
    train_step(model, optimizer, shared.share(parts), 0, 0, ranks=shared)
    before = {**model.state_dict(), **optimizer.state_dict()}
    kept, backward = model.weight.data.copy(), model.backward
    if rank == last and where == "loss":
        model.weight.data[-1, 0] = np.nan
    if rank == last and where == "gradient":
        model.backward = lambda dy, saved, backward=backward: backward(dy * np.float32(np.inf), saved)
    with np.errstate(invalid="ignore"):
        found = optimizer.read(train_step(model, optimizer, shared.share(parts), 0, 1, ranks=shared))
    assert found.apply == 0
    assert math.isnan(found.loss) == (where == "loss")
    assert not math.isfinite(found.norm)
    if rank == last and where == "loss":
        assert np.isnan(model.weight.data[-1, 0])
        model.weight.data[...] = kept
    after = {**model.state_dict(), **optimizer.state_dict()}
    assert after.pop("optimizer.skipped") == 1
    for name, array in after.items():
        assert np.array_equal(array, before[name]), (where, name)

# ---------------------------------------------------------------------------------------------------- statistics


def normed(kind):
    return lambda: Sequential(kind(6, dtype="float64"), Linear(6, VOCAB, rng=1, dtype="float64"))


x, targets = rng.standard_normal((2 * size + 1, 6)) + 5.0, rng.integers(0, VOCAB, 2 * size + 1)
for kind in (BatchNorm, lambda n, dtype: BatchNorm(n, momentum=None, dtype=dtype)):
    parts = [parts_of(x, targets, len(x)), parts_of(x[::-1].copy(), targets, len(x))]
    one = stepped(normed(kind), lambda model: SGD(model, lr=0.0), parts)[1]
    many = stepped(normed(kind), lambda model: SGD(model, lr=0.0), parts, communicator)[1]
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert np.allclose(one[f"layers.0.{name}"], many[f"layers.0.{name}"], rtol=1e-12, atol=0), name
    assert len(set(communicator.gather_texts(many["layers.0.running_var"].tobytes().hex()))) == 1


class Positions(gpulayers.Layer):
    """The last of a sample's positions, behind an InstanceNorm that keeps statistics."""

    def __init__(self):
        self.norm = InstanceNorm(6, affine=True, track_running_stats=True, dtype="float64")
        self.head = Linear(6, VOCAB, rng=1, dtype="float64")

    def forward(self, x, train=None):
        normal, kept = self.norm.forward(x, train)
        logits, saved = self.head.forward(np.ascontiguousarray(normal[:, -1]), train)
        return logits, [kept, saved, x.shape]

    def backward(self, dy, saved):
        kept, of_head, shape = saved
        dx = np.zeros(shape)
        dx[:, -1] = self.head.backward(dy, of_head)
        return self.norm.backward(dx, kept)


x = rng.standard_normal((2 * size + 1, 4, 6)) + 5.0
one = stepped(Positions, lambda model: SGD(model, lr=0.1), [parts_of(x, targets, len(x))])
assert_close(one, stepped(Positions, lambda model: SGD(model, lr=0.1), [parts_of(x, targets, len(x))], communicator))

few = TrainingOptions(batch=4 * size - 1, accumulate=2)
with pytest.raises(ConfigError, match=rf"got a batch of {4 * size - 1} in 2 parts on {size} ranks"):
    Ranks(normed(BatchNorm)(), communicator).check_parts(few)
Ranks(gpt(), communicator).check_parts(few)
Ranks(normed(BatchNorm)(), communicator).check_parts(TrainingOptions(batch=4 * size, accumulate=2))

# ---------------------------------------------------------------------------------------------------- agreement

for about, says in (
    ({"lr": 0.5 if rank == last else 0.1}, f"rank {last} has lr 0.5 and rank 0 0.1"),
    ({"data": f"digest {min(rank, 1)}"}, "rank 1 has data 'digest 1' and rank 0 'digest 0'"),
    ({"gpulayers": "0.0.1" if rank else "0.0.2"}, "rank 1 has gpulayers '0.0.1' and rank 0 '0.0.2'"),
):
    with pytest.raises(ParallelError if rank == 0 else Elsewhere) as caught:
        agree(communicator, **about)
    if rank == 0:
        assert str(caught.value) == f"{says}: all ranks take the same versions, options and data"
agree(communicator, lr=math.inf, data="the same")
assert Ranks(gpt(), communicator).largest(15 if rank == last else 0) == 15

drifted = np.ones(5)
drifted[3] += 1e-16 if rank == last else 0.0
Ranks(gpt(), communicator).check_same(drifted, 3)  # 1 + 1e-16 is 1
drifted[3] += 1e-15 if rank == last else 0.0
with pytest.raises(ParallelError if rank == 0 else Elsewhere) as caught:
    Ranks(gpt(), communicator).check_same(drifted, 3)
if rank == 0:
    assert f"at step 3 rank {last} has other parameters than rank 0" in str(caught.value)
