"""Additive and multiplicative attention."""

import numpy as np
import pytest
from contract import check_layer
from tolerances import assert_close

from gpulayers.layers.additive_attention import AdditiveAttention
from gpulayers.layers.multiplicative_attention import MultiplicativeAttention
from gpulayers.masks import padding_mask

FORMS = {
    "additive": lambda: AdditiveAttention(3, 4, 5, rng=0),
    "general": lambda: MultiplicativeAttention(3, 4, rng=0),
    "dot": lambda: MultiplicativeAttention(4, 4, "dot"),
}
every_form = pytest.mark.parametrize("make", FORMS.values(), ids=list(FORMS))


def inputs(make, rng, B, T, S):
    """T None: one query a sample."""
    layer = make()
    query = rng.normal(size=(B, layer.query_size) if T is None else (B, T, layer.query_size))
    return query, rng.normal(size=(B, S, layer.memory_size))


@every_form
@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 3, 5), (2, None, 7), (0, 3, 5), (2, 0, 5), (2, 3, 0), (3, None, 0)])
def test_contract(make, sizes, rng):
    query, memory = inputs(make, rng, *sizes)
    check_layer(make, query, memory)


@every_form
@pytest.mark.parametrize("T", [None, 3])
def test_contract_under_masks(make, T, rng):
    query, memory = inputs(make, rng, 3, T, 5)
    check_layer(make, query, memory, hide=padding_mask(lengths=[5, 2, 0], size=5))
    check_layer(make, query, memory, hide=rng.random((3, 1, T or 1, 5)) < 0.5)
    check_layer(make, query, memory, hide=np.array([False, True, False, True, True]))


def softmax(scores):
    e = np.exp(scores - scores.max())
    return e / e.sum()


@every_form
def test_formula(make, rng):
    query, memory = inputs(make, rng, 2, 3, 5)
    layer = make().to(dtype="float64")
    context, weights = layer(query, memory), layer.weights(query, memory)
    for b in range(2):
        for t in range(3):
            q, m = query[b, t], memory[b]
            if isinstance(layer, AdditiveAttention):
                scores = np.tanh(q @ layer.query.weight.data + m @ layer.key.weight.data) @ layer.v.data
            else:
                scores = m @ (q if layer.query is None else q @ layer.query.weight.data)
            assert_close(weights[b, t], softmax(scores))
            assert_close(context[b, t], softmax(scores) @ m)


@every_form
def test_one_query_is_a_row_of_many(make, rng):
    query, memory = inputs(make, rng, 2, 3, 5)
    layer, hide = make().to(dtype="float64"), padding_mask(lengths=[4, 5], size=5)
    assert_close(layer(query[:, 1], memory, hide=hide), layer(query, memory, hide=hide)[:, 1])
    weights = layer.weights(query[:, 1], memory, hide=hide)
    assert_close(weights, layer.weights(query, memory, hide=hide)[:, 1])
    assert not weights[0, 4]


@every_form
def test_padding_changes_nothing_whatever_it_holds(make, rng):
    query, memory = inputs(make, rng, 2, 3, 5)
    layer = make().to(dtype="float64")
    longer = np.concatenate([memory, np.full((2, 3, 4), np.nan)], axis=1)
    hide = padding_mask(lengths=[5, 5], size=8)
    y, saved = layer.forward(query, memory)
    longer_y, longer_saved = layer.forward(query, longer, hide=hide)
    assert_close(longer_y, y)
    dy = rng.normal(size=y.shape)
    dquery, dmemory = layer.backward(dy, saved)
    gradients = [p.grad.copy() for p in layer.parameters()]
    layer.zero_grad()
    longer_dquery, longer_dmemory = layer.backward(dy, longer_saved)
    assert_close(longer_dquery, dquery)
    assert_close(longer_dmemory[:, :5], dmemory)
    assert not longer_dmemory[:, 5:].any()
    for p, gradient in zip(layer.parameters(), gradients, strict=True):
        assert_close(p.grad, gradient)


@every_form
def test_a_query_that_sees_nothing_gets_zeros(make, rng):
    query, memory = inputs(make, rng, 2, 3, 5)
    layer = make().to(dtype="float64")
    hide = padding_mask(lengths=[0, 5], size=5)
    y, saved = layer.forward(query, memory, hide=hide)
    dquery, dmemory = layer.backward(np.ones_like(y), saved)
    assert not layer.weights(query, memory, hide=hide)[0].any()
    assert not y[0].any()
    assert not dquery[0].any()
    assert not dmemory[0].any()
    assert dmemory[1].any()


def test_parameter_names():
    def shapes(layer):
        return {name: p.shape for name, p in layer.named_parameters()}

    assert shapes(FORMS["additive"]()) == {"query.weight": (3, 5), "key.weight": (4, 5), "v": (5,)}
    assert shapes(FORMS["general"]()) == {"query.weight": (3, 4)}
    assert shapes(FORMS["dot"]()) == {}
    ones = AdditiveAttention(3, 4, 5, init=lambda shape, rng: np.ones(shape))
    assert (ones.query.weight.data == 1).all()
    assert (ones.key.weight.data == 1).all()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: AdditiveAttention(3, 0, 0), "AdditiveAttention: memory_size must be at least 1, got 0"),
        (lambda: MultiplicativeAttention(0, 3), "MultiplicativeAttention: query_size must be at least 1, got 0"),
        (lambda: MultiplicativeAttention(3, 3, "concat"), "score must be 'dot' or 'general', got 'concat'"),
        (lambda: MultiplicativeAttention(3, 4, "dot"), "score 'dot' needs query_size = memory_size, got 3 and 4"),
    ],
)
def test_bad_construction_is_one_sentence(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_bad_types_are_one_sentence():
    with pytest.raises(TypeError, match=r"AdditiveAttention: hidden_size must be an integer, got 2\.5"):
        AdditiveAttention(3, 4, 2.5)
    with pytest.raises(TypeError, match="AdditiveAttention: dtype must be a floating type, got 'int32'"):
        AdditiveAttention(3, 4, 5, dtype="int32")
    with pytest.raises(TypeError, match="MultiplicativeAttention: dtype must be a floating type, got 'int32'"):
        MultiplicativeAttention(4, 4, "dot", dtype="int32")


@every_form
def test_bad_inputs_are_one_sentence(make, rng):
    query, memory = (x.astype(np.float32) for x in inputs(make, rng, 2, 3, 5))
    layer, name = make(), type(make()).__name__
    with pytest.raises(ValueError, match=rf"{name} takes a query of shape \(B, T, \d\) or \(B, \d\), got \(2, 3, 2\)"):
        layer(query[..., :2], memory)
    with pytest.raises(ValueError, match=rf"{name} takes a memory of shape \(2, S, 4\), got \(1, 5, 4\)"):
        layer(query, memory[:1])
    with pytest.raises(ValueError, match=rf"{name} takes a memory of shape \(2, S, 4\), got \(2, 4\)"):
        layer(query, memory[:, 0])
    with pytest.raises(TypeError, match=f"{name} takes a query and a memory of one dtype, got float64 and float32"):
        layer(query.astype(np.float64), memory)
    with pytest.raises(TypeError, match="takes a floating input, got int64"):
        layer(query, memory.astype(np.int64))
    with pytest.raises(TypeError, match="True hides"):
        layer(query, memory, hide=np.zeros((2, 1, 1, 5)))
    with pytest.raises(ValueError, match=r"broadcasts to \(B, H, T, S\) = \(2, 1, 3, 5\), got \(2, 5\)"):
        layer(query, memory, hide=np.zeros((2, 5), bool))
    _, saved = layer.forward(query, memory)
    with pytest.raises(ValueError, match=rf"{name}.backward takes a gradient of shape \(2, 3, 4\), got \(2, 4, 3\)"):
        layer.backward(np.ones((2, 4, 3), np.float32), saved)


def test_the_parameters_dtype_is_asked_for(rng):
    layer = AdditiveAttention(3, 4, 5)
    with pytest.raises(TypeError, match="float32 parameters and got a float64 input"):
        layer(rng.normal(size=(2, 3)), rng.normal(size=(2, 5, 4)))
