"""EncoderBlock and DecoderBlock."""

import numpy as np
import pytest
from contract import check_layer
from tolerances import assert_close

import gpulayers as gl
from gpulayers.gradcheck import gradcheck
from gpulayers.layers import sublayers
from gpulayers.layers.decoder_block import DecoderBlock
from gpulayers.layers.encoder_block import EncoderBlock
from gpulayers.layers.layernorm import LayerNorm
from gpulayers.layers.recompute import Recompute
from gpulayers.masks import padding_mask
from gpulayers.models.gpt import Block, GPTConfig
from gpulayers.step import Train
from gpulayers.verify.tolerances import LAYER

orders = pytest.mark.parametrize("norm_first", [True, False])
SHAPES = [(1, 1, 4), (2, 5, 4), (0, 3, 4), (2, 0, 4)]


@orders
@pytest.mark.parametrize("shape", SHAPES)
def test_encoder_contract(norm_first, shape, rng):
    def make(**options):
        return EncoderBlock(4, 2, hidden=6, norm_first=norm_first, rng=0, **options)

    x, hide = rng.normal(size=shape), padding_mask(lengths=np.arange(shape[0]), size=shape[1])
    check_layer(make, x, hide=hide)
    check_layer(lambda: make(dropout=0.3, bias=False, activation="relu"), x, train=Train(seed=1))


@orders
@pytest.mark.parametrize("queries", [1, 3])
def test_an_encoder_that_answers_for_the_first_rows_alone(norm_first, queries, rng):
    """The rows, and all gradients, of the whole pass whose other rows nobody reads."""

    def make(dtype="float64", **options):
        return EncoderBlock(8, 2, hidden=6, norm_first=norm_first, rng=0, dtype=dtype, **options)

    block, x, hide = make(), rng.normal(size=(3, 5, 8)), padding_mask(lengths=[5, 3, 1], size=5)
    whole, saved = block.forward(x, hide)
    y, its = block.forward(x, hide, queries=queries)
    assert np.allclose(y, whole[:, :queries], rtol=1e-12, atol=1e-15)
    assert np.allclose(block(x, hide, queries=queries), y, rtol=1e-12, atol=1e-15)
    dy = np.zeros_like(whole)
    dy[:, :queries] = rng.normal(size=y.shape)
    dx = block.backward(dy, saved)
    wanted = {name: p.grad.copy() for name, p in block.named_parameters()}
    block.zero_grad()
    assert np.allclose(block.backward(dy[:, :queries].copy(), its), dx, rtol=1e-11, atol=1e-14)
    for name, p in block.named_parameters():
        assert np.allclose(p.grad, wanted[name], rtol=1e-11, atol=1e-14), name
    check_layer(lambda: make("float32", dropout=0.3), x, queries=queries, train=Train(seed=1))
    check_layer(lambda: Recompute(make("float32")), x, queries=queries)


@orders
@pytest.mark.parametrize("shape", SHAPES)
def test_decoder_contract(norm_first, shape, rng):
    def make(**options):
        return DecoderBlock(4, 2, hidden=6, norm_first=norm_first, rng=0, **options)

    x, memory = rng.normal(size=shape), rng.normal(size=(shape[0], 5, 4))
    masks = {
        "hide": padding_mask(lengths=np.arange(shape[0]), size=shape[1]),
        "hide_memory": padding_mask(lengths=5 - 5 * np.arange(shape[0]), size=5),  # the second sees nothing
    }
    check_layer(make, x, memory, **masks)
    check_layer(lambda: make(dropout=0.3, bias=False, activation="relu"), x, memory, train=Train(seed=1), **masks)


@orders
def test_by_the_formula(norm_first, rng):
    block = EncoderBlock(4, 2, norm_first=norm_first, rng=0, dtype="float64")
    for name, parameter in block.named_parameters():
        if name.startswith("norm"):
            parameter.data[...] = rng.normal(size=4)
    x = rng.normal(size=(2, 3, 4))
    if norm_first:
        h = x + block.attention(block.norm_1(x))
        y = h + block.feedforward(block.norm_2(h))
    else:
        h = block.norm_1(x + block.attention(x))
        y = block.norm_2(h + block.feedforward(h))
    assert_close(block(x), y, "float64")
    assert_close(block.forward(x)[0], y, "float64")


@orders
def test_weights(norm_first, rng):
    x, memory = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 5, 4))
    hide = padding_mask(lengths=[5, 0], size=5)
    encoder = EncoderBlock(4, 2, norm_first=norm_first, rng=0, dtype="float64")
    assert_close(encoder.weights(x).sum(axis=-1), np.ones((2, 2, 3)), "float64")
    decoder = DecoderBlock(4, 2, norm_first=norm_first, rng=0, dtype="float64")
    weights = decoder.weights(x, memory, hide_memory=hide)
    assert_close(weights.sum(axis=-1), np.stack([np.ones((2, 3)), np.zeros((2, 3))]), "float64")


@orders
@pytest.mark.parametrize("pieces", [[1] * 6, [2, 4], [6], [0, 5, 1]])
def test_step_by_step_equals_the_whole_pass(norm_first, pieces, rng):
    block = DecoderBlock(4, 2, norm_first=norm_first, rng=0)
    x, memory = (rng.normal(size=(2, n, 4)).astype(np.float32) for n in (6, 5))
    hide, hide_memory = padding_mask(lengths=[6, 2], size=6), padding_mask(lengths=[5, 3], size=5)
    whole, cache, start = block(x, memory, hide, hide_memory), block.start(memory), 0
    for size in pieces:
        before = cache
        y, cache = block.step(x[:, start : start + size], cache, hide[..., : start + size], hide_memory)
        assert_close(y, whole[:, start : start + size], "float32", factor=LAYER)
        again, _ = block.step(x[:, start : start + size], before, hide[..., : start + size], hide_memory)
        assert np.array_equal(y, again)  # the old cache is still what it was
        assert cache.memory is before.memory
        start += size


def test_a_memory_that_is_all_padding_gets_no_gradient(rng):
    """pytorch/pytorch #103963: zeros, not NaN, where every key is hidden."""
    block = DecoderBlock(4, 2, rng=0)
    x, memory = (rng.normal(size=(2, n, 4)).astype(np.float32) for n in (3, 5))
    memory[1] = np.nan  # whatever lies there
    hide = padding_mask(lengths=[5, 0], size=5)
    y, saved = block.forward(x, memory, hide_memory=hide)
    assert np.isfinite(y).all()
    alone = block(x[1:], memory[1:, :0])
    assert_close(y[1:], alone, "float32", factor=LAYER)
    gradients = block.backward(np.ones_like(y), saved)
    assert np.isfinite(gradients[0]).all()
    assert not gradients[1][1].any()


def test_the_lists_of_saved_values_are_emptied(rng):
    block = DecoderBlock(4, 2, rng=0, dropout=0.1)
    y, saved = block.forward(rng.normal(size=(2, 3, 4)).astype(np.float32), np.ones((2, 5, 4), np.float32))
    inner = list(saved)
    block.backward(y, saved)
    assert saved == []
    assert inner == [[], [], []]


def test_gradcheck_sees_a_wrong_memory_gradient(rng):
    class Wrong(DecoderBlock):
        def backward(self, dy, saved):
            dx, dmemory = super().backward(dy, saved)
            return dx, dmemory * 1.01

    with pytest.raises(AssertionError):
        gradcheck(Wrong(4, 2, rng=0), rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 5, 4)))


def test_bad_arguments_are_one_sentence():
    with pytest.raises(ValueError, match="heads must divide dim, got 3 heads for dim 4"):
        EncoderBlock(4, 3)
    with pytest.raises(ValueError, match="activation must be one of"):
        DecoderBlock(4, 2, activation="swish")
    x, block = np.zeros((2, 3, 4), np.float32), DecoderBlock(4, 2, rng=0)
    with pytest.raises(ValueError, match=r"takes a key of shape \(2, S, 4\), got \(1, 3, 4\)"):
        block.forward(x, x[:1])
    with pytest.raises(ValueError, match="takes a cache of 2 samples, got 1"):
        block.step(x, block.start(x[:1]))


GPT_SIZES = GPTConfig(vocab=5, context=8, heads=2, dim=16, dropout=0.2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: EncoderBlock(16, 2, dropout=0.2, rng=0),
        lambda: EncoderBlock(16, 2, dropout=0.2, rng=0, norm_first=False),
        lambda: EncoderBlock(16, 2, activation="swiglu", rng=0),
        lambda: DecoderBlock(16, 2, dropout=0.2, rng=0),
        lambda: Block(GPT_SIZES, np.random.default_rng(0), "float32"),
    ],
    ids=["pre-norm", "post-norm", "gated", "decoder", "gpt"],
)
def test_norms_that_are_made_again_change_no_bit(make, rng, monkeypatch):
    """Large blocks in host memory keep no output of a norm, and the gradients are those of blocks that keep it."""
    layer = make()
    inputs = [rng.standard_normal((3, 8, 16), np.float32) for _ in range(1 + isinstance(layer, DecoderBlock))]

    def run(again):
        monkeypatch.setattr(sublayers, "recomputes_norms", lambda x: again)
        layer.zero_grad()
        y, saved = layer.forward(*inputs, train=Train(1))
        held = {id(a): a.nbytes for a in arrays(saved)}
        dx = layer.backward(y, saved)
        return [y, *(dx if isinstance(dx, tuple) else (dx,)), *(p.grad.copy() for p in layer.parameters())], held

    kept, made = run(False), run(True)
    assert all(np.array_equal(a, b) for a, b in zip(kept[0], made[0], strict=True))
    norms = sum(isinstance(one, LayerNorm) for _, one in layer.named_layers())
    left = norms * inputs[0].nbytes if getattr(layer, "norm_first", True) else 0
    assert sum(kept[1].values()) - sum(made[1].values()) == left


@pytest.mark.parametrize(("dim", "rows", "again"), [(128, 512, True), (128, 511, False), (120, 1024, False)])
def test_which_blocks_make_norms_again(dim, rows, again, rng):
    layer = EncoderBlock(dim, 2, rng=0)
    y, saved = layer.forward(rng.standard_normal((1, rows, dim), np.float32))
    assert all(isinstance(part[1], sublayers.WithoutInput) == again for part in saved)
    assert not sublayers.recomputes_norms(gl.to_device(y, "emulated"))
    layer.backward(y.view(Other), saved)  # what backward is given does not decide it


class Other(np.ndarray):
    """Not exactly an ndarray, as a memmap is not."""


@pytest.mark.parametrize("name", ["attention", "feedforward"])
def test_a_sub_layer_may_be_replaced(name, rng, monkeypatch):
    """By a layer that keeps what it likes and whose backward takes dy and saved alone."""
    monkeypatch.setattr(sublayers, "recomputes_norms", lambda x: True)
    plain, changed = EncoderBlock(16, 2, rng=0), EncoderBlock(16, 2, rng=0)
    setattr(changed, name, Recompute(getattr(changed, name)))
    x = rng.standard_normal((2, 8, 16), np.float32)
    found = []
    for layer in (plain, changed):
        y, saved = layer.forward(x)
        found.append(layer.backward(y, saved))
    assert np.array_equal(*found)


def arrays(saved):
    """Every array in what a layer saved."""
    if isinstance(saved, np.ndarray):
        yield saved
    elif isinstance(saved, dict):
        yield from arrays(list(saved.values()))
    elif isinstance(saved, list | tuple):
        for one in saved:
            yield from arrays(one)
