import dataclasses

import numpy as np
import pytest
from contract import check_layer
from tolerances import assert_close

from gpulayers.decoding import beam_search, greedy_decode, take_rows
from gpulayers.gradcheck import gradcheck
from gpulayers.models.transformer import TokenInput, Transformer, TransformerConfig, load
from gpulayers.ops.cross_entropy import cross_entropy
from gpulayers.optim import AdamW
from gpulayers.step import Train
from gpulayers.storage import FileError
from gpulayers.verify.tolerances import LAYER

TINY = TransformerConfig(
    source_vocab=11, target_vocab=9, dim=8, heads=2, layers=2, hidden=12, longest=8,
    activation="gelu",  # smooth, for finite differences; ReLU is held to PyTorch
)  # fmt: skip
VARIANTS = {
    "pre-norm": {},
    "post-norm": {"norm_first": False},
    "tied": {"tied": True, "target_vocab": 11},
    "tied, post-norm, learned positions": {
        "tied": True, "target_vocab": 11, "norm_first": False, "positions": "learned",
    },
    "tanh, no biases": {"activation": "tanh", "bias": False},
}  # fmt: skip
variants = pytest.mark.parametrize("changes", VARIANTS.values(), ids=list(VARIANTS))


def tiny(seed=0, dtype="float32", **changes):
    return Transformer(dataclasses.replace(TINY, **changes), seed, dtype)


def padded(ids, lengths, pad=0):
    ids = ids.copy()
    ids[np.arange(ids.shape[1]) >= np.asarray(lengths)[:, None]] = pad
    return ids


@pytest.fixture
def pairs(rng):
    """Sources and targets of several lengths; the third source is nothing but padding."""
    source, target = rng.integers(3, 11, (3, 6)), rng.integers(3, 9, (3, 5))
    target[:, 0] = TINY.bos
    return padded(source, [6, 4, 0]), padded(target, [3, 5, 4])


# ------------------------------------------------------------------------------------------------- gradients


@variants
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_contract(changes, dropout, pairs):
    train = Train(seed=1, step=2) if dropout else None
    check_layer(lambda: tiny(dropout=dropout, **changes), *pairs, train=train, tied=bool(changes.get("tied")))


@pytest.mark.parametrize("shapes", [((0, 4), (0, 3)), ((2, 1), (2, 1)), ((1, 0), (1, 3)), ((1, 3), (1, 0))])
def test_odd_shapes(shapes, rng):
    check_layer(tiny, *(rng.integers(1, 9, shape) for shape in shapes))


@variants
def test_gradients_of_the_loss(changes, pairs):
    """Through the loss, as the trainer runs it, with padding among the targets."""

    class WithLoss(Transformer):
        def forward(self, source, target, train=None):
            logits, saved = super().forward(source, target, train)
            wanted = np.where(np.roll(target, -1, axis=1) == 0, -100, np.roll(target, -1, axis=1))
            loss, dlogits = cross_entropy(logits, wanted)
            return np.asarray(loss), (dlogits, saved)

        def backward(self, dy, saved):
            dlogits, saved = saved
            super().backward(dy * dlogits, saved)

    assert gradcheck(WithLoss(dataclasses.replace(TINY, **changes), seed=0), *pairs) < 1e-7


def test_saved_lists_are_emptied(pairs):
    model = tiny(dropout=0.1)
    logits, saved = model.forward(*pairs, train=Train())
    inner = [s for s in saved if isinstance(s, list)]
    model.backward(logits, saved)
    assert saved == []
    assert not any(inner)


# ------------------------------------------------------------------------------------------------- masks


def test_the_past_does_not_see_the_future(pairs):
    model, (source, target) = tiny(), pairs
    changed = target.copy()
    changed[:, 3:] = (changed[:, 3:] + 1) % 9
    assert_close(model(source, target)[:, :3], model(source, changed)[:, :3], "float32", factor=LAYER)
    assert not np.allclose(model(source, target)[:2, 3:], model(source, changed)[:2, 3:])


@variants
def test_padding_changes_nothing(changes, pairs):
    """Each sample alone without its padding, and in a batch with more of it: logits and gradients."""
    model, (source, target) = tiny(**changes), pairs
    lengths = [(6, 3), (4, 5), (0, 4)]
    dlogits = np.random.default_rng(3).normal(size=(3, 7, model.config.target_vocab)).astype(np.float32)
    for n, (_, t) in enumerate(lengths):
        dlogits[n, t:] = 0  # the loss counts no padding
    logits, saved = model.forward(np.pad(source, ((0, 0), (0, 2))), np.pad(target, ((0, 0), (0, 2))))
    model.backward(dlogits, saved)
    whole = {name: p.grad.copy() for name, p in model.named_parameters()}
    model.zero_grad()
    for n, (s, t) in enumerate(lengths):
        alone, saved = model.forward(source[n : n + 1, :s], target[n : n + 1, :t])
        assert_close(logits[n, :t], alone[0], "float32", factor=LAYER)
        model.backward(dlogits[n : n + 1, :t], saved)
    largest = max(np.abs(grad).max() for grad in whole.values())
    for name, parameter in model.named_parameters():
        assert np.abs(parameter.grad - whole[name]).max() < 2e-6 * largest, name


def test_padding_at_the_front_is_hidden_too(pairs):
    """Position for position, a padded id changes no other: in the source and among the targets, wherever it is."""
    model, (source, target) = tiny(), pairs
    source, target = source[:2], target[:2]
    source[:, 1], target[:, 1] = 0, 0
    before = model(source, target)
    for part in (model.source, model.target):
        part.embedding.weight.data[0] = 5  # what stands at the padding
    after = model(source, target)
    seen = target != 0
    assert_close(after[seen], before[seen], "float32", factor=LAYER)


@variants
def test_a_source_of_padding_gives_no_nan(changes, pairs):
    """pytorch/pytorch #103963: a query that sees no key gets zeros, in both passes."""
    model, (source, target) = tiny(**changes), pairs
    source = np.zeros_like(source)
    logits, saved = model.forward(source, target)
    model.backward(np.ones_like(logits), saved)
    assert np.isfinite(logits).all()
    assert all(np.isfinite(p.grad).all() for p in model.parameters())
    assert not model.attention(source, target).any()
    # The memory's keys and values take part in nothing.
    assert not any(p.grad.any() for name, p in model.named_parameters() if "cross.kv" in name)


def test_true_hides(pairs):
    """pytorch PR #170415: a mask that keeps where it should hide would look at padding and at nothing else."""
    source, target = pairs
    weights = tiny().attention(source, target)
    assert weights.shape == (3, 2, 5, 6)
    assert not weights[1, :, :, 4:].any()
    assert_close(weights[:2].sum(axis=-1), np.ones((2, 2, 5)), "float32")
    assert not weights[2].any()


# ------------------------------------------------------------------------------------------------- decoding


@variants
def test_step_by_step_equals_the_whole_pass(changes, pairs):
    """Dao-AILab/flash-attention #282: the newest query sees all keys."""
    model, (source, target) = tiny(**changes), pairs
    whole, state = model(source, target), model.start(source)
    for t in range(target.shape[1]):
        before = state
        logits, state = model.step(target[:, t], state)
        assert_close(logits, whole[:, t], "float32", factor=LAYER)
        again, _ = model.step(target[:, t], before)
        assert np.array_equal(logits, again)  # the old state is still what it was
    assert state.position == target.shape[1]


def test_the_memory_is_projected_once(pairs):
    model, (source, target) = tiny(), pairs
    state = model.start(source)
    _, after = model.step(target[:, 0], state)
    assert all(a.memory is b.memory for a, b in zip(after.caches, state.caches, strict=True))
    rows = after.caches[0].rows
    assert rows is not None
    assert rows.k.shape == (3, 1, 2, 4)


def test_every_array_of_a_state_has_the_batch_first(pairs):
    model, (source, target) = tiny(), pairs
    state = model.start(source)
    _, state = model.step(target[:, 0], state)

    def leaves(tree):
        return [leaf for part in tree for leaf in leaves(part)] if isinstance(tree, tuple) else [tree]

    arrays = [getattr(leaf, "rows", leaf) for leaf in leaves(state)[1:]]
    assert len(arrays) == 2 + 2 * 4
    assert all(len(array) == 3 for array in arrays)
    order = np.array([1, 1, 0])
    found, _ = model.step(target[order, 1], take_rows(state, order))
    assert_close(found, model.step(target[:, 1], state)[0][order], "float32", factor=LAYER)


@pytest.mark.parametrize("changes", [{}, {"norm_first": False, "positions": "learned"}])
def test_decoders_take_it(changes, pairs):
    """Greedy, and beam search, of width 1 the same; their scores are those of whole passes over what they wrote."""
    model, (source, _) = tiny(seed=4, **changes), pairs
    greedy, one, three = greedy_decode(model, source), *(beam_search(model, source, width=w) for w in (1, 3))
    assert np.array_equal(greedy.ids, one.ids)
    assert greedy.ids.shape[1] <= model.config.longest
    for found in (greedy, three):
        inputs = np.concatenate([np.full((3, 1), model.config.bos), found.ids[:, :-1]], axis=1)
        logits = model(source, inputs).astype(np.float64)
        log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        log_p = np.take_along_axis(log_p, found.ids[..., None], axis=-1)[..., 0]
        behind = np.cumsum(found.ids == model.config.eos, axis=1) - (found.ids == model.config.eos) > 0
        assert_close(found.scores, np.where(behind, 0, log_p).sum(axis=1), "float32", factor=LAYER)


def test_attention_is_that_of_the_pass(pairs):
    """Values of the last block taken by the weights are what its cross-attention gives."""
    model, (source, target) = tiny(layers=1), pairs
    hide_source, hide = model._masks(source, target)
    memory, x = model._encode(source, hide_source), model.target(target)
    block = model.decoder[0]
    x = x + block.attention(block.norm_1(x), hide=hide, causal=True)
    values = block.cross.start(memory).v  # (B, S, H, dv)
    heads = np.einsum("bhts,bshv->bthv", model.attention(source, target), values).reshape(3, 5, 8)
    expected = block.cross(block.norm_2(x), memory, hide=hide_source)
    assert_close(block.cross.out(heads), expected, "float32", factor=LAYER)


# ------------------------------------------------------------------------------------------------- the model


def test_tied_is_one_parameter(pairs):
    model = tiny(tied=True, target_vocab=11)
    names = [name for name, _ in model.named_parameters()]
    assert sum("embedding" in name or "head" in name for name in names) == 1
    optimizer = AdamW(model, lr=1e-2)
    logits, saved = model.forward(*pairs, train=Train())
    model.backward(cross_entropy(logits, pairs[1])[1], saved)
    optimizer.step()
    assert model.source.embedding.weight is model.target.embedding.weight
    assert vars(model.head)["weight"] is model.source.embedding.weight
    again = Transformer(model.config)
    again.load_state_dict(model.state_dict())
    assert np.array_equal(again(*pairs), model(*pairs))


@pytest.mark.parametrize("changes", [{}, {"norm_first": False, "tied": True, "target_vocab": 11}])
def test_it_learns_to_reverse(changes, rng):
    source = rng.integers(3, 9, (8, 4))
    reverse = source[:, ::-1]
    target = np.concatenate([np.full((8, 1), TINY.bos), reverse[:, :-1]], axis=1)
    model = tiny(dim=32, hidden=32, layers=1, **changes)
    optimizer = AdamW(model, lr=5e-3, clip_norm=1.0)
    losses = []
    for step in range(60):
        logits, saved = model.forward(source, target, Train(step=step))
        loss, dlogits = cross_entropy(logits, reverse)
        model.backward(dlogits, saved)
        optimizer.step()
        losses.append(float(loss))
    assert losses[0] < 4
    assert losses[-1] < 0.1
    assert np.array_equal(model(source, target).argmax(-1), reverse)


def test_input_is_scaled_and_has_positions():
    """Vaswani et al., sections 3.4 and 3.5."""
    model = tiny()
    ids = np.array([[3, 3]])
    x, table = model.source(ids), model.source.embedding.weight.data
    angle = np.arange(2)[:, None] / 10000 ** (np.arange(0, 8, 2) / 8)
    positions = np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(2, 8)
    assert_close(x[0], np.sqrt(8) * table[3] + positions, "float32")
    assert_close(model.source(ids[:, 1:], start=1)[0, 0], x[0, 1], "float32")
    assert isinstance(model.source, TokenInput)


def test_initial_values():
    one, same, other = tiny(), tiny(dtype="float64"), tiny(seed=1)
    for name, value in one.state_dict().items():
        assert np.array_equal(value, same.state_dict()[name].astype(np.float32))
        assert not name.endswith("bias") or not value.any()
    assert not np.array_equal(one.state_dict()["head.weight"], other.state_dict()["head.weight"])
    large = Transformer(TransformerConfig(500, 500, dim=64, tied=True), seed=0)
    assert large.source.embedding.weight.data.std() == pytest.approx(1 / 8, rel=0.05)
    rng = np.random.default_rng(0)
    logits = large(rng.integers(3, 500, (2, 9)), rng.integers(3, 500, (2, 9)))
    assert logits.std() == pytest.approx(1, rel=0.2)


def test_documented_names():
    block = {
        f"{part}.{kind}"
        for part in ("norm_1", "attention.qkv", "attention.out", "norm_2", "feedforward.up", "feedforward.down")
        for kind in ("weight", "bias")
    }
    more = {f"{part}.{kind}" for part in ("cross.q", "cross.kv", "cross.out", "norm_3") for kind in ("weight", "bias")}
    expected = {"source.embedding.weight", "target.embedding.weight", "head.weight", "head.bias"}
    expected |= {f"{side}_norm.{kind}" for side in ("encoder", "decoder") for kind in ("weight", "bias")}
    expected |= {f"encoder.{i}.{name}" for i in range(2) for name in block}
    expected |= {f"decoder.{i}.{name}" for i in range(2) for name in block | more}
    assert {name for name, _ in tiny().named_parameters()} == expected
    post = {name for name, _ in tiny(norm_first=False, positions="learned").named_parameters()}
    assert expected - post == {f"{side}_norm.{kind}" for side in ("encoder", "decoder") for kind in ("weight", "bias")}
    assert post - expected == {"source.positions.weight", "target.positions.weight"}


def test_dropout_does_not_depend_on_how_the_batch_is_split(pairs):
    model, (source, target) = tiny(dropout=0.5), pairs
    whole, _ = model.forward(source, target, Train(seed=3, step=4))
    parts = [
        model.forward(source[i : i + 1], target[i : i + 1], Train(seed=3, step=4, first_sample=i))[0] for i in range(3)
    ]
    assert np.allclose(whole, np.concatenate(parts), atol=1e-5)


@variants
def test_save_and_load(changes, tmp_path, pairs):
    model = tiny(seed=5, **changes)
    model.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    assert again.config == model.config
    assert np.array_equal(again(*pairs), model(*pairs))


def test_load_refuses_what_is_no_transformer(tmp_path):
    from gpulayers.layers.linear import Linear

    Linear(2, 2, rng=0).save(tmp_path / "linear.safetensors")
    with pytest.raises(FileError, match="holds no Transformer"):
        load(tmp_path / "linear.safetensors")
    with pytest.raises(FileError, match="does not exist"):
        load(tmp_path / "missing.safetensors")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"heads": 3}, "heads must divide dim, got 3 heads and dim 8"),
        ({"layers": 0}, "layers must be at least 1, got 0"),
        ({"dim": 8.0}, "dim must be an integer, got 8.0"),
        ({"hidden": 0}, "hidden must be at least 1, got 0"),
        ({"activation": "swish"}, "activation must be one of gelu, .*, got 'swish'"),
        ({"positions": "rotary"}, "positions must be one of sinusoidal, learned, got 'rotary'"),
        ({"tied": True}, "tied needs one vocabulary, got 11 source and 9 target ids"),
        ({"target_vocab": 2}, "eos must be an id in 0..1, got 2"),
        ({"pad": -1}, "pad must be an id in 0..8, got -1"),
        ({"pad": 2, "eos": 2}, r"pad, bos and eos must be three ids, got \(2, 1, 2\)"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
    ],
)
def test_impossible_sizes(changes, sentence):
    with pytest.raises((TypeError, ValueError), match=sentence):
        tiny(**changes)


def test_bad_inputs_are_one_sentence(pairs):
    model, (source, target) = tiny(), pairs
    with pytest.raises(TypeError, match=r"Transformer \(source\) takes an array of integer ids, got float64"):
        model(source * 1.0, target)
    with pytest.raises(ValueError, match=r"takes target ids of shape \(B, length\), got \(5,\)"):
        model.forward(source, target[0])
    with pytest.raises(ValueError, match="takes as many targets as sources, got 2 and 3"):
        model.forward(source, target[:2])
    with pytest.raises(ValueError, match=r"the id at position \(0, 0\) is 11, outside 0..10"):
        model.forward(np.full((1, 2), 11), target[:1])
    with pytest.raises(ValueError, match=r"step takes ids of shape \(3,\), got \(2,\)"):
        model.step(target[:2, 0], model.start(source))
    learned = tiny(positions="learned")
    with pytest.raises(ValueError, match="a source of 9 ids is longer than its 8 learned positions"):
        learned(np.ones((1, 9), int), target[:1])
    assert model(np.ones((1, 9), int), target[:1]).shape == (1, 5, 9)  # sines go on for ever
