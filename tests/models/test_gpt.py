import dataclasses

import numpy as np
import pytest
from contract import check_layer
from tolerances import assert_close

from gpulayers.gradcheck import gradcheck
from gpulayers.models.gpt import GPT, Block, GPTConfig, load
from gpulayers.ops.cross_entropy import cross_entropy
from gpulayers.optim import AdamW
from gpulayers.step import Train
from gpulayers.storage import FileError

TINY = GPTConfig(vocab=11, context=7, layers=2, heads=2, dim=8)
VARIANTS = {
    "plain": {},
    "one head of keys": {"kv_heads": 1},
    "rotary": {"rotary": True},
    "no biases": {"bias": False},
    "one token": {"context": 1},
    "a head of its own": {"tied": False},
    "other sub-layers": {"hidden": 5, "activation": "silu", "norm_eps": 0.1},
    "scaled by layer": {"scale_by_layer": True},
    "not scaled": {"scale_attention": False},
    "three dropouts": {"embedding_dropout": 0.5, "attention_dropout": 0.0},
}


def tiny(**changes):
    return GPT(dataclasses.replace(TINY, **changes), seed=0)


@pytest.fixture
def ids(rng):
    return rng.integers(0, 11, (3, 7))


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=list(VARIANTS))
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_contract(changes, dropout, ids):
    train = Train(seed=1, step=2) if dropout else None
    tied = changes.get("tied", True)
    check_layer(lambda: tiny(dropout=dropout, **changes), ids[:, : changes.get("context", 7)], train=train, tied=tied)


@pytest.mark.parametrize("shape", [(0, 4), (2, 1), (1, 7)])
def test_odd_shapes(shape, rng):
    check_layer(tiny, rng.integers(0, 11, shape), tied=True)


def test_block_contract(rng):
    check_layer(lambda: Block(TINY, np.random.default_rng(0), "float32"), rng.normal(size=(2, 5, 8)))


def test_gradients_of_the_loss(ids):
    """Through the loss: the whole chain, the tied table included, as the trainer runs it."""

    class WithLoss(GPT):
        def forward(self, ids, train=None):
            logits, saved = super().forward(ids, train)
            loss, self_dlogits = cross_entropy(logits, np.roll(ids, -1, axis=1))
            return np.asarray(loss), (self_dlogits, saved)

        def backward(self, dy, saved):
            dlogits, saved = saved
            super().backward(dy * dlogits, saved)

    assert gradcheck(WithLoss(TINY, seed=0), ids) < 1e-7


def test_the_past_does_not_see_the_future(ids):
    model = tiny()
    changed = ids.copy()
    changed[:, 4:] = (changed[:, 4:] + 1) % 11
    assert_close(model(ids)[:, :4], model(changed)[:, :4])  # not bit for bit: the scores share one maximum
    assert not np.allclose(model(ids)[:, 4:], model(changed)[:, 4:])


def test_head_and_table_are_one_parameter(ids):
    model = tiny()
    names = [name for name, _ in model.named_parameters()]
    assert "wte.weight" in names
    assert not any("head" in name for name in names)
    optimizer = AdamW(model, lr=1e-2)
    logits, saved = model.forward(ids, Train())
    _, dlogits = cross_entropy(logits, ids)
    model.backward(dlogits, saved)
    optimizer.step()
    assert model.head.weight is model.wte.weight
    model.to(dtype="float64")
    assert model.head.weight.data is model.wte.weight.data


def test_tied_gradient_is_the_sum_of_both_uses():
    """paiml/entrenar #314: W = [[1], [2]], token 0, logits = W W[0], label 1."""
    from gpulayers.layers.embedding import Embedding
    from gpulayers.layers.tied_linear import TiedLinear

    embedding = Embedding(2, 1, dtype="float64")
    embedding.weight.data[...] = [[1], [2]]
    head = TiedLinear(embedding.weight)
    h, saved_embedding = embedding.forward(np.array([0]))
    logits, saved_head = head.forward(h)
    loss, dlogits = cross_entropy(logits, np.array([1]))
    embedding.backward(head.backward(dlogits, saved_head), saved_embedding)
    assert float(loss) == pytest.approx(0.3132617, abs=1e-7)
    assert embedding.weight.grad.ravel() == pytest.approx([0, -0.2689414], abs=1e-7)


def test_it_learns(ids):
    model = tiny()
    optimizer = AdamW(model, lr=1e-2, clip_norm=1.0)
    losses = []
    for step in range(60):
        logits, saved = model.forward(ids[:, :-1], Train(step=step))
        loss, dlogits = cross_entropy(logits, ids[:, 1:])
        model.backward(dlogits, saved)
        optimizer.step()
        losses.append(float(loss))
    assert losses[0] == pytest.approx(np.log(11), abs=0.1)
    assert losses[-1] < 0.3


def test_initial_values_depend_on_the_seed_alone():
    a, b, c = tiny(), tiny(), GPT(TINY, seed=1)
    for name, value in a.state_dict().items():
        assert np.array_equal(value, b.state_dict()[name])
    assert not np.array_equal(a.wte.weight.data, c.wte.weight.data)
    wide = GPT(TINY, seed=0, dtype="float64")
    assert np.array_equal(wide.wte.weight.data.astype(np.float32), a.wte.weight.data)


def test_initial_spread_is_that_of_gpt2():
    model = GPT(GPTConfig(vocab=500, context=16, layers=8, heads=4, dim=64), seed=0)
    state = model.state_dict()
    assert state["wte.weight"].std() == pytest.approx(0.02, rel=0.05)
    assert state["blocks.3.attention.out.weight"].std() == pytest.approx(0.02 / 4, rel=0.05)
    assert state["blocks.3.feedforward.down.weight"].std() == pytest.approx(0.02 / 4, rel=0.05)
    assert not any(value.any() for name, value in state.items() if name.endswith("bias"))


def test_documented_names_and_layouts():
    shapes = {name: value.shape for name, value in tiny().state_dict().items()}
    block = {
        "ln_1.weight": (8,), "ln_1.bias": (8,),
        "attention.qkv.weight": (8, 24), "attention.qkv.bias": (24,),
        "attention.out.weight": (8, 8), "attention.out.bias": (8,),
        "ln_2.weight": (8,), "ln_2.bias": (8,),
        "feedforward.up.weight": (8, 32), "feedforward.up.bias": (32,),
        "feedforward.down.weight": (32, 8), "feedforward.down.bias": (8,),
    }  # fmt: skip
    expected = {"wte.weight": (11, 8), "wpe.weight": (7, 8), "ln_f.weight": (8,), "ln_f.bias": (8,)}
    expected |= {f"blocks.{i}.{name}": shape for i in range(2) for name, shape in block.items()}
    assert shapes == expected


def test_save_and_load(tmp_path, ids):
    model = tiny(kv_heads=1)
    model.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    assert again.config == model.config
    assert np.array_equal(again(ids), model(ids))
    assert again.head.weight is again.wte.weight


def test_load_refuses_what_is_no_gpt(tmp_path):
    from gpulayers.layers.linear import Linear

    Linear(2, 2, rng=0).save(tmp_path / "linear.safetensors")
    with pytest.raises(FileError, match="holds no GPT"):
        load(tmp_path / "linear.safetensors")
    with pytest.raises(FileError, match="does not exist"):
        load(tmp_path / "missing.safetensors")
    with pytest.raises(FileError, match="does not fit this model"):
        tiny().load(tmp_path / "linear.safetensors")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"heads": 3}, "heads must divide dim, got 3 heads and dim 8"),
        ({"layers": 0}, "layers must be at least 1, got 0"),
    ],
)
def test_impossible_sizes(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        dataclasses.replace(TINY, **changes)


def test_wrong_ids(ids):
    with pytest.raises(ValueError, match=r"T at most 7, got \(1, 8\)"):
        tiny()(np.zeros((1, 8), int))
    with pytest.raises(ValueError, match="11"):
        tiny()(np.full((1, 3), 11))


def test_dropout_does_not_depend_on_how_the_batch_is_split(ids):
    model = tiny(dropout=0.5)
    whole, _ = model.forward(ids, Train(seed=3, step=4))
    parts = [model.forward(ids[i : i + 1], Train(seed=3, step=4, first_sample=i))[0] for i in range(3)]
    assert np.allclose(whole, np.concatenate(parts), atol=1e-6)


@pytest.mark.parametrize("changes", [{}, {"rotary": True, "kv_heads": 1}, {"scale_by_layer": True}])
def test_attention_is_what_mixes_the_values(changes, ids):
    model = tiny(**changes)
    for parameter in model.parameters():
        parameter.data *= 5  # far from even weights
    x = model.wte(ids) if model.wpe is None else model.wpe(model.wte(ids))
    for block, weights in zip(model.blocks, model.attention(ids), strict=True):
        assert weights.shape == (3, 2, 7, 7)
        assert_close(weights.sum(-1), np.ones((3, 2, 7)))
        assert not np.triu(weights, 1).any()
        layer, normal = block.attention, block.ln_1(x)
        v = layer.qkv(normal)[..., 8 + layer.kv_heads * 4 :].reshape(3, 7, layer.kv_heads, 4).swapaxes(1, 2)
        mixed = (weights @ np.repeat(v, 2 // layer.kv_heads, axis=1)).swapaxes(1, 2).reshape(3, 7, 8)
        assert_close(layer.out(mixed), layer(normal, causal=True))
        x = block(x)
