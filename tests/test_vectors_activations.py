"""The elementwise activations, gated units and softmin against PyTorch, where pieces of a function meet too."""

import pytest
from outside import DTYPES, case, case_names, cast, check_case, close

from gpulayers.layers.activation import (
    CELU,
    ELU,
    SELU,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LogSigmoid,
    Mish,
    ReLU6,
    Softplus,
    Softsign,
    Threshold,
)
from gpulayers.layers.feedforward import FeedForward
from gpulayers.layers.glu import GEGLU, GLU, SwiGLU
from gpulayers.layers.softmin import Softmin

LAYERS = {
    "relu6": ReLU6,
    "threshold": lambda: Threshold(0.5, 7),
    "hardtanh": Hardtanh,
    "hardtanh -0.5 2": lambda: Hardtanh(-0.5, 2),
    "hardsigmoid": Hardsigmoid,
    "hardswish": Hardswish,
    "softsign": Softsign,
    "elu": ELU,
    "elu 0.5": lambda: ELU(0.5),
    "elu -0.5": lambda: ELU(-0.5),
    "selu": SELU,
    "celu": CELU,
    "celu 0.5": lambda: CELU(0.5),
    "celu -4": lambda: CELU(-4),
    "softplus": Softplus,
    "softplus 2 3": lambda: Softplus(2, 3),
    "softplus -2": lambda: Softplus(-2),
    "logsigmoid": LogSigmoid,
    "mish": Mish,
    "glu": GLU,
    "glu 1": lambda: GLU(1),
    "geglu": GEGLU,
    "geglu tanh": lambda: GEGLU(approximate="tanh"),
    "swiglu": SwiGLU,
    "softmin": Softmin,
    "softmin 1": lambda: Softmin(1),
    "feedforward swiglu": lambda: FeedForward(6, 10, "swiglu", bias=False),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LAYERS)
def test_layer(name, dtype):
    layer, wanted = LAYERS[name](), case("activations", name)
    check_case(layer, wanted, dtype)
    close(layer(*(cast(x, dtype) for x in wanted.inputs)), wanted.y, dtype)


def test_every_case_of_the_file_is_run():
    assert case_names("activations") == LAYERS.keys()
