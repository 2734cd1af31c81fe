"""Every layer but attention against PyTorch: output, input gradients, parameter gradients."""

import numpy as np
import pytest
from outside import DTYPES, case, case_names, cast, check_case, close

from gpulayers.layers.embedding import Embedding
from gpulayers.layers.feedforward import FeedForward
from gpulayers.layers.gelu import GELU
from gpulayers.layers.layernorm import LayerNorm
from gpulayers.layers.leaky_relu import LeakyReLU
from gpulayers.layers.linear import Linear
from gpulayers.layers.log_softmax import LogSoftmax
from gpulayers.layers.prelu import PReLU
from gpulayers.layers.relu import ReLU
from gpulayers.layers.rmsnorm import RMSNorm
from gpulayers.layers.sigmoid import Sigmoid
from gpulayers.layers.silu import SiLU
from gpulayers.layers.softmax import Softmax
from gpulayers.layers.tanh import Tanh
from gpulayers.layers.tied_linear import TiedLinear
from gpulayers.parameter import Parameter

LAYERS = {
    "linear": lambda: Linear(5, 4),
    "linear no bias": lambda: Linear(5, 4, bias=False),
    "linear one row": lambda: Linear(5, 1),
    "embedding": lambda: Embedding(7, 4),
    "embedding padding_idx": lambda: Embedding(7, 4, padding_idx=2),
    "tied linear": lambda: TiedLinear(Parameter(np.zeros((9, 5), np.float32))),
    "layernorm": lambda: LayerNorm(13),
    "layernorm no bias": lambda: LayerNorm(13, bias=False),
    "rmsnorm": lambda: RMSNorm(13, eps=1e-6),
    "relu": ReLU,
    "leaky relu": LeakyReLU,
    "leaky relu 0.2": lambda: LeakyReLU(0.2),
    "prelu": PReLU,
    "prelu per feature": lambda: PReLU(6),
    "gelu": GELU,
    "gelu tanh": lambda: GELU(approximate="tanh"),
    "silu": SiLU,
    "tanh": Tanh,
    "sigmoid": Sigmoid,
    "softmax": Softmax,
    "log softmax": LogSoftmax,
    "feedforward gelu_tanh": lambda: FeedForward(6, activation="gelu_tanh"),
    "feedforward gelu": lambda: FeedForward(6, activation="gelu"),
    "feedforward relu no bias": lambda: FeedForward(6, activation="relu", bias=False),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LAYERS)
def test_layer(name, dtype):
    layer, wanted = LAYERS[name](), case("layers", name)
    check_case(layer, wanted, dtype)
    close(layer(*(cast(x, dtype) for x in wanted.inputs)), wanted.y, dtype)


def test_every_case_of_the_file_is_run():
    assert case_names("layers") == LAYERS.keys()
