"""MultiHeadAttention in every layout: batch first or second, or one sample; masks of every shape; the soft cap."""

import numpy as np
import pytest
from contract import check_layer
from devices import on_devices
from tolerances import assert_close

import gpulayers as gl
from gpulayers.layers.attention import MultiHeadAttention
from gpulayers.masks import causal_mask, padding_mask
from gpulayers.step import Train

FORMS = [
    {},
    {"kdim": 3},
    {"kdim": 3, "vdim": 5, "value_head_dim": 3, "kv_heads": 2},
    {"rotary": True, "head_dim": 4, "kv_heads": 1, "softcap": 1.5},
    {"dropout": 0.3, "bias": False, "softcap": 0.5},
]


def inputs(form, rng, B=2, T=5, S=7):
    """(B, length, size) of each input of a form."""
    shapes = [(B, T, 8)] + [(B, S, form[name]) for name in ("kdim", "vdim") if name in form]
    return [rng.normal(size=shape) for shape in shapes]


def swapped(arrays):
    return [a.swapaxes(0, 1) for a in arrays]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "layout", ["batch second", "one sample", "one sample, batch second", "empty batch", "no queries"]
)
def test_contract(form, layout, rng):
    batch_first = "batch second" not in layout
    x = inputs(form, rng, B=0 if layout == "empty batch" else 2, T=0 if layout == "no queries" else 5)
    x = [a[0] for a in x] if "one sample" in layout else x if batch_first else swapped(x)

    def make():
        return MultiHeadAttention(8, 4, rng=0, batch_first=batch_first, **form)

    S = x[1].shape[-2 if batch_first or "one" in layout else 0] if len(x) > 1 else None
    check_layer(make, *x, causal=True, train=Train(seed=3))
    if S is not None and not form.get("dropout"):
        check_layer(make, *x, hide=rng.random((1, 4, 1, S)) < 0.4)


@pytest.mark.parametrize(
    ("form", "device"),
    [
        *((form, "numpy") for form in FORMS),
        *((form, "emulated") for form in FORMS[2:4]),
        *(pytest.param(form, "cupy", marks=pytest.mark.gpu) for form in FORMS),
    ],
)
def test_layouts_agree(form, device, rng):
    """Outputs and gradients of one layer: batch second and sample by sample are the batch, moved."""
    first = MultiHeadAttention(8, 4, rng=0, **{**form, "dropout": 0.0})
    second = MultiHeadAttention(8, 4, rng=0, batch_first=False, **{**form, "dropout": 0.0})
    arrays = [a.astype(np.float32) for a in inputs(form, rng)]
    hide = rng.random((2, 4, 5, 5 if len(arrays) == 1 else 7)) < 0.3

    def run(layer, arrays, hide, dy):
        y, saved = layer.to(device).forward(*(gl.to_device(a, device) for a in arrays), hide=gl.to_device(hide, device))
        layer.zero_grad()
        dx = layer.backward(gl.to_device(dy, device), saved)
        dx = [gl.to_numpy(a) for a in (dx if isinstance(dx, tuple) else (dx,))]
        return [gl.to_numpy(y), *dx], [gl.to_numpy(p.grad) for p in layer.parameters()]

    dy = rng.normal(size=(2, 5, 8)).astype(np.float32)
    whole, gradients = run(first, arrays, hide, dy)
    moved, same = run(second, swapped(arrays), hide, dy.swapaxes(0, 1))
    for a, b in zip([*swapped(moved), *same], [*whole, *gradients], strict=True):
        assert_close(a, b, factor=5, scale=1)
    total = [0.0] * len(gradients)
    for n in range(2):
        one, its = run(second, [a[n] for a in arrays], hide[n : n + 1], dy[n])
        total = [a + b for a, b in zip(total, its, strict=True)]
        for a, b in zip(one, whole, strict=True):
            assert_close(a, b[n], factor=5, scale=1)
    for a, b in zip(total, gradients, strict=True):
        assert_close(a, b, factor=5, scale=1)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("rotary", [True, False])
def test_decoding_in_every_layout(batch_first, batched, rotary, rng):
    layer = MultiHeadAttention(8, 4, kv_heads=2, batch_first=batch_first, softcap=2.0, rotary=rotary, head_dim=4, rng=0)
    x = rng.normal(size=(2, 7, 8)).astype(np.float32)
    x = x[0] if not batched else x if batch_first else x.swapaxes(0, 1)
    axis = 1 if batched and batch_first else 0
    whole, cache, found, start = layer(x, causal=True), None, [], 0
    for stop in (3, 4, 7):
        y, cache = layer.step(x[(slice(None),) * axis + (slice(start, stop),)], cache)
        found.append(y)
        start = stop
    assert_close(np.concatenate(found, axis=axis), whole, factor=5)


@pytest.mark.parametrize("batched", [True, False])
def test_a_memory_in_every_layout(batched, rng):
    layer = MultiHeadAttention(8, 4, kdim=3, batch_first=False, softcap=2.0, rng=0)
    x, key = (rng.normal(size=(n, 2, size)).astype(np.float32) for n, size in ((5, 8), (7, 3)))
    x, key = (x, key) if batched else (x[:, 0], key[:, 0])
    y, _ = layer.step(x[2:4], layer.start(key))
    assert_close(y, layer(x, key)[2:4], factor=5)
    weights = layer.weights(x, key)
    assert weights.shape == ((2, 4, 5, 7) if batched else (4, 5, 7))
    assert np.allclose(weights.sum(-1), 1)


def test_masks_of_every_shape(rng):
    """(T, S), (B, 1, T, S), (B, H, T, S), and of keys (B, S) as (B, 1, 1, S): each as if it were written out."""
    layer = MultiHeadAttention(8, 4, kdim=3, rng=0)
    x, key = (a.astype(np.float32) for a in inputs({"kdim": 3}, rng))
    whole = (2, 4, 5, 7)
    for shape in ((5, 7), (1, 7), (7,), (2, 1, 5, 7), whole, (2, 1, 1, 7), (1, 4, 5, 1), (1, 1, 1, 1)):
        hide = rng.random(shape) < 0.4
        expected, saved = layer.forward(x, key, hide=np.broadcast_to(hide, whole).copy())
        y, saved_too = layer.forward(x, key, hide=hide)
        assert np.array_equal(y, expected)
        assert np.array_equal(layer(x, key, hide=hide), layer(x, key, hide=np.broadcast_to(hide, whole).copy()))
        for a, b in zip(layer.backward(y, saved_too), layer.backward(y, saved), strict=True):
            assert np.array_equal(a, b)
    with pytest.raises(
        ValueError, match=r"= \(2, 4, 5, 7\), got \(2, 7\); for a mask \(B, S\) of keys write hide\[:, None"
    ):
        layer(x, key, hide=np.zeros((2, 7), bool))


@on_devices
def test_a_query_that_sees_nothing_in_every_layout(device, rng):
    """H05 (pytorch #103963), with a soft cap, on a device."""
    layer = MultiHeadAttention(8, 4, batch_first=False, softcap=2.0, rng=0).to(device)
    x = gl.to_device(rng.normal(size=(5, 2, 8)).astype(np.float32), device)
    hide = gl.to_device(padding_mask(lengths=[0, 3], size=5), device)
    y, saved = layer.forward(x, hide=hide)
    assert not gl.to_numpy(y)[:, 0].any()  # the bias is 0
    dx = gl.to_numpy(layer.backward(y * 0 + 1, saved))
    assert not dx[:, 0].any()
    assert dx[:, 1].any()


def test_a_soft_cap_holds_the_scores(rng):
    """Weights are the softmax of cap tanh(score / cap), in forward, `weights` and `step` alike."""
    x = (10 * rng.normal(size=(2, 5, 8))).astype(np.float32)
    capped, free, endless = (MultiHeadAttention(8, 2, softcap=cap, rng=0) for cap in (3.0, None, 1e6))
    q, k, _ = np.split(x @ free.qkv.weight.data, 3, axis=-1)
    score = np.stack([q[..., part] @ k[..., part].swapaxes(1, 2) / 2 for part in (slice(4), slice(4, 8))], axis=1)
    e = np.exp(3 * np.tanh(score / 3))
    assert_close(capped.weights(x), e / e.sum(-1, keepdims=True), factor=5)
    assert_close(endless(x, causal=True), free(x, causal=True), factor=20)  # tanh of 1e-5 keeps 7 digits
    assert not np.allclose(capped(x), free(x))
    hidden = causal_mask(5, 5)
    assert_close(capped(x, hide=hidden), capped.step(x)[0], factor=5)


@pytest.mark.parametrize(
    ("call", "kind", "sentence"),
    [
        (lambda m: m(4, 2, softcap=0), ValueError, "MultiHeadAttention: softcap must be above 0, got 0"),
        (lambda m: m(4, 2, softcap="x"), TypeError, "MultiHeadAttention: softcap must be a number, got 'x'"),
        (lambda m: m(4, 2, batch_first=1), TypeError, "MultiHeadAttention: batch_first must be True or False, got 1"),
    ],
)
def test_refused_options(call, kind, sentence):
    with pytest.raises(kind, match=r".") as caught:
        call(MultiHeadAttention)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("batch_first", "shapes", "sentence"),
    [
        (False, [(3, 2, 5), (7, 2, 3)], "takes a query of shape (T, B, 4), got (3, 2, 5)"),
        (False, [(3, 2, 4), (7, 3, 3)], "takes a key of shape (S, 2, 3), got (7, 3, 3)"),
        (False, [(3, 4), (7, 1, 3)], "takes a key of shape (S, 3), got (7, 1, 3)"),
        (True, [(2, 3, 4), (7, 3)], "takes a key of shape (2, S, 3), got (7, 3)"),
        (True, [(3, 4), (7, 4)], "takes a key of shape (S, 3), got (7, 4)"),
        (True, [(4,), (7, 3)], "takes a query of shape (B, T, 4), got (4,)"),
    ],
)
def test_wrong_shapes_in_the_words_of_the_layout(batch_first, shapes, sentence):
    layer = MultiHeadAttention(4, 2, kdim=3, batch_first=batch_first)
    with pytest.raises(ValueError, match=r".") as caught:
        layer(*(np.zeros(shape, np.float32) for shape in shapes))
    assert str(caught.value) == f"MultiHeadAttention {sentence}"


@pytest.mark.parametrize("batch_first", [True, False])
def test_as_many_values_as_keys(batch_first):
    layer = MultiHeadAttention(4, 2, kdim=3, vdim=5, batch_first=batch_first)
    x, key, value = (np.zeros(shape, np.float32) for shape in ((2, 3, 4), (2, 7, 3), (2, 6, 5)))
    given = (x, key, value) if batch_first else swapped([x, key, value])
    for arrays in (given, [a[0] for a in (x, key, value)]):
        with pytest.raises(ValueError, match="takes as many values as keys, got 6 for 7"):
            layer(*arrays)
