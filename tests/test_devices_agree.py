"""The same training run on the CPU and through the kernels."""

import numpy as np
import pytest
from devices import on_devices
from tolerances import assert_close

import gpulayers as gl
from gpulayers.layers.dropout import Dropout
from gpulayers.models.gpt import GPT, GPTConfig
from gpulayers.optim import AdamW, LossScale, make_schedule
from gpulayers.step import Train
from gpulayers.training.loop import train_step
from gpulayers.training.tasks import Part

STEPS, BATCH, CONTEXT, VOCAB, LR = 10, 2, 16, 40, 3e-3
TINY = GPTConfig(vocab=VOCAB, context=CONTEXT, layers=1, heads=2, dim=32, dropout=0.1)


def parts(device: str, k: int) -> list[Part]:
    """Batch k in two micro-batches."""
    ids = np.random.default_rng(k).integers(0, VOCAB, (BATCH, CONTEXT + 1))
    inputs, targets = (gl.to_device(np.ascontiguousarray(a), device) for a in (ids[:, :-1], ids[:, 1:]))
    return [Part(i, (inputs[i : i + 1],), targets[i : i + 1]) for i in range(BATCH)]


def losses(device: str, dtype: str, steps: int = STEPS) -> tuple[list[float], GPT, AdamW]:
    model = GPT(TINY, seed=0, dtype=dtype).to(device)
    scaling = {"loss_scale": LossScale(2048.0)} if dtype == "float16" else {}
    optimizer = AdamW(model, lr=LR, clip_norm=1.0, schedule=make_schedule("cosine", STEPS, 2), **scaling)
    found = [optimizer.read(train_step(model, optimizer, parts(device, k), seed=0, k=k)).loss for k in range(steps)]
    return found, model, optimizer


@pytest.fixture(scope="module")
def on_the_cpu() -> tuple[list[float], GPT, AdamW]:
    return losses("numpy", "float32")


@on_devices
def test_ten_steps_of_a_gpt(device, on_the_cpu):
    expected, model, optimizer = on_the_cpu
    found, there, optimizer_there = losses(device, "float32")
    assert_close(found, expected, "float32")
    assert optimizer_there.applied == optimizer.applied == STEPS
    assert optimizer_there.grad_norm == pytest.approx(optimizer.grad_norm, rel=1e-4)
    for name, value in there.state_dict().items():
        # Adam divides a gradient by its own size: where that is all rounding, as of the keys' bias, so is the update.
        assert np.abs(value - model.state_dict()[name]).max() < LR / 10, name


@on_devices
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_gpt_in_16_bits_follows(device, dtype, on_the_cpu):
    expected, _, _ = on_the_cpu
    found, _, optimizer = losses(device, dtype, steps=2)
    assert_close(found, expected[:2], dtype)
    assert optimizer.applied == 2


@on_devices
@pytest.mark.parametrize("key", [(0, 0, 0), (7, 3, 1), (2**63, 2**33, 5)])
def test_the_same_dropout_bits(device, key):
    x = np.ones((3, 5, 17), np.float32)
    dropout = Dropout(0.3)
    here, _ = dropout.forward(x, Train(*key))
    there, _ = dropout.forward(gl.to_device(x, device), Train(*key))
    assert np.array_equal(here, there.get())
    assert 0 < (here == 0).mean() < 0.6
