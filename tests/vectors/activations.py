"""The elementwise activations, gated units and softmin of PyTorch: on a grid with all the points where pieces meet."""

import numpy as np
import torch
import torch.nn.functional as F
from vectors.recorder import Recorder

ELEMENTWISE = {
    "relu6": F.relu6,
    "threshold": lambda x: F.threshold(x, 0.5, 7),
    "hardtanh": F.hardtanh,
    "hardtanh -0.5 2": lambda x: F.hardtanh(x, -0.5, 2),
    "hardsigmoid": lambda x: F.relu6(x + 3) / 6,  # F.hardsigmoid's gradient has float32's 1/6 in float64 too
    "hardswish": F.hardswish,
    "softsign": F.softsign,
    "elu": F.elu,
    "elu 0.5": lambda x: F.elu(x, 0.5),
    "elu -0.5": lambda x: F.elu(x, -0.5),
    "selu": F.selu,
    "celu": F.celu,
    "celu 0.5": lambda x: F.celu(x, 0.5),
    "celu -4": lambda x: F.celu(x, -4),
    "softplus": F.softplus,
    "softplus 2 3": lambda x: F.softplus(x, 2, 3),
    "softplus -2": lambda x: F.softplus(x, -2),
    "logsigmoid": F.logsigmoid,
    "mish": F.mish,
}


def geglu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    return a * F.gelu(b, approximate=approximate)


def swiglu(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    return a * F.silu(b)


def write() -> None:
    r = Recorder(seed=7)
    grid = np.concatenate([np.arange(-32, 33) / 4, [-0.0, 20, -20, 1e-4, -1e-4, -60, 60, 100, -100, 21, -21]])
    for name, function in ELEMENTWISE.items():
        r.case(name, function, [grid.astype(np.float32)])
    for name in ("celu -4", "elu -0.5"):
        assert np.isfinite(r.arrays[f"{name}/y"]).all()
    x = r.draw(3, 4, 6, scale=2)
    r.case("glu", F.glu, [x])
    r.case("glu 1", lambda x: F.glu(x, 1), [x])
    r.case("geglu", geglu, [x])
    r.case("geglu tanh", lambda x: geglu(x, "tanh"), [x])
    r.case("swiglu", swiglu, [x])
    r.case("softmin", lambda x: F.softmin(x, dim=-1), [x])
    r.case("softmin 1", lambda x: F.softmin(x, dim=1), [x])
    weights = {"up.weight": r.draw(6, 20), "down.weight": r.draw(10, 6)}

    def llama(x, up_weight, down_weight):
        return swiglu(x @ up_weight) @ down_weight

    r.case("feedforward swiglu", llama, [r.draw(2, 3, 6)], weights)
    r.write("activations")
