"""MultiHeadAttention and positions against PyTorch. The file holds q, k, v and out apart; the layer packs some."""

import numpy as np
import pytest
from outside import DTYPES, case, case_names, cast, check_case, close, load

from gpulayers.layers.attention import MultiHeadAttention
from gpulayers.layers.positions import LearnedPositions, SinusoidalPositions
from gpulayers.layers.rotary import Rotary
from gpulayers.masks import causal_mask

T, S, DIM, HEADS = 5, 7, 8, 4


def mask(*names):
    """The masks of these names in the file, combined."""
    hide = causal_mask(T, T) if "causal" in names else False
    for name in names:
        if name != "causal":
            hide = hide | load("attention")[name]
    return hide


# name in the file: options of the constructor, options of forward
CASES = {
    "self": ({}, lambda: {}),
    "self no bias": ({"bias": False}, lambda: {}),
    "causal": ({}, lambda: {"causal": True}),
    "padding": ({}, lambda: {"hide": mask("padding")}),
    "causal padding arbitrary": ({}, lambda: {"causal": True, "hide": mask("padding", "arbitrary")}),
    "grouped": ({"kv_heads": 2}, lambda: {}),
    "grouped causal padding no bias": (
        {"kv_heads": 1, "bias": False},
        lambda: {"hide": mask("causal", "padding")},  # causal as a mask is the same as causal=True
    ),
    "cross": ({"kdim": 6, "vdim": 3}, lambda: {}),
    "cross grouped no bias": ({"kdim": 6, "vdim": 3, "kv_heads": 2, "bias": False}, lambda: {}),
    "cross causal": ({"kdim": DIM, "vdim": DIM}, lambda: {"causal": True}),
    "cross shared padding": ({"kdim": 6}, lambda: {"hide": mask("cross_padding")}),
    "rotary attention": ({"rotary": True}, lambda: {"causal": True}),
}
OTHERS = {"sinusoidal", "learned positions", "rotary"}


def packed(layer, arrays):
    """The file's q, k, v side by side, as the layer's projections have them."""
    found = {}
    for name in (*layer.inputs, "out"):
        letters = ("out",) if name == "out" else tuple(name)
        for kind in ("weight", "bias"):
            if f"{letters[0]}.{kind}" in arrays:
                found[f"{name}.{kind}"] = np.concatenate([arrays[f"{letter}.{kind}"] for letter in letters], axis=-1)
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_attention(name, dtype):
    build, forward = CASES[name]
    layer, wanted = MultiHeadAttention(DIM, HEADS, rng=0, **build), case("attention", name)
    wanted.parameters = packed(layer, wanted.parameters)
    wanted.parameter_gradients = packed(layer, wanted.parameter_gradients)
    check_case(layer, wanted, dtype, **forward())
    x = [cast(a, dtype) for a in wanted.inputs]
    close(layer(*x, **forward()), wanted.y, dtype)  # evaluation goes another way


@pytest.mark.parametrize("dtype", DTYPES)
def test_positions(dtype):
    check_case(SinusoidalPositions(DIM), case("attention", "sinusoidal"), dtype)
    check_case(LearnedPositions(T + 3, DIM), case("attention", "learned positions"), dtype)
    check_case(Rotary(6), case("attention", "rotary"), dtype)


def test_every_case_of_the_file_is_run():
    assert case_names("attention") == CASES.keys() | OTHERS
