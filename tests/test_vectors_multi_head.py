"""MultiHeadAttention against torch.nn.MultiheadAttention: layouts, masks of every shape, the weights, the soft cap."""

import pytest
from outside import DTYPES, case, case_names, cast, check_case, close, load, part
from test_vectors_attention import packed

from gpulayers.layers.attention import MultiHeadAttention

CROSS = {"kdim": 6, "vdim": 3}


def mask(name):
    hide = load("multi_head")[name]
    return hide[:, None, None] if name == "padding" else hide


# name in the file: options of the constructor, options of forward
CASES = {
    "batch second": ({"batch_first": False}, lambda: {}),
    "one sample": ({"batch_first": False}, lambda: {}),
    "cross": (CROSS, lambda: {}),
    "cross batch second": ({"batch_first": False, **CROSS}, lambda: {}),
    "cross one sample": (CROSS, lambda: {}),
    "rows": (CROSS, lambda: {"hide": mask("rows")}),
    "key padding": (CROSS, lambda: {"hide": mask("padding")}),
    "both batch second": ({"batch_first": False, **CROSS}, lambda: {"hide": mask("rows") | mask("padding")}),
    "heads": (CROSS, lambda: {"hide": mask("heads")}),
    "sample batch second": ({"batch_first": False, **CROSS}, lambda: {"hide": mask("sample")}),
    "softcap": ({"softcap": 1.5}, lambda: {}),
    "softcap grouped heads": ({"softcap": 0.8, "kv_heads": 2, **CROSS}, lambda: {"hide": mask("heads")}),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_attention(name, dtype):
    build, forward = CASES[name]
    layer, wanted = MultiHeadAttention(8, 4, rng=0, **build), case("multi_head", name)
    wanted.parameters = packed(layer, wanted.parameters)
    wanted.parameter_gradients = packed(layer, wanted.parameter_gradients)
    check_case(layer, wanted, dtype, **forward())
    close(layer(*(cast(a, dtype) for a in wanted.inputs), **forward()), wanted.y, dtype)  # evaluation


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights(dtype):
    """What need_weights=True, average_attn_weights=False returns."""
    file = load("multi_head")
    layer = MultiHeadAttention(8, 4, rng=0, dtype=dtype, **CROSS)
    layer.load_state_dict(packed(layer, part(file, "weights parameter ")))
    x, key = (cast(file[name], dtype) for name in ("weights_x", "weights_key"))
    close(layer.weights(x, key, hide=file["rows"]), file["attention_weights"], dtype)


def test_every_case_of_the_file_is_run():
    assert case_names("multi_head") == CASES.keys()
