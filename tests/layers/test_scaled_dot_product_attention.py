import numpy as np
import pytest
from contract import check_layer
from devices import DEVICES
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import assert_close

import gpulayers as gl
from gpulayers.layers.layer import Layer
from gpulayers.layers.scaled_dot_product_attention import (
    scaled_dot_product_attention,
    scaled_dot_product_attention_backward,
)
from gpulayers.masks import causal_mask, padding_mask

everywhere = pytest.mark.parametrize("device", ["numpy", *DEVICES])


class Attend(Layer):
    """The two functions as a layer, for the checks that all layers have."""

    def __init__(self, **options):
        self.options = options

    def forward(self, *inputs, hide=None, train=None):
        return scaled_dot_product_attention(*inputs, hide=hide, train=train, **self.options)

    def backward(self, dy, saved):
        return scaled_dot_product_attention_backward(dy, saved)


def attend(q, k, v, device="numpy", **options):
    """The output on a device, of nested lists."""
    arrays = [gl.to_device(np.asarray(a, np.float32), device) for a in (q, k, v)]
    if "hide" in options:
        options["hide"] = gl.to_device(np.asarray(options["hide"]), device)
    y, saved = scaled_dot_product_attention(*arrays, **options)
    return gl.to_numpy(y), saved


# Batch, heads, key heads, queries, keys, size, size of values
SHAPES = [
    (1, 1, 1, 1, 1, 1, 1),
    (2, 4, 2, 5, 7, 3, 2),
    (2, 3, 1, 7, 5, 5, 1),
    (1, 2, 2, 131, 67, 4, 4),
    (0, 2, 2, 3, 3, 4, 4),
    (2, 2, 1, 0, 3, 4, 4),
    (2, 2, 2, 3, 0, 4, 4),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_contract(shape, softcap, rng):
    B, H, K, T, S, d, dv = shape
    q, k, v = rng.normal(size=(B, H, T, d)), rng.normal(size=(B, K, S, d)), rng.normal(size=(B, K, S, dv))
    options = {"enable_gqa": H != K, "softcap": softcap}
    for hide, causal in ((None, True), (padding_mask(lengths=rng.integers(0, S + 1, B), size=S), False)):
        check_layer(lambda causal=causal: Attend(is_causal=causal, **options), q, k, v, hide=hide)
    hide = rng.random((B, H, T, S)) < 0.3
    check_layer(lambda: Attend(dropout_p=0.4, **options), q, k, v, hide=hide, train=gl.Train(seed=3))


@pytest.mark.parametrize("leading", [(), (3,)])
def test_without_heads_and_without_a_batch(leading, rng):
    q, k, v = (rng.normal(size=(*leading, n, d)) for n, d in ((5, 4), (7, 4), (7, 3)))
    masks = [rng.random(shape) < 0.3 for shape in ((5, 7), (7,), (5, 1), (*leading, 5, 7))]
    for hide in (None, *masks):
        check_layer(lambda: Attend(is_causal=True, softcap=2.0), q, k, v, hide=hide)


def by_hand(q, k, v, hidden, scale, softcap):
    """Explicit, in float64; nothing is seen: 0."""
    z = scale * (q @ k.swapaxes(-1, -2))
    z = softcap * np.tanh(z / softcap) if softcap else z
    e = np.where(hidden, 0, np.exp(z))
    total = e.sum(-1, keepdims=True)
    return e / np.where(total == 0, 1, total) @ v


@settings(deadline=None, max_examples=8)
@given(st.data())
def test_any_shape_stride_and_mask(data):
    """Output against the formula written out; three bodies agree; what is hidden may hold anything."""
    B, K, G, T, S, d, dv = (
        data.draw(st.integers(1, n), label=label) for n, label in zip((3, 3, 3, 6, 6, 5, 5), "BKGTSdv", strict=True)
    )
    H, rng = K * G, np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    mask_shape = tuple(n if data.draw(st.booleans()) else 1 for n in (B, H, T, S))
    hide = data.draw(st.sampled_from([None, rng.random(mask_shape) < 0.5]))
    causal, softcap = data.draw(st.booleans()), data.draw(st.sampled_from([None, 0.7, 30.0]))
    q, k, v = (
        rng.normal(size=(B, n, 2, heads, size)).astype(np.float32)[:, :, 1].swapaxes(1, 2)
        for n, heads, size in ((T, H, d), (S, K, d), (S, K, dv))
    )
    hidden = np.broadcast_to(causal_mask(T, S) if causal else False, (B, H, T, S)) | (False if hide is None else hide)
    options = {"is_causal": causal, "softcap": softcap, "enable_gqa": True}
    wide = [np.repeat(a, n, axis=1).astype(np.float64) for a, n in ((q, 1), (k, G), (v, G))]
    expected = by_hand(*wide, hidden, d**-0.5, softcap)
    dy, found = rng.normal(size=expected.shape).astype(np.float32), []
    for device, dtype in (("numpy", "float64"), ("numpy", "float32"), ("emulated", "float32")):
        arrays = [gl.to_device(a.astype(dtype), device) for a in (q, k, v)]
        mask = None if hide is None else gl.to_device(hide, device)
        y, saved = scaled_dot_product_attention(*arrays, hide=mask, **options)
        gradients = scaled_dot_product_attention_backward(gl.to_device(dy.astype(dtype), device), saved)
        found.append([gl.to_numpy(a) for a in (y, *gradients)])
        assert_close(found[-1][0], expected, dtype, factor=5, scale=1)
        assert not found[-1][0][hidden.all(axis=-1)].any()
        assert not found[-1][1][hidden.all(axis=-1)].any()
    for body in found[1:]:
        for a, b in zip(body, found[0], strict=True):
            assert_close(a, b, "float32", factor=5, scale=1)


# ------------------------------------------------------------------------------------------------- reported cases


@everywhere
def test_h05_a_query_that_sees_nothing(device):
    """pytorch #103963."""
    y, saved = attend([[0], [0]], [[0], [0]], [[1], [3]], device, hide=[[False, False], [True, True]], softcap=3.0)
    assert y.ravel().tolist() == [2, 0]
    dq, dk, dv = scaled_dot_product_attention_backward(gl.to_device(np.array([[0], [7]], np.float32), device), saved)
    assert not any(gl.to_numpy(a).any() for a in (dq, dk, dv))


@everywhere
def test_h06_causal_with_fewer_queries_than_keys(device):
    """Dao-AILab/flash-attention #282."""
    y, _ = attend(np.zeros((3, 1)), np.zeros((5, 1)), [[1], [2], [3], [4], [5]], device, is_causal=True)
    assert_close(y.ravel(), np.array([2, 2.5, 3]))


@everywhere
def test_h07_true_hides(device):
    """pytorch PR #170415: keeping would give 1.5."""
    y, _ = attend([[0]], np.zeros((3, 1)), [[1], [2], [3]], device, hide=[[True, True, False]])
    assert y.tolist() == [[3]]
    with pytest.raises(TypeError, match="got a mask that is a int64 array: masks are boolean, True hides"):
        attend([[0]], np.zeros((3, 1)), [[1], [2], [3]], device, hide=[[1, 1, 0]])


@everywhere
def test_h08_the_scale_is_inside_the_softmax(device):
    """FrancescoSaverioZuppichini/ViT #2; in backward it counts once for the query and once for the keys."""
    q, k, v = np.full((1, 4), 2.0), [[1.0] * 4, [0.0] * 4], [[1.0], [0.0]]
    y, saved = attend(q, k, v, device)
    assert_close(y, np.array([[0.9820138]]))
    dq, dk, _ = scaled_dot_product_attention_backward(gl.to_device(np.ones((1, 1), np.float32), device), saved)
    slope = 0.9820138 * 0.0179862
    assert_close(gl.to_numpy(dq), np.full((1, 4), 0.5 * slope), factor=3)
    assert_close(gl.to_numpy(dk), np.array([[slope] * 4, [-slope] * 4]), factor=3)


@everywhere
def test_nan_in_a_hidden_key_changes_nothing(device, rng):
    q, k, v = rng.normal(size=(3, 2, 2, 4, 3))
    k[0, :, 2:] = v[0, :, 2:] = np.nan
    hide = padding_mask(lengths=[2, 4], size=4)
    y, saved = attend(q, k, v, device, hide=hide, softcap=2.0)
    assert_close(y[0], attend(q[0], k[0, :, :2], v[0, :, :2], device, softcap=2.0)[0], factor=2)
    dq, dk, dv = scaled_dot_product_attention_backward(gl.to_device(np.ones_like(y), device), saved)
    assert all(np.isfinite(gl.to_numpy(a)).all() for a in (dq, dk, dv))
    assert not any(gl.to_numpy(a)[0, :, 2:].any() for a in (dk, dv))


# ------------------------------------------------------------------------------------------------- options


def test_a_soft_cap_holds_the_scores(rng):
    """With a cap of 0.001 nothing is told apart; a large one changes nothing."""
    q, k, v = (100 * rng.normal(size=(2, 5, 4)) for _ in range(3))
    small, _ = scaled_dot_product_attention(q, k, v, softcap=1e-9)
    assert np.allclose(small, v.mean(axis=1, keepdims=True))
    large, _ = scaled_dot_product_attention(q / 100, k, v, softcap=1e9)
    assert np.allclose(large, scaled_dot_product_attention(q / 100, k, v)[0])


def test_dropout_only_in_training(rng):
    q, k, v = rng.normal(size=(3, 2, 2, 5, 4)).astype(np.float32)
    plain = scaled_dot_product_attention(q, k, v)[0]
    assert np.array_equal(scaled_dot_product_attention(q, k, v, dropout_p=0.5)[0], plain)
    first, again = (scaled_dot_product_attention(q, k, v, dropout_p=0.5, train=gl.Train(seed=1))[0] for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.allclose(first, plain)


def test_inputs_and_gradient_are_not_written(rng):
    arrays = [rng.normal(size=(2, 2, 5, 4)).astype(np.float32) for _ in range(4)]
    for a in arrays:
        a.flags.writeable = False
    _, saved = scaled_dot_product_attention(*arrays[:3], is_causal=True, softcap=1.0)
    scaled_dot_product_attention_backward(arrays[3], saved)


Q = np.zeros((2, 4, 3, 8), np.float32)
KV = Q[:, :2]


@pytest.mark.parametrize(
    ("call", "kind", "sentence"),
    [
        (
            lambda f: f(Q, Q, Q, attn_mask=None),
            TypeError,
            "takes no attn_mask=: masks are boolean, True hides, and are",
        ),
        (lambda f: f(Q, Q, Q, dropout=0.1), TypeError, "got an unexpected keyword argument 'dropout'"),
        (lambda f: f(Q, KV, KV), ValueError, "takes a key (2, 4, S, 8), got (2, 2, 3, 8); enable_gqa=True lets query"),
        (lambda f: f(KV, Q, Q, enable_gqa=True), ValueError, "a query (2, 2, 3, 8) takes a key (2, 2, S, 8), got"),
        (lambda f: f(Q, Q[..., :4], Q), ValueError, "a query (2, 4, 3, 8) takes a key (2, 4, S, 8), got (2, 4, 3, 4)"),
        (
            lambda f: f(Q, Q, Q[:, :, :2]),
            ValueError,
            "a key (2, 4, 3, 8) takes a value (2, 4, 3, dv), got (2, 4, 2, 8)",
        ),
        (
            lambda f: f(Q, Q[0], Q[0]),
            ValueError,
            "takes three arrays (B, H, T, d), (B, T, d) or (T, d), got (2, 4, 3, 8)",
        ),
        (lambda f: f(Q[0, 0, 0], Q[0, 0, 0], Q[0, 0, 0]), ValueError, "takes three arrays (B, H, T, d), (B, T, d) or"),
        (
            lambda f: f(Q[..., :0], Q[..., :0], Q),
            ValueError,
            "takes three arrays (B, H, T, d), (B, T, d) or (T, d), got",
        ),
        (lambda f: f(Q, Q, Q.astype(np.float64)), TypeError, "of one dtype, got float32 and float64 (value)"),
        (lambda f: f(Q, Q.astype(int), Q), TypeError, "takes a floating key, got int64"),
        (lambda f: f(Q, Q, [[1.0]]), TypeError, "expected an array of numpy or cupy, got list"),
        (lambda f: f(Q, Q, Q, hide=np.zeros((4, 3, 3), bool)), ValueError, "which may mean (B, T, S) or (H, T, S)"),
        (lambda f: f(Q, Q, Q, hide=np.zeros((5, 3), bool)), ValueError, "broadcasts to (B, H, T, S) = (2, 4, 3, 3)"),
        (lambda f: f(Q, Q, Q, hide=[[True]]), TypeError, "got a mask that is a list: masks are boolean"),
        (lambda f: f(Q, Q, Q, is_causal=1), TypeError, "is_causal must be True or False, got 1"),
        (lambda f: f(Q, Q, Q, dropout_p=1.0), ValueError, "dropout_p must be in [0, 1), got 1.0"),
        (lambda f: f(Q, Q, Q, dropout_p=None), TypeError, "dropout_p must be a number, got None"),
        (lambda f: f(Q, Q, Q, scale=0), ValueError, "scale must be above 0, got 0"),
        (lambda f: f(Q, Q, Q, scale=np.inf), ValueError, "scale must be finite, got inf"),
        (lambda f: f(Q, Q, Q, softcap=-1.0), ValueError, "softcap must be above 0, got -1.0"),
        (lambda f: f(Q, Q, Q, softcap="50"), TypeError, "softcap must be a number, got '50'"),
    ],
)
def test_refused_in_one_sentence(call, kind, sentence):
    with pytest.raises(kind, match=r".") as caught:
        call(scaled_dot_product_attention)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_refused_gradients():
    _, saved = scaled_dot_product_attention(Q, Q, Q)
    with pytest.raises(ValueError, match=r"backward takes a gradient of shape \(2, 4, 3, 8\), got \(4, 3, 8\)"):
        scaled_dot_product_attention_backward(Q[0], saved)
    with pytest.raises(TypeError, match="backward takes a float32 gradient, as y is, got float64"):
        scaled_dot_product_attention_backward(Q.astype(np.float64), saved)
