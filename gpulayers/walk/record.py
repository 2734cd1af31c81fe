"""What happened in one training step: a tree of the calls of layers and ops, with copies of their arrays."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpulayers.backend import is_array, to_numpy
from gpulayers.layers.layer import Layer
from gpulayers.ops.op import Op
from gpulayers.parameter import Parameter
from gpulayers.profiling.ranges import Range


@dataclass
class Node:
    """A call. inputs, outputs: the arrays among its arguments and results, as they were when it began and ended.

    layer: whose forward or backward it is. values: of the parameters in it when a forward pass begins; gradients: when
    a backward pass ends; both by the Parameter's id. names: of an op's inputs, in its reference body.
    """

    one: Range
    layer: Layer | None
    inputs: list[np.ndarray]
    outputs: list[np.ndarray] = field(default_factory=list)
    values: dict[int, np.ndarray] = field(default_factory=dict)
    gradients: dict[int, np.ndarray] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    children: list["Node"] = field(default_factory=list)

    @property
    def is_leaf(self) -> bool:
        """Whether no layer is called inside."""
        return all(child.layer is None and child.is_leaf for child in self.children)

    def own(self) -> dict[str, Parameter]:
        """The parameters that it uses itself, by their names in the layer: no layer called inside holds them."""
        if self.layer is None:
            return {}
        inside = {id(p) for layer in self._layers() for p in layer.parameters()}
        return {name: p for name, p in self.layer.named_parameters() if id(p) not in inside}

    def _layers(self) -> Iterator[Layer]:
        for child in self.children:
            if child.layer is not None:
                yield child.layer
            yield from child._layers()


class Recording:
    """`Recorder` (profiling/ranges.py) that keeps everything: for networks of a few hundred numbers."""

    def __init__(self) -> None:
        self.root = Node(Range("step", "step", "step"), None, [])
        self._stack = [self.root]

    def push(self, one: Range, args: tuple[Any, ...]) -> None:
        layer = args[0] if args and isinstance(args[0], Layer) else None
        given = args[1:2] if one.kind == "backward" else args  # behind dy comes `saved`, which forward has shown
        node = Node(one, layer, arrays(given))
        if args and isinstance(args[0], Op) and one.kind == "op":
            called = list(zip(inspect.signature(args[0].reference).parameters, args[1:], strict=False))
            node.names = [name for name, value in called if is_array(value)]
            node.inputs = arrays([value for _, value in called if is_array(value)])
        if one.kind == "forward" and layer is not None:
            node.values = {id(p): copied(p.values) for p in layer.parameters()}
        self._stack[-1].children.append(node)
        self._stack.append(node)

    def pop(self, result: Any = None) -> None:
        node = self._stack.pop()
        if node.one.kind == "forward" and isinstance(result, tuple):
            result = result[0]  # the second is `saved`
        node.outputs = arrays((result,))
        if node.one.kind == "backward" and node.layer is not None:
            node.gradients = {id(p): copied(p.grad) for p in node.layer.parameters()}


def arrays(values: Any) -> list[np.ndarray]:
    """Copies of the arrays among `values`, those in tuples and lists too, in order."""
    found: list[np.ndarray] = []
    for value in values:
        if is_array(value):
            found.append(copied(value))
        elif isinstance(value, tuple | list):
            found.extend(arrays(value))
    return found


def copied(array: Any) -> np.ndarray:
    return np.array(to_numpy(array))
