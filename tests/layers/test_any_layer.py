"""Every layer but the activations (test_any_activation.py) on sizes, options, layouts and masks by chance.

More of it: pytest --hypothesis-profile=thorough -n 0 tests/layers/test_any_layer.py
"""

import numpy as np
import pytest
from anything import Draw
from contract import check_layer
from hypothesis import given
from hypothesis import strategies as st
from recurrent import Flat

import gpulayers as gl
from gpulayers.verify import find_layers

ACTIVATIONS = {
    *("ReLU", "ReLU6", "LeakyReLU", "PReLU", "Threshold", "Hardtanh", "Hardsigmoid", "Hardswish", "ELU", "SELU"),
    *("CELU", "Sigmoid", "LogSigmoid", "Softplus", "Tanh", "Softsign", "GELU", "SiLU", "Mish", "GLU", "GEGLU"),
    *("SwiGLU", "Softmax", "LogSoftmax", "Softmin"),
}


class Call:
    """What `check_layer` takes."""

    def __init__(self, make, *inputs, train=None, **options):
        self.make, self.inputs, self.train, self.options = make, inputs, train, options


def leading(d: Draw) -> tuple[int, ...]:
    return d.pick("leading", (3,), (), (2, 5), (0,), (2, 1, 3))


def x64(d: Draw, *shape: int, mean: float = 0.0, std: float = 1.0) -> np.ndarray:
    return d.rng.normal(mean, std, shape)


def train(d: Draw) -> gl.Train | None:
    return d.pick("train", None, gl.Train(seed=3, step=7, first_sample=5))


def linear(d: Draw) -> Call:
    n, m, bias = d.size("in", 1), d.size("out", 1), d.flag("bias")
    return Call(lambda: gl.Linear(n, m, bias, rng=0), x64(d, *leading(d), n))


def tied(d: Draw) -> Call:
    n, m = d.size("dim", 1), d.size("vocabulary", 1)
    return Call(lambda: gl.TiedLinear(gl.Embedding(m, n, rng=0).weight), x64(d, *leading(d), n))


def embedding(d: Draw) -> Call:
    V, D = d.size("V", 1), d.size("D", 1)
    ids, unseen = d.ids(leading(d), V), d.flag("padding_idx")  # its row has no gradient, whatever the derivative is
    return Call(lambda: gl.Embedding(V + 1, D, V if unseen else None, rng=0), ids)


def layernorm(d: Draw) -> Call:
    shape = d.pick("shape", (5,), (7,), (2, 3), (33,))
    affine, bias = d.flag("affine"), d.flag("bias")
    return Call(lambda: gl.LayerNorm(shape, elementwise_affine=affine, bias=bias), x64(d, *leading(d), *shape, std=2))


def rmsnorm(d: Draw) -> Call:
    shape, affine = d.pick("shape", (5,), (7,), (2, 3), (33,)), d.flag("affine")
    return Call(lambda: gl.RMSNorm(shape, elementwise_affine=affine), x64(d, *leading(d), *shape, std=2))


def channels(d: Draw, C: int) -> tuple[tuple[int, ...], int]:
    """A shape with C channels, and their axis."""
    return d.pick("shape", ((5, C), -1), ((3, 7, C), -1), ((3, C, 7), 1), ((3, C, 2, 5), 1))


def batchnorm(d: Draw) -> Call:
    C, affine, tracks = d.size("C", 1, 7), d.flag("affine"), d.flag("tracks")
    shape, axis = channels(d, C)

    def make():
        return gl.BatchNorm(C, affine=affine, track_running_stats=tracks, axis=axis)

    return Call(make, x64(d, *shape, mean=1, std=2), train=train(d))


def groupnorm(d: Draw) -> Call:
    groups, each, affine = d.size("groups", 1, 4), d.size("each", 1, 3), d.flag("affine")
    shape, axis = channels(d, groups * each)
    shape = (
        (3, 5, groups * each) if len(shape) == 2 else shape
    )  # a gradient of two values is 0, or nothing but rounding
    return Call(lambda: gl.GroupNorm(groups, groups * each, affine=affine, axis=axis), d.rng.uniform(-2, 4, shape))


def instancenorm(d: Draw) -> Call:
    C, affine, tracks = d.size("C", 1, 7), d.flag("affine"), d.flag("tracks")
    shape, axis = d.pick("shape", ((3, 7, C), -1), ((3, C, 7), 1), ((3, C, 2, 5), 1))

    def make():
        return gl.InstanceNorm(C, affine=affine, track_running_stats=tracks, axis=axis)

    return Call(make, d.rng.uniform(-2, 4, shape), train=train(d))


def dropout(d: Draw) -> Call:
    p = d.pick("p", 0.3, 0.0, 1.0)
    return Call(lambda: gl.Dropout(p), x64(d, *leading(d), d.size("n")), train=train(d))


def attention(d: Draw) -> Call:
    B, T, S, heads = d.size("B", 1, 3), d.size("T", 1, 7), d.size("S", 1, 7), d.pick("heads", 2, 1, 4)
    how = {"bias": d.flag("bias"), "dropout": d.pick("p", 0.0, 0.3), "softcap": d.pick("cap", None, 0.7)}
    how |= {"kv_heads": d.pick("kv_heads", None, 1), "head_dim": d.pick("head_dim", None, 6)}
    how |= {"value_head_dim": d.pick("value_head_dim", None, 3), "batch_first": d.flag("batch_first")}
    kind = d.pick("inputs", "self", "memory", "values")
    how |= {"self": {"rotary": d.flag("rotary")}, "memory": {"kdim": 3}, "values": {"kdim": 3, "vdim": 5}}[kind]
    S = T if kind == "self" else S
    inputs = {"self": (8,), "memory": (8, 3), "values": (8, 3, 5)}[kind]
    arrays = [x64(d, B, n, size) for n, size in zip((T, S, S), inputs, strict=False)]
    arrays = arrays if how["batch_first"] else [a.swapaxes(0, 1) for a in arrays]
    options = {"hide": d.mask(B, heads, T, S), "causal": d.flag("causal")}
    return Call(lambda: gl.MultiHeadAttention(8, heads, rng=0, **how), *arrays, train=train(d), **options)


def additive(d: Draw) -> Call:
    B, T, S = d.size("B", 1, 3), d.size("T", 1, 5), d.size("S", 1, 5)
    q, m, h = d.sizes("qmh", 1)
    hide = None if d.flag("seen") else d.rng.random((B, 1, 1, S)) < 0.4
    return Call(lambda: gl.AdditiveAttention(q, m, h, rng=0), x64(d, B, T, q), x64(d, B, S, m), hide=hide)


def multiplicative(d: Draw) -> Call:
    B, T, S, q = d.size("B", 1, 3), d.size("T", 1, 5), d.size("S", 1, 5), d.size("q", 1, 7)
    score = d.pick("score", "general", "dot")
    m = q if score == "dot" else d.size("m", 1, 7)
    hide = None if d.flag("seen") else d.rng.random((B, 1, 1, S)) < 0.4
    return Call(lambda: gl.MultiplicativeAttention(q, m, score, rng=0), x64(d, B, T, q), x64(d, B, S, m), hide=hide)


def recurrent(kind, d: Draw) -> Call:
    B, T, n, H = d.size("B", 1, 5), d.size("T", 1, 5), d.size("in", 1, 5), d.size("H", 2, 5)
    how = {"num_layers": d.pick("layers", 1, 2), "bidirectional": d.flag("both"), "bias": d.flag("bias")}
    how |= {"dropout": d.pick("p", 0.0, 0.3)}
    states = [x64(d, how["num_layers"] * (1 + how["bidirectional"]), B, H) for _ in range(1 + (kind is gl.LSTM))]
    options = {"lengths": d.rng.integers(0, T + 1, B)} if d.flag("lengths") else {}
    given = states if d.flag("states") else []
    return Call(lambda: Flat(kind(n, H, rng=0, **how)), x64(d, B, T, n), *given, train=train(d), **options)


def cell(kind, d: Draw) -> Call:
    B, n, H, bias = d.size("B", 1, 5), d.size("in", 1, 5), d.size("H", 2, 5), d.flag("bias")
    states = [x64(d, B, H) for _ in range(1 + (kind is gl.LSTMCell))]
    return Call(lambda: Flat(kind(n, H, bias, rng=0)), x64(d, B, n), *(states if d.flag("states") else []))


def feedforward(d: Draw) -> Call:
    n, hidden, bias, p = d.size("dim", 1), d.size("hidden", 1), d.flag("bias"), d.pick("p", 0.0, 0.3)
    activation = d.pick("activation", "gelu_tanh", "gelu", "silu", "tanh", "swiglu", "geglu", "mish")

    def make():
        return gl.FeedForward(n, hidden, activation, bias, p, rng=0)

    return Call(make, x64(d, *leading(d), n), train=train(d))


def container(wrap, d: Draw) -> Call:
    n, p = d.size("dim", 1), d.pick("p", 0.0, 0.3)

    def inside():
        return gl.Sequential(gl.Linear(n, n, rng=0), gl.GELU(), gl.Dropout(p))

    return Call(lambda: wrap(inside()), x64(d, *leading(d), n), train=train(d))


def block(kind, d: Draw) -> Call:
    B, T, S = d.size("B", 1, 3), d.size("T", 1, 5), d.size("S", 1, 5)
    how = {"norm_first": d.flag("norm_first"), "dropout": d.pick("p", 0.0, 0.3), "bias": d.flag("bias")}
    seen = d.flag("seen")
    options = {} if seen else {"hide": d.mask(B, 2, T, T)}
    memory = (x64(d, B, S, 8),) if kind is gl.DecoderBlock else ()
    if memory and not seen:
        options["hide_memory"] = d.mask(B, 2, T, S)

    def make():
        return kind(8, 2, hidden=5, rng=0, **how)

    return Call(make, x64(d, B, T, 8), *memory, train=train(d), **options)


def positions(make, d: Draw) -> Call:
    x = x64(d, d.size("B", 1, 3), d.size("T", 1, 5), *(3,) * (make is gl.Rotary), 4)
    return Call(
        lambda: gl.LearnedPositions(9, 4, rng=0) if make is gl.LearnedPositions else make(4),
        x,
        start=d.size("start", 0, 4),
    )


RECIPES = {
    "Linear": linear, "TiedLinear": tied, "Embedding": embedding, "LayerNorm": layernorm, "RMSNorm": rmsnorm,
    "BatchNorm": batchnorm, "GroupNorm": groupnorm, "InstanceNorm": instancenorm, "Dropout": dropout,
    "MultiHeadAttention": attention, "AdditiveAttention": additive, "MultiplicativeAttention": multiplicative,
    "FeedForward": feedforward,
    "RNN": lambda d: recurrent(gl.RNN, d), "GRU": lambda d: recurrent(gl.GRU, d),
    "LSTM": lambda d: recurrent(gl.LSTM, d),
    "RNNCell": lambda d: cell(gl.RNNCell, d), "GRUCell": lambda d: cell(gl.GRUCell, d),
    "LSTMCell": lambda d: cell(gl.LSTMCell, d),
    "Sequential": lambda d: container(gl.Sequential, d), "Residual": lambda d: container(gl.Residual, d),
    "Recompute": lambda d: container(gl.Recompute, d),
    "EncoderBlock": lambda d: block(gl.EncoderBlock, d), "DecoderBlock": lambda d: block(gl.DecoderBlock, d),
    "LearnedPositions": lambda d: positions(gl.LearnedPositions, d),
    "SinusoidalPositions": lambda d: positions(gl.SinusoidalPositions, d), "Rotary": lambda d: positions(gl.Rotary, d),
}  # fmt: skip


@pytest.mark.parametrize("name", RECIPES)
@given(data=st.data())
def test_any_call(name, data):
    """The whole contract, gradients by finite differences too; any layout gives the bits of an array in one piece."""
    draw = Draw(data)
    call = RECIPES[name](draw)
    check_layer(call.make, *(draw.laid(x) for x in call.inputs), train=call.train, tied=True, **call.options)


@pytest.mark.parametrize("name", RECIPES)
@given(data=st.data())
def test_wrong_inputs_are_refused(name, data):
    """In one sentence, whatever is wrong with the first input; nothing of it is written."""
    draw = Draw(data)
    call = RECIPES[name](draw)
    x, *others = (x.astype(np.float32) if x.dtype.kind == "f" else x for x in call.inputs)
    wrong = [None, 3, [1.0], x.astype(str), x.astype(bool)]
    wrong += [x.astype(np.float32)] if x.dtype.kind != "f" else [x.astype(np.int64)]
    for bad in wrong:
        with pytest.raises((TypeError, ValueError)) as caught:
            call.make().forward(bad, *others, **call.options)
        assert "gpulayers" in str(caught.traceback[-1].path), f"{bad!r}: not a sentence of the library: {caught.value}"
        assert "\n" not in str(caught.value)


ANY_WIDTH = {"Dropout", "Embedding", "BatchNorm", "GroupNorm", "InstanceNorm"}  # the last three: of the last axis


@pytest.mark.parametrize("name", RECIPES)
@given(data=st.data())
def test_wrong_shapes_and_devices_are_refused(name, data):
    """No axis at all, one element too many in the last, an array of another device than the parameters'."""
    draw = Draw(data)
    call = RECIPES[name](draw)
    layer = call.make()
    x, *others = (x.astype(np.float32) if x.dtype.kind == "f" else x for x in call.inputs)
    wrong = [np.zeros((), x.dtype)] if x.dtype.kind == "f" else []
    if name not in ANY_WIDTH and x.shape[-1]:
        wrong.append(np.concatenate([x, x[..., :1]], axis=-1))
    if [*layer.parameters(), *layer.buffers()]:
        wrong.append(gl.to_device(np.ascontiguousarray(x), "emulated"))
    for bad in wrong:
        with pytest.raises((TypeError, ValueError), match=r"takes a|meet in one call") as caught:
            layer.forward(bad, *others, **call.options)
        assert "gpulayers" in str(caught.traceback[-1].path), f"not a sentence of the library: {caught.value}"
        assert "\n" not in str(caught.value)


def test_no_layer_is_left_out():
    missing = find_layers().keys() - RECIPES.keys() - ACTIVATIONS
    assert not missing, f"{missing} have no recipe: write one, and put it in RECIPES"
