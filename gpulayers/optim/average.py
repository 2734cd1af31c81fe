"""`EMA`: an exponential moving average of a model's parameters, which often generalises better than the last ones."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpulayers.backend import Array, device_of, to_numpy, wide
from gpulayers.layers.layer import Layer
from gpulayers.ops.move import follow
from gpulayers.optim.check import check_beta, check_state
from gpulayers.optim.optimizer import Optimizer
from gpulayers.parameter import Flat, pack
from gpulayers.storage import beside


def replace(flat: Flat, new: Array) -> Array:
    """Give the parameters the values of `new`, which is laid out as they are. Returns a copy of those before."""
    values = flat.data if flat.master is None else flat.master
    before = values.copy()
    values[...] = new
    if flat.master is not None:
        flat.data[...] = values
    return before


class EMA:
    """average = decay average + (1 - decay) p after every update, from the parameters at the start on.

    >>> average = EMA(model, decay=0.999)
    >>> optimizer.step()
    >>> average.update(optimizer)      # told the optimizer, it passes over a step that was skipped; does not wait
    >>> with average.swapped():        # the model has the average's values inside
    ...     evaluate(model)

    Kept in float32 at least: of float16 and bfloat16 parameters it is their masters' average. Make it after the
    optimizer, which makes the masters. About the last 1 / (1 - decay) updates have a say. One launch a step on a GPU.

    Source: Polyak and Juditsky, Acceleration of stochastic approximation by averaging, 1992, with weights that fall.
    """

    def __init__(self, model: Layer | Flat, decay: float = 0.999) -> None:
        check_beta("EMA: decay", decay)
        self.decay, self.flat = decay, model if isinstance(model, Flat) else pack(model)
        self._average: Array = self._values().astype(wide(self.flat.data.dtype))  # a copy
        self._parameters: Array = None  # while the model has the average's values; of float16 it has them rounded

    def _values(self) -> Array:
        return self.flat.data if self.flat.master is None else self.flat.master

    def update(self, optimizer: Optimizer | None = None) -> None:
        """Follow the parameters. Raises RuntimeError while they are swapped, or if the model was moved since."""
        self._check()
        if self._parameters is not None:
            raise RuntimeError("EMA.update: the model holds the average now; swap back first")
        control = None if optimizer is None else optimizer._control
        values = self._values()
        follow(self._average, values.astype(self._average.dtype, copy=False), self.decay, control)

    def swap(self) -> None:
        """Exchange parameters and average; a second call puts every bit back."""
        self._check()
        if self._parameters is None:
            self._parameters = replace(self.flat, self._average)
        else:
            replace(self.flat, self._parameters)
            self._parameters = None

    @contextlib.contextmanager
    def swapped(self) -> Iterator[None]:
        """Inside, the model has the average's values."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    def _check(self) -> None:
        here, there = device_of(self._average), device_of(self.flat.data)
        if here != there or self._average.dtype != wide(self.flat.data.dtype):
            raise RuntimeError(
                f"EMA: the average is {self._average.dtype} on {here}, the model {self.flat.data.dtype} on {there}; "
                "make it after model.to(...)"
            )

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies in host memory: `average.<parameter>`."""
        if self._parameters is not None:
            raise RuntimeError("EMA.state_dict: the model holds the average now; swap back first")
        return {name: np.array(to_numpy(view)) for name, view in self._named().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`. Raises ValueError before anything is changed if it does not fit."""
        if self._parameters is not None:
            raise RuntimeError("EMA.load_state_dict: the model holds the average now; swap back first")
        own = self._named()
        check_state("EMA", own, state)
        for name, view in own.items():
            view[...] = beside(state[name], view)

    def _named(self) -> dict[str, Array]:
        return {
            f"average.{name}": self._average[start:stop].reshape(parameter.shape)
            for name, parameter, start, stop in self.flat.segments
        }
