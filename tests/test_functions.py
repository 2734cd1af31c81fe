"""pad_sequences, one_hot, top_k; the expected values of the tables are PyTorch 2.13's."""

import ml_dtypes
import numpy as np
import pytest
from devices import on_devices
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gpulayers as gl
from gpulayers.functions import one_hot, pad_sequences, top_k, top_k_backward
from gpulayers.gradcheck import gradcheck
from gpulayers.masks import padding_mask
from gpulayers.verify.case import Function

# ------------------------------------------------------------------------------------------------- pad_sequences


def test_pad_sequences_and_their_mask():
    ids, lengths = pad_sequences([[5, 6, 7], [8], []])
    assert ids.tolist() == [[5, 6, 7], [8, 0, 0], [0, 0, 0]]
    assert (ids.dtype, lengths.dtype, lengths.tolist()) == (np.int64, np.int64, [3, 1, 0])
    assert padding_mask(lengths)[:, 0, 0].astype(int).tolist() == [[0, 0, 0], [0, 1, 1], [1, 1, 1]]


def test_pad_sequences_of_arrays_left_and_longer():
    a, b = np.ones((2, 3), np.float32), np.full((1, 3), 2, np.float32)
    padded, _ = pad_sequences([a, b], -1.0, padding_side="left", size=4)
    assert padded.shape == (2, 4, 3)
    assert padded.dtype == np.float32
    assert padded[:, :, 0].tolist() == [[-1, -1, 1, 1], [-1, -1, -1, 2]]
    assert pad_sequences([np.array([1, 2], np.uint8), np.array([3], np.uint8)])[0].dtype == np.uint8
    assert pad_sequences([[1], [2]], dtype="float32")[0].dtype == np.float32
    assert [part.shape for part in pad_sequences([])] == [(0, 0), (0,)]


@pytest.mark.parametrize(
    ("sequences", "options", "kind", "sentence"),
    [
        ([[1, 2]], {"size": 1}, ValueError, "size is 1, and a sequence has 2 steps"),
        ([[1]], {"size": 1.0}, TypeError, "size must be an integer, got 1.0"),
        ([[1]], {"padding_side": "pre"}, ValueError, "padding_side must be one of right, left, got 'pre'"),
        ([[1]], {"padding_value": 0.5}, ValueError, "padding_value must be int64, got 0.5"),
        ([np.zeros(1, np.uint8)], {"padding_value": -100}, ValueError, "padding_value must be uint8, got -100"),
        ([["a"]], {}, TypeError, r"sequence 0 must be an array or a list of numbers, got \['a'\]"),
        ([[1], [[1], [1, 2]]], {}, TypeError, r"sequence 1 must be an array or a list of numbers"),
        ([np.ones((1, 2)), np.ones((1, 3))], {}, ValueError, r"sequence 1 has shape \(1, 3\), the first one"),
        ([1, 2], {}, ValueError, r"sequence 0 has shape \(\)"),
    ],
)  # fmt: skip
def test_pad_sequences_refuses(sequences, options, kind, sentence):
    with pytest.raises(kind, match="pad_sequences: " + sentence):
        pad_sequences(sequences, **options)


# ------------------------------------------------------------------------------------------------- one_hot


def test_one_hot():
    ids = np.array([[0, 2], [1, 1]], np.uint8)
    assert one_hot(ids).tolist() == [[[1, 0, 0], [0, 0, 1]], [[0, 1, 0], [0, 1, 0]]]
    assert one_hot(ids, 4).shape == (2, 2, 4)
    assert (one_hot(ids).dtype, one_hot(ids, dtype="float32").dtype) == (np.int64, np.float32)
    assert one_hot(np.zeros((0, 2), int), 3).shape == (0, 2, 3)


@pytest.mark.parametrize(
    ("ids", "classes", "kind", "sentence"),
    [
        ([1.0], -1, TypeError, "takes an array of integer ids, got float64"),
        ([0, 3], 3, ValueError, r"the id at position \(1,\) is 3, outside 0..2"),
        ([-1, 0], -1, ValueError, r"the id at position \(0,\) is -1, outside 0..0"),
        ([], -1, ValueError, "without ids there is no largest one: give num_classes"),
        ([0], 0, ValueError, "num_classes must be at least 1, or -1 for the largest id"),
    ],
)
def test_one_hot_refuses(ids, classes, kind, sentence):
    with pytest.raises(kind, match="one_hot:? " + sentence):
        one_hot(np.array(ids, None if ids else int), classes)


# ------------------------------------------------------------------------------------------------- top_k


def test_top_k():
    x = np.array([[1.0, 3.0, 2.0, 3.0], [0.0, -1.0, np.inf, np.nan]], np.float32)
    values, indices = top_k(x, 2)
    assert indices.tolist() == [[1, 3], [3, 2]]  # the lower index of equal ones; NaN is the largest
    assert values[0].tolist() == [3, 3]
    assert top_k(x, 2, largest=False)[1].tolist() == [[0, 2], [1, 0]]
    values, indices = top_k(x, 1, axis=0)
    assert (values[0].tolist()[:3], indices.tolist(), indices.dtype) == ([1, 3, np.inf], [[0, 0, 1, 1]], np.int64)
    assert top_k(np.array([3, 250, 7], np.uint8), 3)[0].tolist() == [250, 7, 3]
    assert top_k(np.array([0.5, 2, 1], ml_dtypes.bfloat16), 1)[0].dtype == ml_dtypes.bfloat16
    assert [part.shape for part in top_k(x, 0)] == [(2, 0), (2, 0)]
    assert [part.shape for part in top_k(x[:0], 3)] == [(0, 3), (0, 3)]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_top_k_is_the_start_of_the_sorted_row(data):
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, max_side=6))
    kind = data.draw(st.sampled_from(["float32", "float64", "int16", "uint8"]))
    x = data.draw(hnp.arrays(kind, shape, elements=st.integers(0, 5)))
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    k, largest = data.draw(st.integers(0, x.shape[axis])), data.draw(st.booleans())
    view = x[::-1] if data.draw(st.booleans()) else x
    values, indices = top_k(view, k, axis, largest)
    sign = -1.0 if largest else 1.0
    wanted = np.argsort(sign * view, axis=axis, kind="stable").take(range(k), axis)
    assert np.array_equal(indices, wanted)
    assert np.array_equal(values, np.take_along_axis(view, wanted, axis))


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_top_k_gradient(axis):
    x = np.random.default_rng(0).permutation(24).reshape(2, 3, 4).astype(np.float64)
    n = x.shape[axis]

    def forward(x):
        values, indices = top_k(x, 2, axis)
        return values, indices

    gradcheck(Function(forward, lambda dy, indices: top_k_backward(dy, indices, n, axis)), x)


@pytest.mark.parametrize(
    ("x", "options", "kind", "sentence"),
    [
        (np.ones(3), {"k": 4}, ValueError, "k must be in 0..3, the length of axis -1, got 4"),
        (np.ones(3), {"k": -1}, ValueError, "k must be in 0..3"),
        (np.ones(3), {"k": 1.0}, TypeError, "k must be an integer, got 1.0"),
        (np.ones(3), {"k": 1, "axis": 1}, ValueError, r"axis must be in -1..0 for an input of 1 axes, got 1"),
        (np.ones(3), {"k": 1, "largest": "no"}, TypeError, "largest must be True or False"),
        (np.ones(3, bool), {"k": 1}, TypeError, "an array of numbers, got bool"),
        ([1.0], {"k": 1}, TypeError, "an array of numbers, got list"),
    ],
)
def test_top_k_refuses(x, options, kind, sentence):
    with pytest.raises(kind, match="top_k:? .*" + sentence):
        top_k(x, **options)


def test_top_k_backward_refuses():
    with pytest.raises(ValueError, match=r"top_k_backward takes a gradient of shape \(2,\), got \(1,\)"):
        top_k_backward(np.ones(1), np.array([0, 1]), 3)
    with pytest.raises(TypeError, match="top_k_backward takes a floating gradient"):
        top_k_backward(np.ones(2, int), np.array([0, 1]), 3)


# ------------------------------------------------------------------------------------------------- on a device


@on_devices
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int32])
def test_on_a_device(device, dtype):
    x = np.array([[1, 3, 2, 3], [0, -1, 5, 5]]).astype(dtype)
    for largest in (True, False):
        found, wanted = top_k(gl.to_device(x, device), 3, largest=largest), top_k(x, 3, largest=largest)
        for a, b in zip(found, wanted, strict=True):
            assert a.dtype == b.dtype
            assert np.array_equal(a.get(), b)
    if dtype == np.int32:
        hot = one_hot(gl.to_device(abs(x), device), 6, dtype="float32")
        assert np.array_equal(hot.get(), one_hot(abs(x), 6, dtype="float32"))
        padded, lengths = pad_sequences([gl.to_device(x[0], device), gl.to_device(x[1, :2], device)])
        assert (padded.get().tolist(), lengths.get().tolist()) == ([[1, 3, 2, 3], [0, -1, 0, 0]], [4, 2])
    else:
        values, indices = top_k(gl.to_device(x, device), 2)
        assert np.array_equal(top_k_backward(values, indices, 4).get(), np.where([[0, 1, 0, 1], [0, 0, 1, 1]], x, 0))
