"""scaled_dot_product_attention against PyTorch's."""

import pytest
from outside import DTYPES, case, case_names, cast, close, load

from gpulayers.layers.scaled_dot_product_attention import (
    scaled_dot_product_attention,
    scaled_dot_product_attention_backward,
)


def mask(*names):
    hide = load("scaled_dot_product")[names[0]]
    for name in names[1:]:
        hide = hide | load("scaled_dot_product")[name]
    return hide


CASES = {
    "plain": lambda: {},
    "scale": lambda: {"scale": 0.3},
    "causal": lambda: {"is_causal": True},
    "causal square": lambda: {"is_causal": True},
    "causal more queries": lambda: {"is_causal": True},
    "padding": lambda: {"hide": mask("padding")},
    "rows": lambda: {"hide": mask("rows")},
    "heads causal": lambda: {"hide": mask("heads"), "is_causal": True},
    "per sample": lambda: {"hide": mask("per_sample")},
    "grouped": lambda: {"enable_gqa": True},
    "grouped padding causal": lambda: {"hide": mask("padding"), "is_causal": True, "enable_gqa": True},
    "no heads": lambda: {"hide": mask("rows")},
    "no batch": lambda: {"is_causal": True},
    "softcap": lambda: {"softcap": 2.0},
    "softcap large": lambda: {"softcap": 50.0, "scale": 1.0},
    "softcap grouped masked": lambda: {
        "softcap": 1.5,
        "scale": 0.4,
        "hide": mask("heads", "padding"),
        "is_causal": True,
        "enable_gqa": True,
    },
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_against_pytorch(name, dtype):
    wanted, options = case("scaled_dot_product", name), CASES[name]()
    y, saved = scaled_dot_product_attention(*(cast(x, dtype) for x in wanted.inputs), **options)
    close(y, wanted.y, dtype)
    gradients = scaled_dot_product_attention_backward(cast(wanted.dy, dtype), saved)
    for found, right in zip(gradients, wanted.input_gradients, strict=True):
        assert found.dtype == dtype
        close(found, right, dtype)


def test_every_case_of_the_file_is_run():
    assert case_names("scaled_dot_product") == CASES.keys()
