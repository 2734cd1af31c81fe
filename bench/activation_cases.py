"""Cases of `bench.ops` for the elementwise activations, gated units and softmin, one for each kind."""

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.cases import COLS, ROWS, Case, draw, gradients, matrices, probabilities
from gpulayers.ops.activation import FORMULAS, activation, activation_backward
from gpulayers.ops.glu import glu, glu_backward
from gpulayers.ops.softmax import softmin, softmin_backward

NUMBERS = {"threshold": (0.5, 7.0), "hardtanh": (-1.0, 1.0), "elu": (1.0,), "celu": (1.0,), "softplus": (1.0, 20.0)}


def arguments(kind: str, arrays: int) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    return lambda rng: (kind, *(draw(rng, ROWS, COLS) for _ in range(arrays)), *NUMBERS.get(kind, ()))


def forward_peer(torch: Any, kind: str, x: Any, *numbers: float) -> Callable[[], Any]:
    return lambda: getattr(torch.nn.functional, kind)(x, *numbers)


def backward_peer(torch: Any, kind: str, dy: Any, x: Any, *numbers: float) -> Callable[[], Any]:
    return gradients(torch, lambda t: getattr(torch.nn.functional, kind)(t, *numbers), (x,), dy)


def activation_cases() -> dict[str, Case]:
    cases = {}
    for kind in FORMULAS:
        cases[f"activation {kind}"] = Case(activation, arguments(kind, 1), forward_peer)
        cases[f"activation_backward {kind}"] = Case(activation_backward, arguments(kind, 2), backward_peer)
    return cases


GATES = {"sigmoid": "sigmoid", "silu": "silu", "gelu_tanh": "gelu"}  # PyTorch's names


def gated(torch: Any, gate: str) -> Callable[[Any], Any]:
    function, options = (
        getattr(torch.nn.functional, GATES[gate]),
        {"approximate": "tanh"} if gate == "gelu_tanh" else {},
    )

    def run(x: Any) -> Any:
        a, b = x.chunk(2, dim=-1)
        return a * function(b, **options)

    return torch.nn.functional.glu if gate == "sigmoid" else run


def glu_arguments(gate: str, backward: bool) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    def make(rng: np.random.Generator) -> tuple[Any, ...]:
        x = draw(rng, ROWS, COLS)
        return (draw(rng, ROWS, COLS // 2), x, gate) if backward else (x, gate)

    return make


def glu_peer(torch: Any, x: Any, gate: str) -> Callable[[], Any]:
    return lambda: gated(torch, gate)(x)


def glu_backward_peer(torch: Any, dy: Any, x: Any, gate: str) -> Callable[[], Any]:
    return gradients(torch, gated(torch, gate), (x,), dy)


CASES: dict[str, Case] = {
    **activation_cases(),
    **{f"glu {gate}": Case(glu, glu_arguments(gate, False), glu_peer) for gate in GATES},
    **{f"glu_backward {gate}": Case(glu_backward, glu_arguments(gate, True), glu_backward_peer) for gate in GATES},
    "softmin": Case(softmin, matrices(1), lambda torch, x: lambda: torch.nn.functional.softmin(x, 1)),
    "softmin_backward": Case(softmin_backward, lambda rng: probabilities(rng, softmin)),
}
