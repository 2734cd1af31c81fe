"""No float64 array appears in a float32 step: NumPy scalars promote in silence, and an array of twice the bytes does
not change a number that other tests look at."""

import numpy as np
import pytest
from watch import Watch

import gpulayers as gl
from gpulayers.layers import GRU, LSTM, RNN
from gpulayers.models.gpt import GPT, GPTConfig
from gpulayers.optim import SGD, AdamW
from gpulayers.step import Train
from gpulayers.training.loop import train_step
from gpulayers.training.tasks import Part


def step(model, optimizer, rng):
    ids, targets = rng.integers(0, 11, (2, 4, 16))
    train_step(model, optimizer, [Part(0, (ids[:2],), targets[:2]), Part(2, (ids[2:],), targets[2:])], seed=0, k=0)


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("rule", [SGD, AdamW])
def test_gpt(rotary, rule, rng):
    config = GPTConfig(vocab=11, context=16, layers=2, heads=2, dim=16, kv_heads=1, dropout=0.1, rotary=rotary)
    model = GPT(config, seed=0)
    optimizer = rule(model, lr=0.1, weight_decay=0.1, l1=0.1, clip_norm=1.0, clip_value=1.0)
    step(model, optimizer, rng)  # tables of positions are computed in float64, once
    with Watch() as watch:
        step(model, optimizer, rng)
    assert not watch.found


@pytest.mark.parametrize("kind", [RNN, GRU, LSTM])
def test_recurrent(kind, rng):
    layer, x = kind(5, 7, 2, bidirectional=True, dropout=0.1, rng=0), rng.normal(size=(3, 4, 5)).astype(np.float32)
    with Watch() as watch:
        (y, last), saved = layer.forward(x, lengths=[4, 0, 2], train=Train(1, 2))
        layer.backward((y, last), saved)
        layer(x)
    assert not watch.found


def test_the_watch_sees_float64(rng):
    model = GPT(GPTConfig(vocab=11, context=16, layers=1, heads=2, dim=16), seed=0, dtype="float64")
    with Watch() as watch:
        step(model, AdamW(model), rng)
    for file in ("linear.py", "attention.py", "layernorm.py", "cross_entropy.py", "adam.py"):
        assert any(found.startswith(file) for found in watch.found), file


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses(reduction, rng):
    x, target, row = (rng.uniform(0.1, 0.9, shape).astype(np.float32) for shape in ((40, 5), (40, 5), (5,)))
    ids, signs = rng.integers(0, 5, 40), rng.choice([-1, 1], 40)
    options = {"reduction": reduction, "scale": np.array(2, np.float32)}
    weighted = {**options, "weight": row}
    with Watch() as watch:
        for targets in (ids, target):
            gl.cross_entropy(x, targets, label_smoothing=0.1, z_loss=0.1, softcap=5.0, **weighted)
        gl.nll_loss(x, ids, **weighted)
        gl.binary_cross_entropy_with_logits(x, target, pos_weight=row, **weighted)
        for loss in (gl.mse_loss, gl.l1_loss, gl.huber_loss, gl.binary_cross_entropy):
            loss(x, target, **weighted)
        gl.smooth_l1_loss(x, target, **options)
        for log_target in (False, True):
            gl.kl_div(x, target, log_target=log_target, **options)
        gl.hinge_embedding_loss(x, np.broadcast_to(signs[:, None], x.shape), **options)
        gl.cosine_embedding_loss(x, target, signs, **options)
    assert not watch.found
