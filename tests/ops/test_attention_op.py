import numpy as np
import pytest
from contract import check_op, check_signatures
from tolerances import assert_close

from gpulayers.masks import padding_mask
from gpulayers.ops import attention as module
from gpulayers.ops import attention_blocks
from gpulayers.ops.attention import attention, attention_backward
from gpulayers.ops.op import Op
from gpulayers.step import Key

# (B, T, S, H, K, d, dv)
SHAPES = [
    (1, 1, 1, 1, 1, 1, 1),
    (2, 5, 5, 4, 2, 3, 3),
    (2, 3, 7, 2, 2, 4, 5),
    (2, 7, 3, 3, 1, 2, 1),
    (1, 130, 130, 2, 2, 8, 8),
    (2, 70, 131, 6, 3, 5, 7),
    (0, 3, 3, 2, 2, 4, 4),
    (2, 0, 3, 2, 1, 4, 4),
    (2, 3, 0, 2, 2, 4, 4),
]
DRAW = Key(seed=3, step=5, call=1, first_sample=2)


def inputs(shape, rng):
    """q, k, v as strided views of one buffer each, and dout."""
    B, T, S, H, K, d, dv = shape
    q = rng.normal(size=(B, T, H * d + 2)).astype(np.float32)[..., 1:-1].reshape(B, T, H, d)
    kv = rng.normal(size=(B, S, K * (d + dv))).astype(np.float32)
    k, v = kv[..., : K * d].reshape(B, S, K, d), kv[..., K * d :].reshape(B, S, K, dv)
    return q, k, v, rng.normal(size=(B, T, H, dv)).astype(np.float32)


def masks(shape, rng):
    B, T, S, H = shape[:4]
    yield None
    yield padding_mask(lengths=rng.integers(0, S + 1, B), size=S)
    yield rng.random((B, H, T, S)) < 0.5
    yield rng.random((1, 1, T, S)) < 0.5


def normalised(op: Op) -> Op:
    """A body may scale each row of the saved weights as it likes: compare weights times inverse."""

    def wrap(body):
        def forward(*args, **softcap):
            out, weights, inverse = body(*args, **softcap)
            return out, weights * inverse[..., None]

        return forward

    return Op(op.name, **{name: wrap(body) for name, body in op.bodies.items()})


def backward_from(body_name: str) -> Op:
    """attention_backward as a function of its inputs: what is saved comes from the forward pass `body_name`."""

    def wrap(body):
        def backward(dout, q, k, v, *options, **softcap):
            saved = attention.bodies[body_name](q, k, v, *options, **softcap)
            d = [np.full(x.shape, np.nan, x.dtype) for x in (q, k, v)]
            return tuple(body(dout, q, k, v, *saved, *options, *d, **softcap))

        return backward

    return Op("attention_backward", **{name: wrap(body) for name, body in attention_backward.bodies.items()})


def test_signatures():
    check_signatures(attention)
    check_signatures(attention_backward)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_bodies_agree(shape, causal, p, rng):
    q, k, v, dout = inputs(shape, rng)
    for hide in masks(shape, rng):
        options = (hide, causal, shape[5] ** -0.5, p, DRAW if p else None)
        check_op(normalised(attention), q, k, v, *options)
        # dw - sum(dw w) is a difference of nearly equal terms where only one or two keys are visible.
        check_op(backward_from("reference"), dout, q, k, v, *options, factor=10)
        check_op(backward_from("cpu"), dout, q, k, v, *options, factor=10)


@pytest.mark.parametrize("shape", [*SHAPES, (2, 1, 7, 4, 2, 3, 3)])
@pytest.mark.parametrize("softcap", [0.5, 30.0])
def test_soft_cap(shape, softcap, rng):
    """Of scores as large as the cap; one query goes another way, and so do rows that underflow."""
    q, k, v, dout = inputs(shape, rng)
    for hide in masks(shape, rng):
        for options in ((hide, True, 1.0, 0.0, None), (hide, False, 0.5, 0.3, DRAW)):
            check_op(normalised(attention), q, k, v, *options, softcap=softcap)
            check_op(backward_from("cpu"), dout, q, k, v, *options, softcap=softcap, factor=10)
    q[:, :1] *= 300
    check_op(normalised(attention), q, k, v, None, True, 1.0, 0.0, None, softcap=100.0, factor=10)  # scores of 100


def test_a_soft_cap_of_0_is_none(rng):
    q, k, v, _ = inputs((2, 3, 7, 2, 2, 4, 5), rng)
    for body in attention.bodies.values():
        if body is not attention.cuda:
            plain, capped = (body(q, k, v, None, True, 1.0, 0.0, None, True, *cap) for cap in ((), (0.0,)))
            assert all(np.array_equal(a, b) for a, b in zip(plain, capped, strict=True))


def test_gradients_go_into_strided_views(rng):
    B, T, H, d = 2, 66, 2, 4
    qkv, found = rng.normal(size=(2, B, T, 3, H, d)).astype(np.float32)
    dout = rng.normal(size=(B, H, T, d)).astype(np.float32).swapaxes(1, 2)
    q, k, v = (qkv[:, :, i] for i in range(3))
    saved = attention(q, k, v, None, True, 0.5, 0.0, None)
    attention_backward(dout, q, k, v, *saved, None, True, 0.5, 0.0, None, *(found[:, :, i] for i in range(3)))
    exact = np.empty((B, T, 3, H, d))
    q, k, v, dout = (x.astype(np.float64) for x in (q, k, v, dout))
    saved = attention(q, k, v, None, True, 0.5, 0.0, None)
    attention_backward(dout, q, k, v, *saved, None, True, 0.5, 0.0, None, *(exact[:, :, i] for i in range(3)))
    assert_close(found, exact, factor=3)


@pytest.mark.parametrize("size", [1, 50, 150, 1 << 30])
@pytest.mark.parametrize("queries", [1, 4, 100])
@pytest.mark.parametrize("causal", [False, True])
def test_block_size_changes_nothing(size, queries, causal, rng, monkeypatch):
    monkeypatch.setattr(attention_blocks, "SCORES", size)
    monkeypatch.setattr(attention_blocks, "QUERIES", queries)
    q, k, v, dout = inputs((2, 9, 12, 4, 2, 3, 3), rng)
    options = (rng.random((2, 4, 9, 12)) < 0.2, causal, 0.5, 0.2, DRAW)
    check_op(normalised(attention), q, k, v, *options)
    check_op(backward_from("cpu"), dout, q, k, v, *options, factor=3)


def test_rows_far_below_the_largest_score(rng):
    """The fast body subtracts one maximum for many rows; where a row underflows it must not lose it."""
    q, k, v, _ = inputs((1, 6, 6, 2, 2, 4, 4), rng)
    q[:, 3] *= 500
    check_op(normalised(attention), q, k, v, None, False, 1.0, 0.0, None, factor=200)  # scores of 1000: 1e-4 apart
    for body in (attention.reference, attention.bodies["cpu"]):
        assert np.isfinite(body(q, k, v, None, False, 1.0, 0.0, None)[0]).all()
    q[:, 3] /= 5  # scores of 200: exp underflows, but rows agree
    check_op(normalised(attention), q, k, v, None, True, 1.0, 0.0, None, factor=40)


@pytest.mark.parametrize("body", ["reference", "cpu"])
@pytest.mark.parametrize("poison", [np.nan, np.inf, 3e38])
def test_padding_never_matters(body, poison, rng):
    """Whatever lies in keys and values that no query sees."""
    q, k, v, dout = inputs((2, 5, 6, 2, 1, 4, 4), rng)
    hide = padding_mask(lengths=[6, 4], size=6)

    def run(k, v):
        out, weights, inverse = attention.bodies[body](q, k, v, hide, False, 0.5, 0.0, None)
        d = [np.empty_like(x) for x in (q, k, v)]
        attention_backward.bodies[body](dout, q, k, v, out, weights, inverse, hide, False, 0.5, 0.0, None, *d)
        return out, *d

    clean = run(k, v)
    k, v = k.copy(), v.copy()
    k[1, 4:] = v[1, 4:] = poison
    for a, b in zip(run(k, v), clean, strict=True):
        assert np.allclose(a, b, rtol=1e-5, atol=1e-6)
    assert not clean[2][1, 4:].any()
    assert not clean[3][1, 4:].any()


@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_without_saving_the_output_is_the_same(body, rng):
    q, k, v, _ = inputs((3, 70, 70, 2, 1, 4, 4), rng)
    options = (None, True, 0.5, 0.0, None)
    out, *nothing = attention.bodies[body](q, k, v, *options, save=False)
    assert np.array_equal(out, attention.bodies[body](q, k, v, *options)[0])
    assert nothing == [None, None]


def test_dropout_bits_do_not_depend_on_the_split(rng):
    q, k, v, _ = inputs((4, 5, 5, 2, 2, 3, 3), rng)
    whole = attention(q, k, v, None, True, 0.5, 0.4, DRAW)[0]
    for n in range(4):
        part = slice(n, n + 1)
        alone = attention(q[part], k[part], v[part], None, True, 0.5, 0.4, DRAW._replace(first_sample=2 + n))[0]
        assert np.array_equal(alone, whole[part])


@pytest.mark.parametrize("together", [1, 2, 3, 5])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.4])
def test_samples_that_go_together(together, shared, p, rng, monkeypatch):
    """Groups of samples, the last one smaller; a mask for each sample or one for all; the same bits as alone."""
    q, k, v, dout = inputs((5, 3, 4, 4, 2, 3, 3), rng)
    hide = rng.random((1, 1, 3, 4) if shared else (5, 4, 3, 4)) < 0.3
    for part in (hide, padding_mask(lengths=np.arange(5), size=4), None):
        options = (part, False, 0.5, p, DRAW)
        monkeypatch.setattr(attention_blocks, "SCORES", 4 * 3 * 4)
        alone = attention(q, k, v, *options)
        monkeypatch.setattr(attention_blocks, "SCORES", 4 * 3 * 4 * together)
        for a, b in zip(alone, attention(q, k, v, *options), strict=True):
            assert np.array_equal(a, b)
        check_op(normalised(attention), q, k, v, *options)
        check_op(backward_from("cpu"), dout, q, k, v, *options, factor=3)


# --------------------------------------------------------------------------------------- reported cases


def attend(body, q, k, v, hide=None, causal=False, scale=1.0):
    """One sample, one head: q (T, d), k (S, d), v (S,) -> out (T,), dq, dk, dv for dout = 1."""
    q, k, v = (np.array(x, np.float32).reshape(1, len(x), 1, -1) for x in (q, k, v))
    out, weights, inverse = attention.bodies[body](q, k, v, hide, causal, scale, 0.0, None)
    d = [np.empty_like(x) for x in (q, k, v)]
    attention_backward.bodies[body](
        np.ones_like(out), q, k, v, out, weights, inverse, hide, causal, scale, 0.0, None, *d
    )
    return out.ravel(), (weights * inverse[..., None])[0, 0], *(x[0, :, 0] for x in d)


@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_a_query_without_a_visible_key(body):
    """Reported case H05 (pytorch #103963)."""
    hide = np.array([[False, False], [True, True]])[None, None]
    out, weights, dq, _, dv = attend(body, np.zeros((2, 1)), np.zeros((2, 1)), [1, 3], hide)
    assert out.tolist() == [2, 0]
    assert weights.tolist() == [[0.5, 0.5], [0, 0]]
    assert dq.tolist() == [[0], [0]]
    assert dv.tolist() == [[0.5], [0.5]]


@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_causal_with_fewer_queries_than_keys(body, rng):
    """Reported case H06 (Dao-AILab/flash-attention #282): the last query sees all keys."""
    out = attend(body, np.zeros((3, 1)), np.zeros((5, 1)), [1, 2, 3, 4, 5], causal=True)[0]
    assert np.allclose(out, [2.0, 2.5, 3.0])
    q, k, v, _ = inputs((2, 6, 6, 2, 2, 4, 4), rng)
    whole = attention.bodies[body](q, k, v, None, True, 0.5, 0.0, None)[0]
    for t in range(6):
        seen = slice(0, t + 1)
        one = attention.bodies[body](q[:, t : t + 1], k[:, seen], v[:, seen], None, True, 0.5, 0.0, None)[0]
        assert np.allclose(one[:, 0], whole[:, t], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_causal_with_more_queries_than_keys(body):
    out, _, dq, _, _ = attend(body, np.zeros((3, 1)), np.zeros((2, 1)), [1, 3], causal=True)
    assert out.tolist() == [0, 1, 2]
    assert not dq[0].any()


@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_true_hides(body):
    """Reported case H07 (pytorch PR 170415)."""
    hide = np.array([True, True, False])[None, None, None]
    assert attend(body, np.zeros((1, 1)), np.zeros((3, 1)), [1, 2, 3], hide)[0].tolist() == [3]


@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_the_scale_comes_before_the_softmax(body):
    """Reported case H08 (FrancescoSaverioZuppichini/ViT #2), and once in dq and once in dk."""
    q, k = np.full((1, 4), 2.0), np.array([[1.0] * 4, [0.0] * 4])
    out, weights, dq, dk, _ = attend(body, q, k, [1, 0], scale=0.5)
    assert np.allclose(weights, [[0.9820138, 0.0179862]])
    assert np.allclose(out, 0.9820138)
    ds = 0.9820138 * 0.0179862
    assert np.allclose(dq, 0.5 * ds, rtol=1e-5)
    assert np.allclose(dk, [[0.5 * 2 * ds] * 4, [-0.5 * 2 * ds] * 4], rtol=1e-5)


@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_no_query(body):
    """Reported case H13 (intel/torch-xpu-ops PR 4378)."""
    q, kv = np.zeros((1, 0, 1, 2), np.float32), np.ones((1, 3, 1, 2), np.float32)
    out, weights, inverse = attention.bodies[body](q, kv, kv, None, False, 1.0, 0.0, None)
    assert out.shape == (1, 0, 1, 2)
    d = [np.full_like(x, np.nan) for x in (q, kv, kv)]
    attention_backward.bodies[body](out, q, kv, kv, out, weights, inverse, None, False, 1.0, 0.0, None, *d)
    assert not any(x.any() for x in d)


@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_a_query_that_sees_nothing_has_no_gradient_whatever_it_holds(body, rng):
    q, k, v, dout = rng.normal(size=(4, 1, 3, 2, 4)).astype(np.float32)
    q[0, 1] = np.nan
    hide = np.zeros((1, 1, 3, 3), bool)
    hide[:, :, 1] = True
    for cap in (0.0, 2.0):
        options = (hide, False, 0.5, 0.0, None)
        saved = attention.bodies[body](q, k, v, *options, softcap=cap)
        dq, _, dv = (np.full_like(x, np.nan) for x in (q, k, v))
        attention_backward.bodies[body](dout, q, k, v, *saved, *options, dq, np.empty_like(k), dv, softcap=cap)
        assert not dq[0, 1].any()
        assert np.isfinite(dq).all()
        assert np.isfinite(dv).all()


def test_the_bias_of_a_long_causal_square_is_not_kept(rng):
    size = int(attention_blocks.KEPT**0.5)
    for length, kept in ((size, 1), (size + 1, 0)):
        attention_blocks._kept_causal_bias.cache_clear()
        q = rng.normal(size=(1, length, 1, 1)).astype(np.float32)
        out = attention(q, q, q, None, True, 1.0, 0.0, None, False)[0]
        assert_close(out[0, 0], q[0, 0])
        assert attention_blocks._kept_causal_bias.cache_info().currsize == kept


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("cap", [0.0, 2.0])
@pytest.mark.parametrize("masked", [False, True])
def test_weights_that_are_made_again_have_the_same_bits(causal, p, cap, masked, rng, monkeypatch):
    """From LONG keys on forward keeps none. Blocks of 16 queries, so that there are several."""
    monkeypatch.setattr(attention_blocks, "QUERIES", 16)
    monkeypatch.setattr(attention_blocks, "SCORES", 1 << 10)
    q, k, v, dout = inputs((3, 37, 41, 4, 2, 8, 4), rng)
    q[:, 3] *= 1000  # a row whose sum underflows is done again by itself
    hide = rng.random((3, 1, 37, 41)) < 0.3 if masked else None
    options = (hide, causal, 0.5, p, Key(1, 2, 3, 0) if p else None)

    def run(backward, long):
        monkeypatch.setattr(module, "LONG", long)
        saved = attention.bodies["cpu"](q, k, v, *options, softcap=cap)
        assert (saved[1] is None) == (long < 41)
        d = [np.full(x.shape, np.nan, x.dtype) for x in (q, k, v)]
        return saved[0], *attention_backward.bodies[backward](dout, q, k, v, *saved, *options, *d, softcap=cap)

    kept, again = run("cpu", 42), run("cpu", 40)
    assert all(np.array_equal(a, b) for a, b in zip(kept, again, strict=True))
    for a, b in zip(run("reference", 42), run("reference", 40), strict=True):
        assert np.allclose(a, b, rtol=1e-3, atol=1e-3 * np.abs(a).max())
