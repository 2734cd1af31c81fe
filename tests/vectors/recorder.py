"""`Recorder`: runs PyTorch in float64 and keeps inputs, outputs and gradients of named cases."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

FOLDER = Path(__file__).parent


class Recorder:
    """Collects the cases of one file.

    Everything drawn is representable in float32, so that a float32 run starts from exactly the same numbers, and is
    stored as float32; what PyTorch computes from it is float64. `RandomState` promises the same stream for ever.
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.RandomState(seed)
        self.arrays: dict[str, np.ndarray] = {"torch_version": np.array(torch.__version__)}

    def draw(self, *shape: int, scale: float = 1.0, shift: float = 0.0) -> np.ndarray:
        return (shift + scale * self.rng.standard_normal(shape)).astype(np.float32)

    def put(self, **arrays: Any) -> None:
        self.arrays.update({name: np.asarray(array) for name, array in arrays.items()})

    def case(
        self,
        name: str,
        forward: Callable[..., torch.Tensor],
        inputs: Sequence[np.ndarray],
        parameters: dict[str, np.ndarray] | None = None,
    ) -> None:
        """Record y = forward(*inputs, **parameters) and, for a random dy, the gradient of everything that floats.

        Dots in parameter names become underscores in the keywords.
        """
        x = [leaf(array) for array in inputs]
        p = {key: leaf(array) for key, array in (parameters or {}).items()}
        y = forward(*x, **{key.replace(".", "_"): tensor for key, tensor in p.items()})
        dy = self.draw(*y.shape)
        y.backward(torch.tensor(dy, dtype=torch.float64))
        kept = {"y": numpy(y), "dy": dy}
        for i, tensor in enumerate(x):
            kept[f"x{i}"] = inputs[i]
            if tensor.requires_grad:
                kept[f"dx{i}"] = gradient(tensor)
        for key, tensor in p.items():
            kept[f"parameter {key}"], kept[f"gradient {key}"] = parameters[key], gradient(tensor)
        self.put(**{f"{name}/{key}": array for key, array in kept.items()})

    def write(self, name: str) -> None:
        np.savez_compressed(FOLDER / f"{name}.npz", **self.arrays)


def leaf(array: np.ndarray) -> torch.Tensor:
    """Float64 with a gradient, or integers and booleans as they are."""
    array = np.asarray(array)
    if array.dtype.kind == "f":
        return torch.tensor(array, dtype=torch.float64, requires_grad=True)
    return torch.tensor(array)


def numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().numpy().copy()


def gradient(tensor: torch.Tensor) -> np.ndarray:
    return np.zeros(tensor.shape) if tensor.grad is None else numpy(tensor.grad)
