"""Softmax between two products: q (3, 2) times k (2, 3), and the gradient of both."""

import numpy as np
import pytest
from tolerances import assert_close

from gpulayers.gradcheck import GradientError, gradcheck
from gpulayers.layers.layer import Layer
from gpulayers.layers.softmax import Softmax
from gpulayers.ops.attention import attention, attention_backward


class Weights(Layer):
    """softmax(before q k) after, with a softmax that may be a wrong one."""

    def __init__(self, before=1.0, after=1.0, softmax=None):
        self.before, self.after, self.softmax = before, after, softmax or Softmax()

    def forward(self, q, k, train=None):
        s, saved = self.softmax.forward(self.before * (q @ k))
        return self.after * s, (q, k, saved)

    def backward(self, dy, saved):
        q, k, saved = saved
        dscores = self.before * self.softmax.backward(self.after * dy, saved)
        return dscores @ k.T, q.T @ dscores


class Diagonal(Softmax):
    def backward(self, dy, saved):
        s = saved.reshape(dy.shape)
        return s * (1 - s) * dy


@pytest.fixture
def given(rng):
    return rng.normal(size=(3, 2)), rng.normal(size=(2, 3)), rng.normal(size=(3, 3))


@pytest.mark.parametrize("factors", [(1.0, 1.0), (2**-0.5, 1.0), (1.0, 2**-0.5)])
def test_finite_differences(factors, given):
    q, k, _ = given
    assert gradcheck(Weights(*factors), q, k) < 1e-8


def test_the_full_jacobian_written_out(given):
    """dq and dk through d vec(s) / d vec(scores), 9 x 9: a block diag(s) - s s' for each row."""
    (q, k, dy), scale = given, 2**-0.5
    layer = Weights(scale)
    s, saved = layer.forward(q, k)
    dq, dk = layer.backward(dy, saved)
    jacobian = np.zeros((9, 9))
    for i in range(3):
        part = slice(3 * i, 3 * i + 3)
        jacobian[part, part] = np.diag(s[i]) - np.outer(s[i], s[i])
    scores_by_q = scale * np.einsum("ij,bk->ikjb", np.eye(3), k).reshape(9, 6)  # scores[i, k], q[j, b]
    scores_by_k = scale * np.einsum("ib,kj->ikbj", q, np.eye(3)).reshape(9, 6)  # scores[i, k], k[b, j]
    assert_close(dq.ravel(), dy.ravel() @ jacobian @ scores_by_q, "float64")
    assert_close(dk.ravel(), dy.ravel() @ jacobian @ scores_by_k, "float64")


@pytest.mark.parametrize(
    ("dy", "right", "diagonal"),
    [
        ([1, 0, 0], [0.0819251, -0.0220330, -0.0598920], [0.0819251, 0, 0]),
        ([0.5, -1, 2], [-0.0567885, -0.5214598, 0.5782482], [0.0409625, -0.1848364, 0.4453909]),
        ([1, 1, 1], [0, 0, 0], [0.0819251, 0.1848364, 0.2226954]),
    ],
)
def test_the_diagonal_is_not_the_derivative(dy, right, diagonal):
    """Reported case H04 (wkcn/mobula #3)."""
    x, dy = np.array([[1.0, 2.0, 3.0]]), np.array([dy], float)
    for layer, expected in ((Softmax(), right), (Diagonal(), diagonal)):
        assert np.allclose(layer.backward(dy, layer.forward(x)[1]), expected, atol=5e-8)


def test_the_gradient_check_finds_the_diagonal(given):
    with pytest.raises(GradientError, match="input 0"):
        gradcheck(Weights(softmax=Diagonal()), *given[:2])


@pytest.mark.parametrize(
    ("before", "after", "weights"),
    [
        (0.5, 1.0, [0.9820138, 0.0179862]),
        (1.0, 0.5, [0.4998323, 0.0001677]),
        (1.0, 1.0, [0.9996646, 0.0003354]),
    ],
)
def test_the_scale_belongs_before(before, after, weights):
    """Reported case H08 (FrancescoSaverioZuppichini/ViT #2): d = 4."""
    q, keys = np.full((1, 4), 2.0), np.array([[1.0] * 4, [0.0] * 4])
    found = Weights(before, after)(q, keys.T)
    assert np.allclose(found, [weights], atol=5e-8)
    assert np.isclose(found.sum(), after)
    heads = [a[None, :, None] for a in (q, keys, np.array([[1.0], [0.0]]))]
    out, w, inverse = attention(*heads, None, False, 0.5, 0.0, None)
    assert np.allclose(out, 0.9820138)
    assert np.allclose(w * inverse[..., None], [0.9820138, 0.0179862])


def test_the_attention_op_is_the_same(given):
    """One head: q k' in the op's layout, values the identity, so that out is the weights."""
    (q, k, dy), scale = given, 2**-0.5
    layer = Weights(scale)
    s, saved = layer.forward(q, k)
    dq, dk = layer.backward(dy, saved)
    heads = [a[None, :, None] for a in (q, k.T, np.eye(3))]
    out, weights, inverse = attention(*heads, None, False, scale, 0.0, None)
    assert_close(out[0, :, 0], s, "float64")
    gradients = [np.empty_like(a) for a in heads]
    attention_backward(dy[None, :, None], *heads, out, weights, inverse, None, False, scale, 0.0, None, *gradients)
    assert_close(gradients[0][0, :, 0], dq, "float64")
    assert_close(gradients[1][0, :, 0], dk.T, "float64")
