"""The Transformer on the emulated device, and on a GPU with `pytest -m gpu`; and no float64 in a float32 step."""

import dataclasses

import numpy as np
import pytest
from devices import on_devices, refuse_waiting
from test_float32_step import Watch
from tolerances import assert_close

import gpulayers as gl
from gpulayers.models.transformer import Transformer, TransformerConfig
from gpulayers.ops.cross_entropy import cross_entropy
from gpulayers.optim import AdamW
from gpulayers.step import Train

TINY = TransformerConfig(13, 13, dim=8, heads=2, layers=1, hidden=12, dropout=0.1, longest=6, tied=True)


def pairs(device="numpy"):
    rng = np.random.default_rng(0)
    source, target = rng.integers(3, 13, (3, 4)), rng.integers(3, 13, (3, 4))
    source[1, 2:], source[2], target[0, 3:], target[:, 0] = 0, 0, 0, 1  # the third source is nothing but padding
    return [gl.to_device(a, device) for a in (source, target[:, :-1].copy(), target[:, 1:].copy())]


def step(model, optimizer, arrays, k):
    source, target, wanted = arrays
    logits, saved = model.forward(source, target, Train(seed=1, step=k))
    loss, dlogits = cross_entropy(logits, wanted, ignore_index=0)
    model.backward(dlogits, saved)
    optimizer.step()
    return loss


def one_step(device, patch=None):
    model = Transformer(TINY, seed=0).to(device)
    optimizer, arrays = AdamW(model, lr=1e-2, clip_norm=1.0), pairs(device)
    if patch is None:
        loss = step(model, optimizer, arrays, 0)
    else:
        model.source(arrays[0])  # a table of sines is brought there once, and waited for
        with patch.context() as within:
            refuse_waiting(within)
            loss = step(model, optimizer, arrays, 0)
    return float(loss), optimizer.grad_norm


@on_devices
def test_a_training_step(device, monkeypatch):
    """The same loss and size of the whole gradient, and the host never waits for the device. `gpulayers verify
    Transformer` compares every gradient."""
    assert_close(one_step(device, monkeypatch), one_step("numpy"), "float32", factor=5)


@on_devices
def test_decoding(device):
    here, there = Transformer(TINY, seed=0), Transformer(TINY, seed=0).to(device)
    (source, target, _), (source_there, target_there, _) = pairs(), pairs(device)
    state, state_there = here.start(source), there.start(source_there)
    for t in range(3):
        logits, state = here.step(target[:, t], state)
        logits_there, state_there = there.step(target_there[:, t], state_there)
        assert_close(logits_there.get(), logits, "float32", factor=5)
    weights = there.attention(source_there, target_there)
    assert_close(weights.get(), here.attention(source, target), "float32", factor=5)


@pytest.mark.parametrize("changes", [{}, {"norm_first": False, "tied": False, "positions": "learned"}])
def test_no_float64_in_a_float32_step(changes):
    model = Transformer(dataclasses.replace(TINY, **changes), seed=0)
    optimizer = AdamW(model, lr=1e-2, clip_norm=1.0)
    step(model, optimizer, pairs(), 0)  # the table of sines is computed in float64, once
    with Watch() as watch:
        step(model, optimizer, pairs(), 1)
        state = model.start(pairs()[0])
        model.step(pairs()[1][:, 0], state)
    assert not watch.found
