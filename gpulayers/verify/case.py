"""What is verified: cases of ops, of layers, and of gradients, each with an adversarial input."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from gpulayers.layers.layer import Layer
from gpulayers.ops.op import Op
from gpulayers.step import Train

STORAGES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


class Arg(NamedTuple):
    """An array argument that is more than a plain float32 input.

    exact: it keeps its dtype whatever the storage, as statistics and moments do. written: the op writes it, so it is a
    result too. view: what the op gets is `view(array)`, made anew on each device: a transpose, a slice.
    """

    array: np.ndarray
    exact: bool = False
    written: bool = False
    view: Callable[[Any], Any] | None = None


def exact(array: np.ndarray) -> Arg:
    return Arg(array, exact=True)


def written(array: np.ndarray, *, exact: bool = False, view: Callable[[Any], Any] | None = None) -> Arg:
    return Arg(array, exact=exact, written=True, view=view)


def transposed(array: np.ndarray) -> Arg:
    """The same values and shape, as a transposed view."""
    return Arg(np.ascontiguousarray(array.T), view=lambda a: a.T)


@dataclass(frozen=True, kw_only=True)
class OpCase:
    """One call of an op; every body must give what the float64 reference gives on the same values.

    args, options: as the op takes them; floating arrays are float32 and are rounded to each of `storages` in turn.
    factor, why: how much wider than the table the tolerance is, and for which reason. scale: the magnitude of the terms
    where the result is a difference of them. zeros: where the reference is 0, so is the result, to the bit.
    compared: picks what is compared from the results. large: left out by --quick.
    """

    op: Op
    name: str
    args: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    storages: tuple[str, ...] = tuple(STORAGES)
    factor: float = 1.0
    why: str = ""
    scale: float = 0.0
    zeros: bool = False
    compared: Callable[[list[Any]], list[Any]] | None = None
    large: bool = False

    def __post_init__(self) -> None:
        if (self.factor != 1 or self.scale) and not self.why:
            raise ValueError(f"{self.op.name}, {self.name}: a wider tolerance needs a reason")

    @property
    def subject(self) -> str:
        return self.op.name


@dataclass(frozen=True, kw_only=True)
class GradientCase:
    """A function whose backward pass must be the derivative of its forward pass, by finite differences in float64.

    function: a layer, or a loss `f(x) -> (loss, dx)`. ops: those whose gradient this is.
    """

    ops: tuple[Op, ...]
    name: str
    function: Layer | Callable[..., tuple[Any, Any]]
    inputs: tuple[np.ndarray, ...]
    large: bool = False

    @property
    def subject(self) -> str:
        return self.ops[-1].name


@dataclass(frozen=True, kw_only=True)
class LayerCase:
    """One forward and backward pass of a layer. `make()` gives a fresh float32 layer, the same every time.

    inputs: float64 arrays, ids, masks. options: keyword arguments of forward. sample: `train` of the pass.
    """

    layer: type[Layer]
    name: str
    make: Callable[[], Layer]
    inputs: tuple[np.ndarray, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    train: Train | None = None
    storages: tuple[str, ...] = ("float32",)
    factor: float = 1.0
    why: str = ""
    large: bool = False

    @property
    def subject(self) -> str:
        return self.layer.__name__


Case = OpCase | GradientCase | LayerCase
Maker = Callable[[np.random.Generator], Iterable[Case]]


class Function(Layer):
    """A pair of plain functions as a layer, so that `gradcheck` takes it: `forward(*inputs) -> (y, saved)`."""

    def __init__(self, forward: Callable[..., tuple[Any, Any]], backward: Callable[[Any, Any], Any]) -> None:
        self._forward, self._backward = forward, backward

    def forward(self, *inputs: Any, train: Train | None = None) -> tuple[Any, Any]:
        return self._forward(*inputs)

    def backward(self, dy: Any, saved: Any) -> Any:
        return self._backward(dy, saved)


def make_cases(makers: Iterable[Maker]) -> Iterator[Case]:
    """All cases of some makers. Each maker draws from a generator of its own, so that one more case moves no other."""
    for maker in makers:
        yield from maker(np.random.default_rng(0))
