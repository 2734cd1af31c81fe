import gc
import weakref
from copy import deepcopy

import numpy as np
import pytest

from gpulayers.layers.batchnorm import BatchNorm
from gpulayers.layers.linear import Linear
from gpulayers.layers.sequential import Sequential
from gpulayers.models.gpt import GPT, GPTConfig
from gpulayers.optim import AdamW
from gpulayers.parameter import pack
from gpulayers.replica import original, replica
from gpulayers.step import Train


def gpt():
    return GPT(GPTConfig(vocab=11, context=8, layers=2, heads=2, dim=8), seed=0)


def test_data_is_shared_and_gradients_are_not():
    model = gpt()
    copy = replica(model)
    for (name, own), (other_name, its) in zip(model.named_parameters(), copy.named_parameters(), strict=True):
        assert name == other_name
        assert own is not its
        assert np.shares_memory(own.data, its.data)
        own.grad.fill(1)
        assert not its.grad.any()
    own, its = pack(model), pack(copy)
    assert own is not its
    assert own.data is its.data
    assert [s[2:] for s in own.segments] == [s[2:] for s in its.segments]
    assert not np.shares_memory(own.grad, next(copy.parameters()).grad)
    with pytest.raises(AttributeError, match="no flat array"):
        _ = its.grad


def test_a_tie_stays_tied():
    copy = replica(gpt())
    names = [name for name, _ in copy.named_parameters()]
    assert len(names) == len({id(p) for p in copy.parameters()}) == len(list(gpt().named_parameters()))
    logits, saved = copy.forward(np.arange(6).reshape(1, 6), train=Train())
    copy.backward(np.ones_like(logits), saved)
    assert copy.wte.weight.grad.any()  # of the look-up and of the head


def test_a_replica_computes_what_the_model_does_and_sees_its_updates(rng):
    model = gpt()
    copy, optimizer, ids = replica(model), AdamW(model, lr=0.1), rng.integers(0, 11, (2, 8))
    before = model(ids)
    assert np.array_equal(copy(ids), before)
    for one in (model, copy):
        logits, saved = one.forward(ids, train=Train())
        one.backward(np.ones_like(logits), saved)
    for own, its in zip(model.parameters(), copy.parameters(), strict=True):
        assert np.array_equal(own.grad, its.grad)
    optimizer.step()
    assert not np.array_equal(copy(ids), before)
    assert np.array_equal(copy(ids), model(ids))
    assert copy.wte.weight.grad.any()  # its own: who adds it up clears it


def test_sums_pair_every_gradient_of_a_replica_with_the_models_and_take_no_memory_afterwards(rng):
    model = gpt()
    model.blocks[0].ln_1.bias.trainable = False
    copy, ids = replica(model), rng.integers(0, 11, (2, 8))
    logits, saved = copy.forward(ids, train=Train())
    copy.backward(np.ones_like(logits), saved)
    wanted = [p.grad.copy() for p in copy.parameters()]
    pack(model).grad.fill(1)
    for total, more in pack(copy).sums(5):
        assert total.shape == more.shape
        assert 1 <= len(total) <= 5
        total += more
    for own, its in zip(model.parameters(), wanted, strict=True):
        assert np.array_equal(own.grad, 1 + its)
    pack(copy).zero_grad()
    assert list(pack(copy).sums(5)) == []
    assert all(p._grad is None for p in copy.parameters())


def test_masters_are_shared():
    model = Linear(2, 2, rng=0, dtype="float16")
    AdamW(model)
    copy = replica(model)
    assert pack(copy).master is pack(model).master
    assert np.shares_memory(copy.weight.values, model.weight.values)
    assert copy.weight.values.dtype == np.float32


def test_queues_are_its_own_until_they_are_taken(rng):
    model = Sequential(Linear(3, 4, rng=0), BatchNorm(4))
    copy = replica(model)
    own, its = list(model.buffers()), list(copy.buffers())  # mean, variance, batches
    assert all(a is not b and a.data is b.data for a, b in zip(own, its, strict=True))
    y, saved = copy.forward(rng.standard_normal((5, 3), np.float32), train=Train())
    copy.backward(y, saved)
    model.commit()
    assert own[2].data == 0
    for a, b in zip(own, its, strict=True):
        a.take(b)
    copy.commit()
    assert own[2].data == 0
    model.commit()
    assert own[0].data.any()
    assert own[2].data == 1


def test_layers_know_their_originals():
    model = gpt()
    copy = replica(model)
    pairs = zip(model.named_layers(), copy.named_layers(), strict=True)
    assert all(original(its) is own for (_, own), (_, its) in pairs)
    assert original(copy) is model
    assert original(model) is model


def test_a_replica_is_not_kept_alive():
    copy = replica(gpt())
    seen = weakref.ref(copy.wte)
    del copy
    gc.collect()
    assert seen() is None


def test_a_replica_is_not_moved():
    with pytest.raises(RuntimeError, match="a replica cannot be moved: move the model"):
        replica(gpt()).to(dtype="float64")


def test_a_frozen_parameter_is_frozen_in_the_replica():
    model = gpt()
    model.wte.weight.trainable = False
    assert not replica(model).wte.weight.trainable


def test_a_copy_of_a_replica_has_its_gradients(rng):
    one = replica(gpt())
    logits, saved = one.forward(rng.integers(0, 11, (2, 8)), train=Train())
    one.backward(np.ones_like(logits), saved)
    for own, its in zip(one.parameters(), deepcopy(one).parameters(), strict=True):
        assert own.grad.any()
        assert np.array_equal(own.grad, its.grad)
        assert not np.shares_memory(own.grad, its.grad)
