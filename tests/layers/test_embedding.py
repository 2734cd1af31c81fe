import numpy as np
import pytest
from contract import check_layer

from gpulayers.layers.embedding import Embedding
from gpulayers.layers.linear import Linear
from gpulayers.layers.sequential import Sequential
from gpulayers.ops.matmul import matmul


@pytest.mark.parametrize("shape", [(1,), (7,), (2, 3), (2, 3, 5), (0, 3), ()])
@pytest.mark.parametrize("dtype", [np.int64, np.uint8])
@pytest.mark.parametrize("padding_idx", [None, 2, -1])
def test_contract(shape, dtype, padding_idx, rng):
    ids = np.asarray(rng.integers(0, 5, shape), dtype)
    if padding_idx is None:
        check_layer(lambda: Embedding(5, 3, rng=0), ids)
    layer = Embedding(5, 3, padding_idx, rng=0)
    y, saved = layer.forward(ids)
    assert y.shape == (*shape, 3)
    assert layer.backward(np.ones_like(y), saved) is None
    counts = np.bincount(ids.ravel(), minlength=5)
    if padding_idx is not None:
        assert not layer.weight.data[padding_idx].any()
        counts[padding_idx] = 0
    assert layer.weight.grad.tolist() == [[n] * 3 for n in counts.tolist()]


def test_repeated_ids_add_up():
    """Reported case H18 (HIPS/autograd #39)."""
    for ids in ([2, 0, 2], [[2], [0], [2]]):
        layer = Embedding(3, 2, rng=0)
        y, saved = layer.forward(np.array(ids))
        layer.backward(np.array([[1, 1], [10, 10], [100, 100]], np.float32).reshape(y.shape), saved)
        assert layer.weight.grad.tolist() == [[10, 10], [0, 0], [101, 101]]


def test_no_ids():
    """Reported case H13 (intel/torch-xpu-ops PR 4378)."""
    layer = Embedding(5, 2, rng=0)
    y, saved = layer.forward(np.zeros((0, 3), np.int64))
    assert y.shape == (0, 3, 2)
    layer.backward(y, saved)
    assert layer.weight.grad.shape == (5, 2)
    assert not layer.weight.grad.any()


@pytest.mark.parametrize("head_first", [True, False])
def test_tied_with_a_head(head_first):
    """Reported case H19 (paiml/entrenar #314): both uses of the weight add their part."""
    layer = Embedding(2, 1, rng=0)
    layer.weight.data[...] = [[1], [2]]
    h, saved = layer.forward(np.array([0]))
    logits = h @ layer.weight.data.T
    dlogits = np.exp(logits) / np.exp(logits).sum() - np.array([[0, 1]], np.float32)
    dh = dlogits @ layer.weight.data
    parts = [
        lambda: matmul(dlogits.T, h, add_to=layer.weight),
        lambda: layer.backward(dh, saved),
    ]
    for part in parts if head_first else parts[::-1]:
        part()
    assert np.allclose(layer.weight.grad.ravel(), [0, -0.2689414], atol=1e-6)


def test_the_worked_chain(rng):
    """Embedding, W3, W2, W1: dW1 = h1' dlogits, dh1 = dlogits W1', and so on down to the rows of the embedding."""
    w3, w2, w1 = (Linear(a, b, bias=False, rng=i) for i, (a, b) in enumerate([(4, 5), (5, 6), (6, 7)]))
    model = Sequential(embedding := Embedding(8, 4, rng=9), w3, w2, w1).to(dtype="float64")
    ids, dlogits = np.array([3, 1, 3]), rng.normal(size=(3, 7))
    logits, saved = model.forward(ids)
    assert model.backward(dlogits, saved) is None
    W3, W2, W1, E = (layer.weight.data for layer in (w3, w2, w1, embedding))
    h3 = E[ids]
    h2 = h3 @ W3
    h1 = h2 @ W2
    assert np.allclose(logits, h1 @ W1, rtol=1e-13)
    dh1 = dlogits @ W1.T
    dh2 = dh1 @ W2.T
    dh3 = dh2 @ W3.T
    assert np.allclose(w1.weight.grad, h1.T @ dlogits, rtol=1e-13)
    assert np.allclose(w2.weight.grad, h2.T @ dh1, rtol=1e-13)
    assert np.allclose(w3.weight.grad, h3.T @ dh2, rtol=1e-13)
    rows = np.zeros((8, 4))
    rows[3], rows[1] = dh3[0] + dh3[2], dh3[1]
    assert np.allclose(embedding.weight.grad, rows, rtol=1e-13)


def test_errors_are_one_sentence():
    layer = Embedding(5, 2, rng=0)
    with pytest.raises(ValueError, match=r"^Embedding: the id at position \(0, 1\) is 5, outside 0\.\.4$"):
        layer(np.array([[0, 5]]))
    with pytest.raises(TypeError, match=r"^Embedding takes an array of integer ids, got float32$"):
        layer(np.zeros(2, np.float32))
    with pytest.raises(TypeError, match=r"^Embedding takes an array of integer ids, got list$"):
        layer([1, 2])
    with pytest.raises(ValueError, match="padding_idx 5 is outside the 5 embeddings"):
        Embedding(5, 2, padding_idx=5)


def test_default_is_standard_normal():
    data = Embedding(300, 100, rng=0).weight.data
    assert data.dtype == np.float32
    assert abs(data.mean()) < 0.02
    assert abs(data.std() - 1) < 0.02
    assert not Embedding(3, 2, init=lambda shape, rng: np.zeros(shape)).weight.data.any()
