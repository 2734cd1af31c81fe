"""Every op on shapes, layouts, dtypes and options by chance: its bodies agree, and its gradient is the derivative.

More of it: pytest --hypothesis-profile=thorough -n 0 tests/ops/test_any_op.py
"""

import functools
import math
from collections.abc import Iterator

import numpy as np
import pytest
import rules
from anything import Draw
from contract import check_signatures
from hypothesis import given
from hypothesis import strategies as st

from gpulayers.masks import causal_mask
from gpulayers.ops.activation import FORMULAS, activation, activation_backward
from gpulayers.ops.adafactor import adafactor
from gpulayers.ops.adam import adam
from gpulayers.ops.add import add
from gpulayers.ops.additive_scores import additive_scores, additive_scores_backward
from gpulayers.ops.attention import attention, attention_backward
from gpulayers.ops.batchnorm import batchnorm, batchnorm_backward, batchnorm_statistics, batchnorm_update
from gpulayers.ops.cosine_embedding import cosine_embedding
from gpulayers.ops.cross_entropy_rows import cross_entropy_rows
from gpulayers.ops.dropout import dropout
from gpulayers.ops.elementwise import multiply
from gpulayers.ops.embedding import embedding, scatter_add
from gpulayers.ops.gelu import gelu, gelu_backward, gelu_with_derivative, gelu_with_derivative_inplace
from gpulayers.ops.glu import GATES, glu, glu_backward
from gpulayers.ops.groupnorm import groupnorm, groupnorm_backward
from gpulayers.ops.gru_cell import gru_cell, gru_cell_backward
from gpulayers.ops.layernorm import add_layernorm, layernorm, layernorm_backward
from gpulayers.ops.lstm_cell import lstm_cell, lstm_cell_backward
from gpulayers.ops.masked_softmax import masked_softmax, masked_softmax_backward
from gpulayers.ops.matmul import product
from gpulayers.ops.move import follow, move
from gpulayers.ops.mse import mse
from gpulayers.ops.newton_schulz import newton_schulz
from gpulayers.ops.nll import nll
from gpulayers.ops.op import Op
from gpulayers.ops.pointwise_loss import FORMULAS as LOSSES
from gpulayers.ops.pointwise_loss import pointwise_loss
from gpulayers.ops.relu import leaky_relu, leaky_relu_backward, prelu, prelu_backward, relu, relu_backward
from gpulayers.ops.rmsnorm import rmsnorm, rmsnorm_backward
from gpulayers.ops.rnn_cell import rnn_cell, rnn_cell_backward
from gpulayers.ops.rotary import rotary, rotary_tables
from gpulayers.ops.sgd import sgd
from gpulayers.ops.sigmoid import sigmoid, sigmoid_backward, silu, silu_with_derivative, tanh, tanh_backward
from gpulayers.ops.soft_cross_entropy import soft_cross_entropy
from gpulayers.ops.softcap import softcap, softcap_backward
from gpulayers.ops.softmax import (
    log_softmax,
    log_softmax_backward,
    softmax,
    softmax_backward,
    softmin,
    softmin_backward,
)
from gpulayers.ops.sum_of_squares import sum_of_squares
from gpulayers.ops.sum_rows import sum_rows
from gpulayers.ops.swap_time import swap_time
from gpulayers.ops.update_control import update_control
from gpulayers.step import Key
from gpulayers.verify import find_ops
from gpulayers.verify import ops as verify
from gpulayers.verify.case import STORAGES, Case, Function, GradientCase, OpCase, exact, written
from gpulayers.verify.cases.attention import attention_gradient, normalised
from gpulayers.verify.cases.elementwise import NUMBERS
from gpulayers.verify.cases.inputs import KINKS, away_from_kinks
from gpulayers.verify.cases.losses import pair
from gpulayers.verify.cases.normalisation import spread, terms
from gpulayers.verify.cases.optimizers import control_args
from gpulayers.verify.cases.recurrent_cells import STEP, GRUStep, LSTMStep, RNNStep
from gpulayers.verify.layers import check_gradient

EPS = 1e-5
CANCELS = "a difference of terms that may cancel: `scale` is their magnitude"
SUMS = "a sum of products"
Cases = Iterator[Case]


def case(op: Op, *args, name="any", **more) -> OpCase:
    return OpCase(op=op, name=name, args=args, why=CANCELS, **more)


def gradient(ops: tuple[Op, ...], forward, backward, *inputs: np.ndarray) -> GradientCase:
    """forward(*inputs) -> (y, saved); backward(dy, saved)."""
    inputs = tuple(x.astype(np.float64) for x in inputs)
    return GradientCase(ops=ops, name="any", function=Function(forward, backward), inputs=inputs)


def size_of(x: np.ndarray) -> float:
    return float(np.abs(x).max(initial=0))


# ---------------------------------------------------------------------------------------- elementwise and along rows


def of_output(forward: Op, backward: Op, d: Draw) -> Cases:
    """Activations and softmax whose backward takes the output."""
    x = d.away(*d.sizes("nm", most=33))
    y, dy = forward.reference(x), d.x(*x.shape)
    yield case(forward, x)
    # 1 - y^2 of a saturated y, and dy - sum(dy y), are differences of terms that cancel.
    yield case(
        backward, dy, y, scale=0.0 if forward is relu else size_of(dy), factor=3 if "soft" in forward.name else 1
    )
    if x.size:
        yield gradient((forward, backward), lambda x: (y := forward(x), y), backward, x)


def leaky_relus(d: Draw) -> Cases:
    x, slope = d.away(*d.sizes("nm")), d.pick("slope", 0.2, 0.0, 1.5, -1.0)
    dy, weight = d.x(*x.shape), d.x(d.pick("slopes", 1, x.shape[1]))
    yield case(leaky_relu, x, slope)
    yield case(leaky_relu_backward, dy, x, slope)
    if weight.size:
        yield case(prelu, x, weight)
        yield case(prelu_backward, dy, x, weight, scale=1 + np.abs(dy * x).sum(), factor=3)
    if x.size:
        back = leaky_relu_backward
        ops = (leaky_relu, back)
        yield gradient(ops, lambda x: (leaky_relu(x, slope), x), lambda dy, x: back(dy, x, slope), x)

        def forward(x, w):
            return (prelu(x, w), (x, w))

        yield gradient((prelu, prelu_backward), forward, lambda dy, saved: prelu_backward(dy, *saved), x, weight)


def gelus(d: Draw) -> Cases:
    x, how = d.x(*d.sizes("nm"), std=2), d.pick("approximate", "none", "tanh")
    dy, bias = d.x(*x.shape), d.pick("bias", None, d.x(x.shape[1]))
    for op in (gelu, gelu_with_derivative):
        yield case(op, x, bias, how)
    yield case(gelu_with_derivative_inplace, written(x), bias, how)
    yield case(gelu_backward, dy, x, bias, how)
    yield case(silu, x)
    yield case(silu_with_derivative, x)
    yield case(multiply, dy, x)
    if x.size:
        ops, back = (gelu, gelu_backward), lambda dy, x: gelu_backward(dy, x, None, how)
        yield gradient(ops, lambda x: (gelu(x, None, how), x), back, x)
        for op in (lambda x: gelu_with_derivative(x, None, how), silu_with_derivative):
            yield gradient((multiply,), op, multiply, x)


def activations(d: Draw) -> Cases:
    kind = d.pick("kind", *FORMULAS)
    numbers = NUMBERS.get(kind, ())
    x = away_from_kinks(d.away(*d.sizes("nm"), kinks=KINKS)).astype(np.float32)
    yield case(activation, kind, x, *numbers)
    yield case(activation_backward, kind, d.x(*x.shape), x, *numbers)
    if x.size:

        def back(dy, x):
            return activation_backward(kind, dy, x, *numbers)

        yield gradient((activation, activation_backward), lambda x: (activation(kind, x, *numbers), x), back, x)


def gates(d: Draw) -> Cases:
    (n, m), gate = d.sizes("nm"), d.pick("gate", *GATES)
    x = d.x(n, 2 * m)
    yield case(glu, x, gate)
    yield case(glu_backward, d.x(n, m), x, gate)
    if x.size:

        def back(dy, x):
            return glu_backward(dy, x, gate)

        yield gradient((glu, glu_backward), lambda x: (glu(x, gate), x), back, x)


def sums(d: Draw) -> Cases:
    n, k, m = d.sizes("nkm")
    a, b, bias, row = d.x(n, k), d.x(k, m), d.x(m), d.x(k)
    more = {"scale": math.sqrt(k) + 1, "factor": 3}
    yield case(add, a, d.pick("added", row, d.x(n, k)))
    yield case(sum_rows, a, scale=np.abs(a).sum(axis=0).max(initial=1))
    yield case(product, a, b, options={"bias": d.pick("bias", None, bias)}, **more)
    out = written(np.full((n, 2 * m), 7, np.float32), view=lambda a: a[:, :m])
    yield case(product, a, b, name="into a view", options={"out": out}, **more)
    yield case(product, d.x(2, 3, n, k), d.pick("batch", d.x(2, 3, k, m), d.x(3, k, m), b), name="batch", **more)
    if n * k * m:

        def back(dy, s):
            return (product(dy, s[1].T), product(s[0].T, dy), sum_rows(dy))

        yield gradient((sum_rows, product), lambda a, b, c: (product(a, b, bias=c), (a, b)), back, a, b, bias)
        yield gradient((add,), lambda a, b: (add(a, b), None), lambda dy, _: (dy, sum_rows(dy)), a, row)


def tables(d: Draw) -> Cases:
    V, D, n = d.size("V", 1), d.size("D", 1), d.size("n")
    ids, table, padding = d.ids((n,), V), d.x(V, D), d.pick("padding_idx", None, 0, V - 1)
    yield case(embedding, d.pick("ids", ids, d.ids((2, n), V)), table)
    yield case(scatter_add, d.x(n, D), ids, written(d.x(V, D)), padding, scale=math.sqrt(n), factor=4)

    def back(dy, table):
        return scatter_add(dy, ids, np.zeros_like(table))

    yield gradient((embedding, scatter_add), lambda table: (embedding(ids, table), table), back, table)


def key(d: Draw) -> Key:
    return Key(*(int(n) for n in d.rng.integers(0, 1 << np.array([40, 40, 20, 40]))))


def dropouts(d: Draw) -> Cases:
    x, p, where = d.x(*d.sizes("nm")), d.pick("p", 0.3, 0.0, 1.0, 0.97), key(d)
    yield case(dropout, x, where, p, zeros=True)
    if x.size:
        yield gradient((dropout,), lambda x: (dropout(x, where, p), None), lambda dy, _: dropout(dy, where, p), x)


# ---------------------------------------------------------------------------------------- norms


def layernorms(d: Draw) -> Cases:
    n, cols = d.size("n"), d.size("cols", 1)
    x, dy, more = (d.x(n, cols, mean=0.5) for _ in range(3))
    w, b = d.pick("affine", (d.x(cols), d.x(cols)), (None, None), (d.x(cols), None))
    x, f = (np.clip(np.round(8 * a) / 8, -8, 8) for a in (x, more))  # their sum needs no rounding in any type
    _, mean, rstd = layernorm.reference(x, w, b, EPS)
    yield case(layernorm, x, w, b, EPS, scale=1)
    yield case(add_layernorm, x, f, w, b, EPS, scale=1)
    args = (dy, x, exact(mean), exact(rstd), w, d.pick("residual", None, more))
    yield case(layernorm_backward, *args, scale=terms(rstd, dy, w) * 3, factor=2)
    rms = rmsnorm.reference(x, w, EPS)[1]
    yield case(rmsnorm, x, w, EPS)
    yield case(rmsnorm_backward, dy, x, exact(rms), w, scale=terms(rms, dy, w) * 3, factor=2)
    if n:
        x, w = d.x(n, cols, std=2, same=False), d.x(cols)

        def both(x, f, w, b):
            total, y, mean, rstd = add_layernorm(x, f, w, b, EPS)
            return (total, y), (total, mean, rstd, w)

        def back(dy, saved):
            dx, dw, db = layernorm_backward(dy[1], *saved, dy[0])
            return dx, dx, dw, db

        yield gradient((layernorm_backward, add_layernorm), both, back, x, f, w, w)

        def rms_norm(x, w):
            y, rstd = rmsnorm(x, w, EPS)
            return y, (x, rstd, w)

        yield gradient((rmsnorm, rmsnorm_backward), rms_norm, lambda dy, saved: rmsnorm_backward(dy, *saved), x, w)


def batchnorms(d: Draw) -> Cases:
    n, cols, fixed = d.size("n"), d.size("cols", 1), d.flag("running statistics")
    x, dy = d.x(n, cols, mean=1, std=2, same=False), d.x(n, cols)
    w, b = d.pick("affine", (d.x(cols), d.x(cols)), (None, None))
    mean, var = d.x(cols), np.abs(d.x(cols)) + np.float32(0.1)
    if n:
        yield case(batchnorm_statistics, x, scale=1, factor=2)
        mean, var = (mean, var) if fixed else (a.astype(np.float32) for a in batchnorm_statistics.reference(x))
    args = (exact(mean), exact(var), w)
    yield case(batchnorm, x, *args, b, EPS, scale=spread(x, mean, var, w))
    scale = terms(1 / np.sqrt(var + EPS), dy * spread(x, mean, var), w)
    yield case(batchnorm_backward, dy, x, *args, EPS, fixed, scale=scale * max(1, math.sqrt(n)), factor=3)
    running = (written(d.x(cols), exact=True), written(d.x(cols), exact=True), written(np.array([3])))
    control = d.pick("control", None, *(exact(np.array([apply] + 5 * [0], np.float32)) for apply in (0, 1)))
    new = exact(mean), exact(var)
    yield case(batchnorm_update, *running, *new, max(2, n), d.pick("momentum", 0.1, None, 1.0), control, scale=1)
    if n:

        def norm(x, w, b):
            mean, var = (np.linspace(-1, 1, cols), np.linspace(1, 3, cols)) if fixed else batchnorm_statistics(x)
            return batchnorm(x, mean, var, w, b, EPS), (x, mean, var, w, EPS, fixed)

        ops = (batchnorm_statistics, batchnorm, batchnorm_backward)
        yield gradient(ops, norm, lambda dy, saved: batchnorm_backward(dy, *saved), x, d.x(cols), d.x(cols))


def groupnorms(d: Draw) -> Cases:
    N, L, groups, each = d.size("N", most=7), d.size("L"), d.size("groups", 1, 4), d.size("each", 1, 5)
    C = groups * each
    x, dy = d.x(N, C, L, mean=1, std=2, same=False), d.x(N, C, L)
    w, b = d.pick("affine", (d.x(C), d.x(C)), (None, None))
    mean, var = groupnorm.reference(x, None, None, groups, EPS)[1:]
    yield case(groupnorm, x, w, b, groups, EPS, scale=1)
    scale = terms(1 / np.sqrt(var + EPS), dy, None if w is None else w[:, None])
    args = (dy, x, exact(mean), exact(var), w, EPS)
    yield case(groupnorm_backward, *args, scale=scale * max(1, math.sqrt(N * L)), factor=3)
    if x.size:

        def norm(x, w, b):
            y, mean, var = groupnorm(x, w, b, groups, EPS)
            return y, (x, mean, var, w, EPS)

        ops, back = (groupnorm, groupnorm_backward), lambda dy, saved: groupnorm_backward(dy, *saved)
        yield gradient(ops, norm, back, x, d.x(C), d.x(C))


# ---------------------------------------------------------------------------------------- attention


def masked_softmaxes(d: Draw) -> Cases:
    shape = (d.size("B", 0, 3), d.size("H", 1, 3), d.size("T", most=5), d.size("S", most=7))
    scores, dw, hide = d.x(*shape, std=3), d.x(*shape), d.mask(*shape)
    how = (hide, d.pick("scale", 0.7, 2.0), d.flag("causal"))
    weights, cap = masked_softmax.reference(scores, *how), d.pick("softcap", 0.0, 2.0)
    hidden = np.broadcast_to(causal_mask(*shape[2:]) if how[2] else False, shape) | (False if hide is None else hide)
    poisoned = np.where(hidden, np.float32(np.nan), scores)
    yield case(masked_softmax, poisoned, *how, cap, zeros=True, factor=3)
    scale = size_of(dw) * how[1]
    yield case(masked_softmax_backward, dw, weights, *how, factor=3, scale=scale, zeros=True)
    yield case(softcap, scores, 2.0)
    yield case(softcap_backward, scores, exact(dw), 2.0, False)
    if scores.size:
        ops, back = (masked_softmax, masked_softmax_backward), lambda dw, w: masked_softmax_backward(dw, w, *how)
        yield gradient(ops, lambda x: (w := masked_softmax(x, *how), w), back, scores)

        def cap_back(dy, x):
            return softcap_backward(x, dy, 2.0, False)

        yield gradient((softcap, softcap_backward), lambda x: (softcap(x, 2.0), x), cap_back, scores)


def attentions(d: Draw) -> Cases:
    B, K, group, T, S = (
        d.size(n, low, high) for n, low, high in zip("BKgTS", (0, 1, 1, 0, 0), (3, 2, 3, 7, 7), strict=True)
    )
    q, k, v = d.x(B, T, K * group, n := d.size("d", 1, 5)), d.x(B, S, K, n), d.x(B, S, K, m := d.size("dv", 1, 5))
    dout, p, cap = d.x(B, T, K * group, m), d.pick("p", 0.0, 0.3), d.pick("softcap", 0.0, 1.5)
    how = (d.mask(B, K * group, T, S), d.flag("causal"), n**-0.5, p, key(d) if p else None)
    yield case(attention, q, k, v, *how, options={"softcap": cap}, compared=normalised, scale=1, factor=3)
    out, weights, inverse = attention.reference(q, k, v, *how, softcap=cap)
    into = tuple(written(np.full(x.shape, np.nan, np.float32)) for x in (q, k, v))
    args = (dout, q, k, v, out, weights, None if inverse is None else exact(inverse), *how, *into)
    yield case(attention_backward, *args, options={"softcap": cap}, factor=4, scale=size_of(dout))
    if q.size and k.size:
        yield attention_gradient("any", (q, k, v), how, cap)


def positions(d: Draw) -> Cases:
    B, T, H, half = d.size("B", most=3), d.size("T", most=7), d.size("H", 1, 3), d.size("half", 1, 5)
    x, start = d.x(B, T, H, 2 * half), d.pick("start", 0, 3, 100000)
    cos, sin = rotary_tables(T, 2 * half, 10000.0, x, start)
    yield case(rotary, x, exact(cos), exact(sin), scale=1)
    out = written(np.full(x.shape, np.nan, np.float32))
    yield case(rotary, x, exact(cos), exact(sin), name="into out", options={"out": out}, scale=1)
    if x.size:
        cos, sin = rotary_tables(T, 2 * half, 10000.0, np.zeros(1), start)
        yield gradient((rotary,), lambda x: (rotary(x, cos, sin), None), lambda dy, _: rotary(dy, cos, -sin), x)


def additive(d: Draw) -> Cases:
    B, T, S, A = d.size("B", most=3), *d.sizes("TS"), d.size("A", 1)
    query, keys, v = d.x(B, T, A), d.x(B, S, A), d.x(A)
    yield case(additive_scores, query, keys, v, scale=math.sqrt(A))
    u, ds = additive_scores.reference(query, keys, v)[1], d.x(B, T, S)
    scale = 1 + np.abs(ds).sum()
    yield case(additive_scores_backward, ds, u, v, scale=min(scale, 30.0), factor=3)
    if u.size:

        def run(q, k, v):
            return ((s := additive_scores(q, k, v))[0], (s[1], v))

        ops = (additive_scores, additive_scores_backward)
        yield gradient(ops, run, lambda ds, saved: additive_scores_backward(ds, *saved), query, keys, v)


# ---------------------------------------------------------------------------------------- recurrent


def recurrent(d: Draw) -> Cases:
    B, H = d.size("B", most=7), d.size("H", 1)
    lengths = exact(d.rng.integers(0, 4, B).astype(np.int32)) if d.flag("lengths") else None
    h, c, *sums = (d.x(B, H) for _ in range(6))
    dy, direct, back, dc = (d.pick("gradient", a, None) for a in sums)
    dy = sums[0] if dy is direct is back is None else dy
    at, f, bias = (lengths, STEP), d.pick("f", "tanh", "relu"), d.pick("bias", d.x(H), None)
    gi, gh = d.x(B, 4 * H), d.x(B, 4 * H)
    yield case(rnn_cell, gi[:, :H], gh[:, :H], h, f, *at)
    yield case(rnn_cell_backward, dy, direct, back, rnn_cell(gi[:, :H], gh[:, :H], h, f), f, *at, scale=1)
    args = (gi[:, : 3 * H], gh[:, : 3 * H], bias, h)
    yield case(gru_cell, *args, *at)
    yield case(gru_cell_backward, dy, direct, back, *gru_cell(*args)[1:], h, *at, scale=1)
    yield case(lstm_cell, gi, gh, h, c, *at)
    _, c_new, gates = lstm_cell(gi, gh, h, c)
    yield case(lstm_cell_backward, dy, direct, back, dc, gates, c, c_new, *at, scale=1)
    if B:
        plain = None if lengths is None else lengths.array
        wide = [a.astype(np.float64) for a in (gi, gh, h, c)]
        gi, gh, h, c = wide
        three = (gi[:, : 3 * H], gh[:, : 3 * H], d.rng.normal(size=H), h)
        for ops, function, inputs in (
            ((rnn_cell, rnn_cell_backward), RNNStep("tanh", plain), (gi[:, :H], gh[:, :H], h)),
            ((gru_cell, gru_cell_backward), GRUStep(plain), three),
            ((lstm_cell, lstm_cell_backward), LSTMStep(plain), (gi, gh, h, c)),
        ):
            yield GradientCase(ops=ops, name="any", function=function, inputs=inputs)


def times(d: Draw) -> Cases:
    B, T, C, forth = *d.sizes("BT"), d.size("C", 1), d.flag("batch_first")
    lengths = d.rng.integers(0, T + 1, B).astype(np.int32) if d.flag("lengths") else None
    x = d.x(*((B, T, C) if forth else (T, B, C)))
    yield case(swap_time, x, None if lengths is None else exact(lengths), forth, zeros=True)
    if x.size:
        how = (lambda x: (swap_time(x, lengths, forth), None), lambda dy, _: swap_time(dy, lengths, not forth))
        yield gradient((swap_time,), *how, x)


# ---------------------------------------------------------------------------------------- losses


def scalar(d: Draw):
    """The scale of "mean", a scalar in device memory, or none."""
    return d.pick("scale", None, exact(np.array(0.25, np.float32)))


def class_losses(d: Draw) -> Cases:
    n, V = d.size("n"), d.size("V", 1)
    x, targets = d.x(n, V, std=3), d.rng.integers(0, V, n)
    targets[d.rng.random(n) < d.pick("ignored", 0.2, 0.0, 1.0)] = -100
    weight = d.pick("weight", None, exact(d.rng.choice([0, 0.5, 2], V).astype(np.float32)))
    smooth, z, inplace = d.pick("smoothing", 0.0, 0.1, 1.0), d.pick("z_loss", 0.0, 1e-2), d.flag("inplace")
    logits = written(x) if inplace else x
    yield case(cross_entropy_rows, logits, targets, weight, scalar(d), -100, smooth, z, inplace, scale=1)
    soft = d.rng.choice([0, 0.25, 0.5], (n, V)).astype(np.float32)
    soft[:, 3:] = 0  # a sum of about 1
    yield case(soft_cross_entropy, logits, soft, weight, scalar(d), smooth, z, inplace, scale=1, factor=2)
    yield case(nll, d.x(n, V, mean=-3), targets, weight, scalar(d), -100)


def pointwise_losses(d: Draw) -> Cases:
    kind, shape = d.pick("kind", *LOSSES), (d.size("n"),)
    x, target = pair(d.rng, kind, *shape)
    row = exact(d.rng.uniform(0.5, 2, shape).astype(np.float32))
    weight, pos = (d.pick(name, None, row) for name in ("weight", "pos_weight"))
    pos = pos if kind == "bce_logits" else None
    args = (kind, x, target, weight, pos, d.pick("parameter", 0.5, 1.0), 0.25, scalar(d), d.flag("each"))
    yield case(pointwise_loss, *args, scale=0.5, factor=2)
    yield case(mse, x, target, 0.25, scalar(d))
    cols = d.size("cols", 1)
    x1, x2, sign = d.x(*shape, cols, mean=0.25), d.x(*shape, cols), d.rng.choice([-1, 1], shape).astype(np.float32)
    norms = np.sqrt((x1 * x1).sum(axis=1)).min(initial=1)
    args = (x1, x2, sign, d.pick("margin", -0.5, 0.0), 0.5, scalar(d))
    yield case(cosine_embedding, *args, scale=float(1 + 1 / max(norms, 1e-2)), factor=3)


# ---------------------------------------------------------------------------------------- optimizers


def control(d: Draw):
    numbers = rules.STEP._replace(limit=d.pick("limit", math.inf, 0.25), scale=d.pick("divisor", 0.5, -0.5))
    return exact(np.array(d.pick("apply", numbers, rules.SKIP), np.float32))


def finish(d: Draw, p, g) -> tuple:
    """The gradient, and with which last arguments: a copy in storage type and a cleared gradient, or neither."""
    return (written(g), {"copy": written(p), "clear": True}) if d.flag("copy, clear") else (g, {})


def updates(d: Draw) -> Cases:
    n = d.size("n")
    p, m, g, v = d.x(n), d.x(n), d.x(n), d.rng.uniform(0.1, 2, n).astype(np.float32)
    decay = {"weight_decay": d.pick("weight_decay", 0.1, 0.0), "l1": d.pick("l1", 0.0, 0.01)}
    last, more = finish(d, p, g)
    betas = {"lr_scale": 1.5, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "decoupled": d.flag("decoupled")}
    state = [written(a, exact=True) for a in (p, m, v)]
    yield case(adam, *state, last, control(d), options={**betas, **decay, **more}, scale=1)
    kind = {"momentum": d.pick("momentum", 0.9, 0.0), "nesterov": d.flag("nesterov"), "lr_scale": 1.5}
    kind["nesterov"] = kind["nesterov"] and kind["momentum"] > 0
    moment = state[1] if kind["momentum"] else None
    yield case(sgd, state[0], moment, last, control(d), options={**kind, **decay, **more}, scale=1)


def rule_updates(d: Draw) -> Cases:
    name = d.pick("rule", *rules.RULES)
    (p, m, v, w), g = rules.state(name, d.rng, d.size("n"))
    decay = {"weight_decay": d.pick("weight_decay", 0.1, 0.0), "l1": d.pick("l1", 0.0, 0.01)}
    last, more = finish(d, p, g)
    state = (None if a is None else written(a, exact=True) for a in (p, m, v, w))
    options = {**rules.rule(name, decoupled=d.flag("decoupled"), **decay), **more}
    yield case(rules.RULES[name][0], *state, last, control(d), options=options, scale=1)


def directions(d: Draw) -> Cases:
    n, k = d.sizes("nk")
    p, u, numbers = exact(d.x(n)), exact(d.x(n)), control(d)
    trust = [exact(np.array([float((a.array.astype(np.float64) ** 2).sum())])) for a in (p, u)]
    totals = d.pick("trust", (None, None), trust)
    yield case(move, written(p.array, exact=True), u, numbers, 1.5, 0.7, 0.1, *totals, scale=1)
    yield case(follow, written(p.array, exact=True), u, 0.99, d.pick("always", None, numbers), scale=1)
    if n * k:
        x = exact(d.x(n, k, same=False))
        yield case(newton_schulz, x, storages=("float32",), factor=20, scale=1)
        shape = d.pick("shape", (n, k), (n,), (2, n, k))
        state = [written(d.rng.uniform(0.1, 2, s).astype(np.float32), exact=True) for s in adafactor_sizes(shape)]
        state = [None, None, *state] if len(shape) == 1 else [*state, None]
        g = exact(d.x(*shape))
        rest = (1.5, -0.8, 1e-7, 1e-3, 1.0, 0.1, 0.01)
        yield case(adafactor, written(d.x(*shape), exact=True), *state, g, control(d), *rest, scale=1, factor=3)


def adafactor_sizes(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [shape] if len(shape) == 1 else [shape[:-1], (*shape[:-2], shape[-1])]


def norms_and_controls(d: Draw) -> Cases:
    limit = d.pick("limit", None, exact(np.array([0.5])))
    yield case(sum_of_squares, d.x(*d.sizes("nk"), std=d.pick("std", 1.0, 1e3, 1e-6)), limit)
    options = {"clip_norm": d.pick("clip_norm", None, 1.0), "clip_value": d.pick("clip_value", None, 0.5)}
    options |= {"beta1": 0.9, "beta2": 0.99, "rectify": d.flag("rectify"), "maximize": d.flag("maximize")}
    args = control_args(d.pick("total", 25.0, 0.0, math.nan, math.inf), float(d.size("count")))
    yield case(update_control, *args, options=options, storages=("float32",))


RECIPES = {
    functools.partial(of_output, forward, backward): (forward, backward)
    for forward, backward in (
        *((relu, relu_backward), (sigmoid, sigmoid_backward), (tanh, tanh_backward), (softmax, softmax_backward)),
        *((softmin, softmin_backward), (log_softmax, log_softmax_backward)),
    )
} | {
    leaky_relus: (leaky_relu, leaky_relu_backward, prelu, prelu_backward),
    gelus: (
        *(gelu, gelu_backward, gelu_with_derivative, gelu_with_derivative_inplace),
        *(silu, silu_with_derivative, multiply),
    ),
    activations: (activation, activation_backward),
    gates: (glu, glu_backward),
    sums: (add, sum_rows, product),
    tables: (embedding, scatter_add),
    dropouts: (dropout,),
    layernorms: (layernorm, add_layernorm, layernorm_backward, rmsnorm, rmsnorm_backward),
    batchnorms: (batchnorm_statistics, batchnorm, batchnorm_backward, batchnorm_update),
    groupnorms: (groupnorm, groupnorm_backward),
    masked_softmaxes: (masked_softmax, masked_softmax_backward, softcap, softcap_backward),
    attentions: (attention, attention_backward),
    positions: (rotary,),
    additive: (additive_scores, additive_scores_backward),
    recurrent: (rnn_cell, rnn_cell_backward, gru_cell, gru_cell_backward, lstm_cell, lstm_cell_backward),
    times: (swap_time,),
    class_losses: (cross_entropy_rows, soft_cross_entropy, nll),
    pointwise_losses: (pointwise_loss, mse, cosine_embedding),
    updates: (adam, sgd),
    rule_updates: tuple({op.name: op for op, *_ in rules.RULES.values()}.values()),
    directions: (move, follow, newton_schulz, adafactor),
    norms_and_controls: (sum_of_squares, update_control),
}  # fmt: skip


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: RECIPES[r][0].name)
@given(data=st.data())
def test_any_call(recipe, data):
    """Reference, cpu and the kernel give what float64 gives; what is not to be written is not."""
    draw = Draw(data)
    storage = draw.pick("storage", *STORAGES)
    where = draw.pick("kernels", "numpy", "numpy", "numpy", "emulated")  # a kernel takes 10 to 100 times as long there
    for one in recipe(draw):
        if isinstance(one, GradientCase):
            assert (row := check_gradient(one)).passed, row.note
            continue
        assert one.op in RECIPES[recipe]
        check_signatures(one.op)
        one = OpCase(**{**vars(one), "args": tuple(draw.lay(a) for a in one.args)})
        kind = storage if storage in one.storages else "float32"
        comparison = verify.Comparison(one, kind)
        bodies = [(one.op.reference, "numpy")]
        if where == "emulated":
            bodies.append((one.op.cuda or one.op.reference, where))
        if kind == "float32" and one.op.cpu is not None:
            bodies.append((one.op.cpu, "numpy"))
        for body, device in bodies:
            worst = comparison.with_body(body, device)
            assert worst.error <= worst.tolerance, (one.op.name, kind, body.__name__, device, worst)


def test_no_op_is_left_out():
    missing = find_ops().keys() - {op.name for ops in RECIPES.values() for op in ops}
    assert not missing, f"{missing} have no recipe: write one, and put it in RECIPES"
