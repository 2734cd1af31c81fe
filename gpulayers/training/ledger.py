"""`Ledger`: measures the health of every layer (`health.py`) in the steps that it is told to watch.

    ledger = Ledger(model, optimizer)
    with ledger.watch():
        ...                                # forward, backward, optimizer.step() as ever
    print(first_sick(ledger.rows))

It listens to the calls of layers and ops by `profiling.Ranges`, so it works on any model, leaves nothing in a layer,
and costs nothing in the steps that it does not watch. It only reads: no number of the training changes.
"""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gpulayers.backend import Array, array_module, is_array, is_floating, to_numpy, wide
from gpulayers.layers.dropout import Dropout
from gpulayers.layers.layer import Layer
from gpulayers.ops.sum_of_squares import sum_of_squares
from gpulayers.optim import Optimizer
from gpulayers.parameter import Parameter
from gpulayers.profiling.ranges import PASSES, Range, Ranges
from gpulayers.training.health import Row

FLAT = 0.99  # of tanh: its slope there is a fiftieth of that at 0


def _is_zero(y: Array) -> Array:
    return y == 0


def _is_flat_tanh(y: Array) -> Array:
    return abs(y) > FLAT


def _is_flat_sigmoid(y: Array) -> Array:
    return abs(2 * y - 1) > FLAT  # sigmoid(x) = (1 + tanh(x / 2)) / 2


SILENT: dict[str, Callable[[Array], Array]] = {  # op -> which values of its output say nothing
    **dict.fromkeys(("relu", "leaky_relu", "prelu", "gelu", "gelu_with_derivative", "silu"), _is_zero),
    **dict.fromkeys(("gelu_with_derivative_inplace", "silu_with_derivative"), _is_zero),
    "tanh": _is_flat_tanh,
    "sigmoid": _is_flat_sigmoid,
}
BENDING = ("tanh", "sigmoid")


class Ledger:
    """The health of `model`, layer by layer.

    A layer is what `layers_of` says: each item of a list of layers, each layer that holds no such list, but no
    `Dropout`. rows: of the step that was watched last, in the order in which the layers were called; before the first
    one, empty.

    optimizer: the gradients are looked at as its `step` begins, divided as it divides them. Without one they are read
    as `watch` ends and divided by `divisor`, and there are no updates.
    """

    def __init__(self, model: Layer, optimizer: Optimizer | None = None) -> None:
        self.model, self.optimizer, self.divisor = model, optimizer, 1.0
        self.rows: dict[str, Row] = {}

    @contextmanager
    def watch(self) -> Iterator[None]:
        """The step inside is measured. Raises RuntimeError inside another `Ranges`, a trace say."""
        listener = _Listener(self.model, self.optimizer)
        with Ranges(listener, self.model, self.optimizer):
            yield
        self.rows = listener.rows(self.divisor)


def layers_of(model: Layer) -> dict[str, Layer]:
    """The layers that have a row of their own, by their dotted names, in the order of definition."""
    found = dict(_rows("", model))
    return found or {type(model).__name__: model}


def _rows(prefix: str, layer: Layer) -> Iterator[tuple[str, Layer]]:
    for name, value in vars(layer).items():
        for dotted, child in _layers_in(prefix + name, value):
            if _holds_a_list(child):
                yield from _rows(f"{dotted}.", child)
            elif not isinstance(child, Dropout):
                yield dotted, child


def _layers_in(name: str, value: Any) -> Iterator[tuple[str, Layer]]:
    """The layer `value`, or the layers in the list, tuple or dict `value`."""
    if isinstance(value, Layer):
        yield name, value
    elif isinstance(value, list | tuple | dict):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _layers_in(f"{name}.{key}", item)


def _holds_a_list(layer: Layer) -> bool:
    """Whether a list of layers is in it or further down."""
    for value in vars(layer).values():
        if isinstance(value, Layer):
            if _holds_a_list(value):
                return True
        elif any(_layers_in("", value)):
            return True
    return False


class _Listener:
    """`Recorder` of one step. Sums stay on the device until `rows()`."""

    def __init__(self, model: Layer, optimizer: Optimizer | None) -> None:
        self.optimizer = optimizer
        self.thread = threading.get_ident()  # an optimizer's threads run ops too
        self.measuring = False  # our own ops are not to be listened to
        self.stack: list[Range] = []
        layers = layers_of(model)
        self.parameters: dict[str, list[Parameter]] = {name: [] for name in layers}
        for name, parameter in model.named_parameters():
            row = next((r for r in layers if name.startswith(f"{r}.")), name if len(layers) > 1 else next(iter(layers)))
            self.parameters.setdefault(row, []).append(parameter)
        self.called: dict[str, str] = {}  # row -> the layer whose output is its activation: itself, or see `_around`
        self.squares: dict[str, list[tuple[Array, int]]] = {}  # of outputs: (sum, how many)
        self.silent: dict[str, dict[str, Array]] = {}  # row -> its activation -> units that were silent all the time
        self.flat: dict[str, list[tuple[Array, int]]] = {}
        self.gradients: dict[str, float] = {}
        self.weights: dict[str, list[Array]] = {}
        self.updates: dict[str, float | None] = {}

    # ------------------------------------------------------------------------------------------------ listening

    def push(self, one: Range, args: tuple[Any, ...]) -> None:
        if self.measuring or threading.get_ident() != self.thread:
            return
        self.stack.append(one)
        if one.kind == "forward" and one.name in self.parameters:
            self.called.setdefault(one.name, one.name)
        if one.kind == "optimizer":
            self._measure(self._before_step, args[1] if len(args) > 1 else None)

    def pop(self, result: Any = None) -> None:
        if self.measuring or threading.get_ident() != self.thread:
            return
        one, y = self.stack[-1], result[0] if isinstance(result, tuple) else result
        if one.kind == "forward" and self._first_pass():
            self._measure(self._outputs, self._around(one.name), y)
        elif one.kind == "op" and one.name in SILENT and (row := self._row()) is not None:
            self._measure(self._units, row, one.name, y)
        elif one.kind == "optimizer":
            self._measure(self._after_step)
        self.stack.pop()

    def _measure(self, what: Callable[..., None], *args: Any) -> None:
        self.measuring = True
        try:
            what(*args)
        finally:
            self.measuring = False

    def _first_pass(self) -> bool:
        """Whether we are in a forward pass that is no evaluation, and none that `Recompute` runs a second time."""
        kinds = [one.kind for one in self.stack if one.kind in PASSES.values()]
        return kinds[:1] == ["forward"] and "backward" not in kinds

    def _row(self) -> str | None:
        """The row whose forward pass we are in."""
        if not self._first_pass():
            return None
        return next((one.name for one in self.stack if one.kind == "forward" and one.name in self.parameters), None)

    def _around(self, layer: str) -> list[str]:
        """The rows whose activation is the output of `layer`: itself, or those in it that are not called by themselves,
        such as the cells of a recurrent network that unrolls them."""
        if layer in self.parameters:
            return [layer]
        inside = [row for row in self.parameters if row.startswith(f"{layer}.")]
        return [row for row in inside if self.called.setdefault(row, layer) == layer]

    # ------------------------------------------------------------------------------------------------ measuring

    def _outputs(self, rows: list[str], outputs: Any) -> None:
        """Of a layer with several, all that float, as one."""
        for y in (outputs if isinstance(outputs, tuple) else (outputs,)) if rows else ():
            if is_array(y) and is_floating(y.dtype) and y.size:
                square = sum_of_squares(y), y.size
                for row in rows:
                    self.squares.setdefault(row, []).append(square)

    def _units(self, row: str, op: str, y: Array) -> None:
        if not y.size:
            return
        silent = SILENT[op](y.reshape(-1, y.shape[-1]).astype(wide(y.dtype)))  # (rows, units)
        where = f"{[one.name for one in self.stack if one.kind in PASSES.values()][-1]} {silent.shape[1]}"
        before = self.silent.setdefault(row, {})
        units = silent.all(axis=0)
        before[where] = units & before[where] if where in before else units
        if op in BENDING:
            self.flat.setdefault(row, []).append((silent.sum(), y.size))

    def _before_step(self, count: Any) -> None:
        scale = getattr(self.optimizer, "scale", None)
        divisor = (1.0 if count is None else float(count)) or 1.0
        self._gradients(divisor * (1.0 if scale is None else float(scale)))
        self.weights = {row: [p.values.copy() for p in own] for row, own in self.parameters.items()}

    def _gradients(self, divisor: float) -> None:
        for row, own in self.parameters.items():
            if trained := [p.grad for p in own if p.trainable]:
                self.gradients[row] = _norm(trained) / divisor

    def _after_step(self) -> None:
        for row, before in self.weights.items():
            size = _norm(before)
            if before and size:
                moved = [p.values - was for p, was in zip(self.parameters[row], before, strict=True)]
                self.updates[row] = _norm(moved) / size
        self.weights = {}

    # ------------------------------------------------------------------------------------------------ the end

    def rows(self, divisor: float) -> dict[str, Row]:
        if self.optimizer is None:
            self._gradients(divisor)
        never = [row for row in self.parameters if row not in self.called and self.parameters[row]]
        return {row: self._row_of(row) for row in [*never, *self.called]}

    def _row_of(self, row: str) -> Row:
        squares = _ratio(self.squares.get(row))
        units = [to_numpy(silent) for silent in self.silent.get(row, {}).values()]
        return Row(
            gradient=self.gradients.get(row),
            activation=None if squares is None else math.sqrt(squares),
            dead=float(sum(u.sum() for u in units) / sum(u.size for u in units)) if units else None,
            saturated=_ratio(self.flat.get(row)),
            update=self.updates.get(row),
        )


def _norm(arrays: list[Array]) -> float:
    """Of all of them together; NaN or infinite where an element is."""
    if not arrays:
        return 0.0
    total = array_module(arrays[0]).zeros(1, "float64")
    for array in arrays:
        total += sum_of_squares(array)
    return math.sqrt(float(total[0]))


def _ratio(sums: list[tuple[Array, int]] | None) -> float | None:
    """Sum of the sums over the sum of the counts."""
    if not sums:
        return None
    return sum(float(total.sum()) for total, _ in sums) / sum(count for _, count in sums)
