import numpy as np
import pytest

from gpulayers.layers.attention import MultiHeadAttention
from gpulayers.masks import causal_mask, check_hide, padding_mask


def test_padding_from_ids():
    hide = padding_mask(np.array([[5, 6, 0], [7, 0, 0]]), 0)
    assert hide.shape == (2, 1, 1, 3)
    assert hide[:, 0, 0].tolist() == [[False, False, True], [False, True, True]]


def test_padding_from_lengths():
    wanted = [[False, False, True], [True, True, True]]
    assert padding_mask(lengths=[2, 0], size=3)[:, 0, 0].tolist() == wanted
    assert padding_mask(lengths=np.array([3, 1], np.uint8)).shape == (2, 1, 1, 3)
    assert padding_mask(lengths=np.zeros(0, np.int64)).shape == (0, 1, 1, 0)


@pytest.mark.parametrize("arguments", [{}, {"ids": np.zeros((1, 1), int)}, {"pad_id": 0, "lengths": [1]}])
def test_padding_takes_one_source(arguments):
    with pytest.raises(TypeError, match="either ids and pad_id, or lengths="):
        padding_mask(**arguments)


def test_padding_refuses_wrong_shapes_and_floats():
    with pytest.raises(ValueError, match=r"ids of shape \(B, S\), got shape \(3,\)"):
        padding_mask(np.zeros(3, int), 0)
    with pytest.raises(TypeError, match=r"integer lengths of shape \(B,\), got float64"):
        padding_mask(lengths=[1.0])


def test_causal_is_bottom_right():
    assert causal_mask(2, 4).astype(int).tolist() == [[0, 0, 0, 1], [0, 0, 0, 0]]
    assert causal_mask(3, 1).astype(int).tolist() == [[1], [1], [0]]


def test_masks_combine():
    ids = np.array([[4, 0, 0]])
    assert (padding_mask(ids, 0) | causal_mask(3, 3)).shape == (1, 1, 3, 3)


@pytest.mark.parametrize("hide", [np.ones((3, 3)), np.ones((3, 3), np.int64), [[True]], -np.inf])
def test_a_mask_that_is_not_boolean_is_not_guessed(hide):
    """Reported case H07 (pytorch PR 170415, rasbt/LLMs-from-scratch #1061)."""
    with pytest.raises(TypeError, match="masks are boolean, True hides, and are given as hide="):
        check_hide(hide, (1, 1, 3, 3), "Attention")


def test_three_dimensions_are_ambiguous():
    with pytest.raises(ValueError, match=r"may mean \(B, T, S\) or \(H, T, S\)"):
        check_hide(np.zeros((2, 3, 3), bool), (2, 2, 3, 3), "Attention")


@pytest.mark.parametrize("shape", [(2, 4), (3, 1, 1, 3), (1, 1, 1, 3, 3)])
def test_a_mask_that_does_not_fit(shape):
    with pytest.raises(ValueError, match=r"broadcasts to \(B, H, T, S\) = \(2, 1, 3, 3\), got"):
        check_hide(np.zeros(shape, bool), (2, 1, 3, 3), "Attention")


@pytest.mark.parametrize("name", ["attn_mask", "key_padding_mask", "mask", "is_causal"])
def test_masks_of_other_libraries_are_refused(name):
    layer, x = MultiHeadAttention(4, 2, rng=0), np.zeros((1, 2, 4), np.float32)
    for call in (layer, layer.forward):
        with pytest.raises(TypeError, match=f"takes no {name}=: masks are boolean, True hides"):
            call(x, **{name: np.zeros((2, 2), bool)})
        with pytest.raises(TypeError, match="unexpected keyword argument 'hiden'"):
            call(x, hiden=None)


def test_lengths_by_position():
    assert np.array_equal(padding_mask([2, 0], size=3), padding_mask(lengths=[2, 0], size=3))
    assert padding_mask(np.array([1, 3])).shape == (2, 1, 1, 3)
    with pytest.raises(TypeError, match=r"integer lengths of shape \(B,\), got \[\[1\], \[1, 2\]\]"):
        padding_mask([[1], [1, 2]])
