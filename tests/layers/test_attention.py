import numpy as np
import pytest
from contract import check_layer

from gpulayers.layers.attention import MultiHeadAttention
from gpulayers.masks import causal_mask, padding_mask
from gpulayers.step import Train


@pytest.mark.parametrize("shape", [(1, 1, 4), (2, 5, 4), (2, 7, 4), (0, 3, 4), (2, 0, 4)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False, "rotary": True},
        {"kv_heads": 1, "head_dim": 4, "value_head_dim": 3, "rotary": True, "rotary_base": 100},
        {"dropout": 0.3},
    ],
)
def test_self_attention(shape, causal, options, rng):
    x = rng.normal(size=shape)
    B, T, _ = shape
    check_layer(lambda: MultiHeadAttention(4, 2, rng=0, **options), x, causal=causal, train=Train(seed=3))
    if not options.get("dropout"):
        hide = padding_mask(lengths=rng.integers(0, T + 1, B), size=T) | (rng.random((B, 2, T, T)) < 0.2)
        check_layer(lambda: MultiHeadAttention(4, 2, rng=0, **options), x, causal=causal, hide=hide)


@pytest.mark.parametrize("queries", [1, 2, 5])
@pytest.mark.parametrize("options", [{}, {"rotary": True, "kv_heads": 1, "value_head_dim": 3}, {"batch_first": False}])
def test_the_first_queries_alone(queries, options, rng):
    """What is made of them is what the whole pass makes, and its gradients are those of a dy that is 0 elsewhere."""
    layer, x = MultiHeadAttention(8, 2, rng=0, dtype="float64", **options), rng.normal(size=(3, 5, 8))
    hide = padding_mask(lengths=[5, 3, 1], size=5)
    rows = (slice(None), slice(queries))
    if not options.get("batch_first", True):
        x, rows = x.swapaxes(0, 1).copy(), slice(queries)
    whole, saved = layer.forward(x, hide=hide)
    y, its = layer.forward(x, hide=hide, queries=queries)
    assert y.shape == whole[rows].shape
    assert np.allclose(y, whole[rows], rtol=1e-13, atol=0)
    assert np.array_equal(layer(x, hide=hide, queries=queries), y)
    dy = np.zeros_like(whole)
    dy[rows] = rng.normal(size=y.shape)
    dx = layer.backward(dy, saved)
    wanted = {name: p.grad.copy() for name, p in layer.named_parameters()}
    layer.zero_grad()
    assert np.allclose(layer.backward(dy[rows].copy(), its), dx, rtol=1e-12, atol=1e-15)
    for name, p in layer.named_parameters():
        assert np.allclose(p.grad, wanted[name], rtol=1e-12, atol=1e-15), name
    check_layer(
        lambda: MultiHeadAttention(8, 2, rng=0, dropout=0.3, **options), x, queries=queries, train=Train(seed=3)
    )
    alone = MultiHeadAttention(8, 2, rng=0)(np.zeros((5, 8), np.float32), queries=queries)
    assert alone.shape == (queries, 8)  # one sample, without a batch


def test_queries_that_cannot_be_are_one_sentence():
    x = np.zeros((2, 3, 4), np.float32)
    assert MultiHeadAttention(4, 2)(x, causal=True, queries=3).shape == x.shape
    for options in ({"causal": True, "queries": 1}, {"queries": 4}):
        with pytest.raises(ValueError, match=r"MultiHeadAttention: queries=\d is for self-attention over so many rows"):
            MultiHeadAttention(4, 2).forward(x, **options)
    with pytest.raises(ValueError, match="queries=1 is for self-attention"):
        MultiHeadAttention(4, 2, kdim=4)(x, x, queries=1)
    for bad in (0, 1.5, True):
        with pytest.raises((ValueError, TypeError), match="MultiHeadAttention: queries must be"):
            MultiHeadAttention(4, 2)(x, queries=bad)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (3, 5), (5, 3), (0, 3), (3, 0)])
@pytest.mark.parametrize("options", [{}, {"kv_heads": 2, "value_head_dim": 3, "bias": False}, {"dropout": 0.5}])
def test_cross_attention(queries, keys, options, rng):
    x, memory, values = rng.normal(size=(2, queries, 8)), rng.normal(size=(2, keys, 3)), rng.normal(size=(2, keys, 5))
    train = Train(first_sample=4)
    for causal in (False, True):
        check_layer(lambda: MultiHeadAttention(8, 4, kdim=3, rng=0, **options), x, memory, causal=causal, train=train)
    check_layer(lambda: MultiHeadAttention(8, 4, kdim=3, vdim=5, rng=0, **options), x, memory, values, train=train)


def test_against_explicit_formulas(rng):
    layer = MultiHeadAttention(6, 2, rng=0).to(dtype="float64")
    layer.qkv.bias.data[...] = rng.normal(size=18)
    x = rng.normal(size=(2, 5, 6))
    q, k, v = np.split(x @ layer.qkv.weight.data + layer.qkv.bias.data, 3, axis=-1)
    heads = []
    for h in range(2):
        part = slice(3 * h, 3 * h + 3)
        scores = q[..., part] @ k[..., part].swapaxes(1, 2) / np.sqrt(3)
        scores[:, causal_mask(5, 5)] = -np.inf
        weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        assert np.allclose(layer.weights(x, causal=True)[:, h], weights)
        heads.append(weights @ v[..., part])
    y = np.concatenate(heads, axis=-1) @ layer.out.weight.data + layer.out.bias.data
    assert np.allclose(layer(x, causal=True), y)
    assert np.allclose(layer(x, hide=causal_mask(5, 5)), y)


@pytest.mark.parametrize("mode", ["self", "cross", "three"])
def test_weights_are_normalised(mode, rng):
    kdim, vdim = {"self": (None, None), "cross": (3, None), "three": (3, 5)}[mode]
    layer = MultiHeadAttention(8, 4, kv_heads=2, kdim=kdim, vdim=vdim, rng=0)
    x, memory = rng.normal(size=(2, 3, 8)).astype(np.float32), rng.normal(size=(2, 3, 3)).astype(np.float32)
    hide = padding_mask(lengths=[0, 2], size=3)
    weights = layer.weights(*((x,) if mode == "self" else (x, memory)), hide=hide)
    assert weights.shape == (2, 4, 3, 3)
    assert not weights[0].any()
    assert not weights[1, :, :, 2].any()
    assert np.allclose(weights[1].sum(-1), 1)


def test_a_query_that_sees_nothing_gets_the_bias(rng):
    """Reported case H05 (pytorch #103963)."""
    layer = MultiHeadAttention(4, 2, rng=0)
    layer.out.bias.data[...] = rng.normal(size=4)
    x = rng.normal(size=(2, 3, 4)).astype(np.float32)
    y, saved = layer.forward(x, hide=padding_mask(lengths=[3, 0]))
    assert np.array_equal(y[1], np.broadcast_to(layer.out.bias.data, (3, 4)))
    dx = layer.backward(np.ones_like(y), saved)
    assert not dx[1].any()
    assert dx[0].any()


def test_padding_changes_nothing(rng):
    layer = MultiHeadAttention(4, 2, rng=0)
    x = rng.normal(size=(1, 5, 4)).astype(np.float32)
    padded = np.concatenate([x, np.full((1, 3, 4), 7, np.float32)], axis=1)
    y = layer(padded, hide=padding_mask(lengths=[5], size=8))
    assert np.allclose(y[:, :5], layer(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rotary", [False, True])
def test_decoding_with_a_cache_equals_one_pass(rotary, rng):
    """Reported case H06 (Dao-AILab/flash-attention #282)."""
    layer = MultiHeadAttention(8, 4, kv_heads=2, rotary=rotary, rng=0)
    x = rng.normal(size=(2, 7, 8)).astype(np.float32)
    whole = layer(x, causal=True)
    cache, start = None, 0
    for stop in (3, 4, 5, 7):
        y, cache = layer.step(x[:, start:stop], cache)
        assert np.allclose(y, whole[:, start:stop], rtol=1e-5, atol=1e-6)
        start = stop


@pytest.mark.parametrize("vdim", [None, 5])
def test_decoding_over_a_memory_projects_it_once(vdim, rng):
    layer = MultiHeadAttention(8, 4, kv_heads=2, kdim=3, vdim=vdim, rng=0)
    x, key, value = (rng.normal(size=shape).astype(np.float32) for shape in ((2, 6, 8), (2, 4, 3), (2, 4, 5)))
    memory = (key,) if vdim is None else (key, value)
    hide = padding_mask(lengths=[4, 0])
    whole, cache = layer(x, *memory, hide=hide), layer.start(*memory)
    for start, stop in ((0, 1), (1, 2), (2, 6)):
        y, after = layer.step(x[:, start:stop], cache, hide=hide)
        assert np.allclose(y, whole[:, start:stop], rtol=1e-5, atol=1e-6)
        assert after is cache


def test_bad_caches_are_one_sentence():
    x = np.zeros((2, 3, 4), np.float32)
    alone, cross = MultiHeadAttention(4, 2, rng=0), MultiHeadAttention(4, 2, kdim=4, rng=0)
    with pytest.raises(TypeError, match="start is for cross-attention; self-attention starts with cache=None"):
        alone.start(x)
    with pytest.raises(TypeError, match=r"takes the cache that start\(key\) made"):
        cross.step(x)
    with pytest.raises(ValueError, match="takes a cache of 2 samples, got 1"):
        cross.step(x, cross.start(x[:1]))
    with pytest.raises(TypeError, match=r"\(kdim=4, vdim=None\) takes key, got 2 of them"):
        cross.start(x, x)
    with pytest.raises(ValueError, match=r"takes a key of shape \(B, S, 4\), got \(2, 3, 3\)"):
        cross.start(x[..., :3])


def test_dropout_only_in_training(rng):
    layer = MultiHeadAttention(4, 2, dropout=0.5, rng=0)
    x = rng.normal(size=(2, 3, 4)).astype(np.float32)
    assert np.array_equal(layer.forward(x)[0], layer(x))
    train = Train(seed=1)
    first, again = (layer.forward(x, train=train.snapshot())[0] for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.allclose(first, layer(x))
    half = layer.forward(x[1:], train=Train(seed=1, first_sample=1))[0]
    assert np.allclose(half, first[1:], rtol=1e-5, atol=1e-6)


def test_parameter_names():
    def names(layer):
        return [name for name, _ in layer.named_parameters()]

    assert names(MultiHeadAttention(4, 2)) == ["qkv.weight", "qkv.bias", "out.weight", "out.bias"]
    assert names(MultiHeadAttention(4, 2, kdim=3, bias=False)) == ["q.weight", "kv.weight", "out.weight"]
    assert names(MultiHeadAttention(4, 2, kdim=3, vdim=5, bias=False)) == [f"{n}.weight" for n in "qkv"] + [
        "out.weight"
    ]
    grouped = MultiHeadAttention(8, 4, kv_heads=2, value_head_dim=3)
    assert grouped.qkv.weight.shape == (8, 4 * 2 + 2 * 2 + 2 * 3)
    assert grouped.out.weight.shape == (12, 8)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"heads": 3}, "heads must divide dim, got 3 heads for dim 4"),
        ({"heads": 0}, "heads must divide dim, got 0 heads for dim 4"),
        ({"heads": 2, "head_dim": 0, "vdim": 0, "kdim": 3}, "sizes must be at least 1, got head_dim = 0, vdim = 0"),
        ({"heads": 4, "kv_heads": 3}, "kv_heads must divide heads, got 3 for 4 heads"),
        ({"heads": 2, "vdim": 4}, "vdim is given without kdim"),
        ({"heads": 2, "dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"heads": 2, "kdim": 4, "rotary": True}, "rotary positions need self-attention and an even head_dim"),
        ({"heads": 4, "rotary": True}, "rotary positions need self-attention and an even head_dim"),
    ],
)
def test_bad_construction_is_one_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        MultiHeadAttention(4, **options)


def test_sizes_are_integers():
    with pytest.raises(TypeError, match=r"MultiHeadAttention: heads must be an integer, got 2\.0"):
        MultiHeadAttention(4, 2.0)
    with pytest.raises(TypeError, match="MultiHeadAttention: kdim must be an integer, got '3'"):
        MultiHeadAttention(4, 2, kdim="3")


def test_bad_inputs_are_one_sentence():
    x = np.zeros((2, 3, 4), np.float32)
    layer = MultiHeadAttention(4, 2, rng=0)
    with pytest.raises(ValueError, match=r"takes a query of shape \(B, T, 4\), got \(4,\)"):
        layer(x[0, 0])
    with pytest.raises(TypeError, match=r"\(kdim=None, vdim=None\) takes query, got 2 of them"):
        layer(x, x)
    with pytest.raises(TypeError, match="float32 parameters and got a float64 input"):
        layer(x.astype(np.float64))
    cross = MultiHeadAttention(4, 2, kdim=3, vdim=5, rng=0)
    with pytest.raises(TypeError, match="takes query, key, value, got 1 of them"):
        cross.forward(x)
    with pytest.raises(ValueError, match=r"takes a key of shape \(2, S, 3\), got \(1, 3, 3\)"):
        cross(x, x[:1, :, :3], np.zeros((2, 3, 5), np.float32))
    with pytest.raises(ValueError, match="takes as many values as keys, got 4 for 3"):
        cross(x, x[..., :3], np.zeros((2, 4, 5), np.float32))
    with pytest.raises(ValueError, match=r"broadcasts to \(B, H, T, S\) = \(2, 2, 3, 3\), got \(2, 5\)"):
        layer(x, hide=np.zeros((2, 5), bool))


def test_default_initial_values():
    """As torch.nn.MultiheadAttention: Xavier uniform in, 1 / sqrt(dim) out, biases 0."""
    layer = MultiHeadAttention(64, 4, rng=0)
    assert np.isclose(np.abs(layer.qkv.weight.data).max(), np.sqrt(6 / (64 + 192)), rtol=1e-3)
    assert np.isclose(np.abs(layer.out.weight.data).max(), 1 / 8, rtol=1e-3)
    assert not layer.qkv.bias.data.any()
    assert not layer.out.bias.data.any()
    own = MultiHeadAttention(4, 2, init=lambda shape, rng: np.ones(shape), out_init=lambda shape, rng: np.zeros(shape))
    assert own.qkv.weight.data.all()
    assert not own.out.weight.data.any()
