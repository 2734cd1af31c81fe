"""Every layer but attention: output, input gradients, parameter gradients."""

import torch
import torch.nn.functional as F
from vectors.recorder import Recorder


def write() -> None:
    r = Recorder(seed=1)
    linear_and_embedding(r)
    norms(r)
    activations(r)
    feedforward(r)
    r.write("layers")


def linear(x, weight, bias=None):
    return F.linear(x, weight.T, bias)  # our weights are (in, out)


def linear_and_embedding(r: Recorder) -> None:
    x = r.draw(2, 3, 5)
    r.case("linear", linear, [x], {"weight": r.draw(5, 4), "bias": r.draw(4)})
    r.case("linear no bias", linear, [x], {"weight": r.draw(5, 4)})
    r.case("linear one row", linear, [r.draw(1, 5)], {"weight": r.draw(5, 1), "bias": r.draw(1)})
    ids = r.rng.randint(0, 7, (3, 11))  # 33 ids of 7: every one is repeated
    r.case("embedding", lambda ids, weight: F.embedding(ids, weight), [ids], {"weight": r.draw(7, 4)})
    table = r.draw(7, 4)
    table[2] = 0
    r.case("embedding padding_idx", lambda ids, weight: F.embedding(ids, weight, 2), [ids], {"weight": table})
    r.case("tied linear", F.linear, [x], {"weight": r.draw(9, 5)})


def norms(r: Recorder) -> None:
    def layernorm(x, weight, bias=None):
        return F.layer_norm(x, (x.shape[-1],), weight, bias, eps=1e-5)

    x = r.draw(2, 4, 13, shift=3, scale=2)
    r.case("layernorm", layernorm, [x], {"weight": r.draw(13), "bias": r.draw(13)})
    r.case("layernorm no bias", layernorm, [x], {"weight": r.draw(13)})
    r.case("rmsnorm", lambda x, weight: F.rms_norm(x, (13,), weight, eps=1e-6), [x], {"weight": r.draw(13)})


def activations(r: Recorder) -> None:
    x = r.draw(3, 4, 6, scale=2)
    x[0, 0] = [0, -0.0, 20, -20, 1e-4, -60]  # the kink, both saturated ends, the linear middle
    for name, function in {
        "relu": F.relu,
        "leaky relu": lambda x: F.leaky_relu(x, 0.01),
        "leaky relu 0.2": lambda x: F.leaky_relu(x, 0.2),
        "gelu": F.gelu,
        "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
        "silu": F.silu,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "softmax": lambda x: F.softmax(x, dim=-1),
        "log softmax": lambda x: F.log_softmax(x, dim=-1),
    }.items():
        r.case(name, function, [x])
    r.case("prelu", F.prelu, [r.draw(5, 6)], {"weight": r.draw(1)})
    r.case("prelu per feature", F.prelu, [r.draw(5, 6)], {"weight": r.draw(6)})  # 2-D: torch's channel axis is our last


def feedforward(r: Recorder) -> None:
    def mlp(activation):
        def forward(x, up_weight, down_weight, up_bias=None, down_bias=None):
            return linear(activation(linear(x, up_weight, up_bias)), down_weight, down_bias)

        return forward

    x, weights = r.draw(2, 3, 6), {"up.weight": r.draw(6, 24), "down.weight": r.draw(24, 6)}
    biases = {"up.bias": r.draw(24), "down.bias": r.draw(6)}
    r.case("feedforward gelu_tanh", mlp(lambda h: F.gelu(h, approximate="tanh")), [x], weights | biases)
    r.case("feedforward gelu", mlp(F.gelu), [x], weights | biases)
    r.case("feedforward relu no bias", mlp(F.relu), [x], weights)
