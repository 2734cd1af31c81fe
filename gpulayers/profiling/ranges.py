"""Ranges: the parts of a training step under the names that the code uses.

    step > GPT.forward > blocks.0 Block.forward > blocks.0.ln_1 LayerNorm.forward > op layernorm > launch layernorm

Nothing of it exists until a `Ranges` is entered. Then `forward` and `backward` of the model's classes, the optimizer's
`step` and `Op.__call__` are replaced by functions that tell a recorder before and after; on the way out the originals
are put back. So a program that is not profiled makes no extra call; `launch` alone looks at one variable.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, Protocol, Self

from gpulayers import cuda
from gpulayers.layers.layer import Layer
from gpulayers.ops.op import Op
from gpulayers.replica import original

PASSES = {"forward": "forward", "backward": "backward", "__call__": "evaluation"}  # method -> kind
LOSSES = ("cross_entropy", "soft_cross_entropy", "nll", "mse", "pointwise_loss", "cosine_embedding")  # ops


class Range(NamedTuple):
    """kind: forward, backward, evaluation, loss, optimizer, op, launch, or a word that stands for itself (step).

    name: the layer's dotted name (the model's is its class), the op, the kernel. text: what a profiler shows.
    """

    kind: str
    name: str
    text: str

    @classmethod
    def of_layer(cls, dotted: str, layer: str, method: str) -> "Range":
        """`dotted`: "" for the model itself. layer: its class."""
        return cls(PASSES[method], dotted or layer, f"{dotted} {layer}.{method}".strip())

    @classmethod
    def parse(cls, text: str) -> "Range":
        """The range that shows as `text`."""
        first, _, rest = text.partition(" ")
        layer, _, method = (rest or first).rpartition(".")
        if layer and method in PASSES:
            return cls(PASSES[method], first if rest else layer, text)
        return cls(first, rest or first, text)


@functools.cache
def named(kind: str, name: str = "") -> Range:
    """A range that is not a layer's: `named("launch", "layernorm")`, `named("step")`."""
    return Range(kind, name or kind, f"{kind} {name}".strip())


def place(ranges: Sequence[Range]) -> tuple[str, str]:
    """(layer, pass) that the innermost of nested ranges belongs to, outermost first: ("blocks.0.ln_1", "forward")."""
    for one in reversed(ranges):
        if one.kind in PASSES.values():
            return one.name, one.kind
        if one.kind in ("loss", "optimizer"):
            return one.kind, ""
    return "", ""


class Recorder(Protocol):
    """What is told about ranges. Calls come properly nested within a thread, from any thread."""

    def push(self, one: Range, args: tuple[Any, ...]) -> None:
        """A range begins: a call with `args`. The arrays among them must not be kept."""

    def pop(self, result: Any = None) -> None:
        """The innermost range of this thread ends. result: what the call returned, None after an exception."""


def ranged(function: Callable[..., Any], range_of: Callable[[Any], Range], recorder: Recorder) -> Callable[..., Any]:
    """`function` in a range; `range_of` gets its first argument."""

    @functools.wraps(function)
    def call(first: Any, *args: Any, **options: Any) -> Any:
        recorder.push(range_of(first), (first, *args, *options.values()))
        result = None
        try:
            result = function(first, *args, **options)
            return result
        finally:
            recorder.pop(result)

    return call


class Ranges:
    """While it is entered, `recorder` is told of every range in `model`, `optimizer`, the ops and the launches.

    calls: further (module or class, function, Range) to record. The classes are changed, not the model: another model
    of the same classes is recorded too, its layers under their class names, those of a replica of the model under the
    model's. One at a time.

    Raises RuntimeError if another one is entered.
    """

    _active = False

    def __init__(
        self,
        recorder: Recorder,
        model: Layer | None = None,
        optimizer: Any = None,
        calls: Sequence[tuple[Any, str, Range]] = (),
    ) -> None:
        self.recorder, self._model, self._optimizer, self._calls = recorder, model, optimizer, calls
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        if Ranges._active:
            raise RuntimeError("Ranges: another recording is going on in this process")
        with ExitStack() as undo:
            undo.callback(setattr, Ranges, "_active", False)
            Ranges._active = True
            if self._model is not None:
                self._wrap_layers(undo, self._model)
            if self._optimizer is not None:
                owner = next(c for c in type(self._optimizer).__mro__ if "step" in vars(c))
                self._wrap(undo, owner, "step", lambda _: named("optimizer"))
            self._wrap(undo, Op, "__call__", lambda op: named("loss" if op.name in LOSSES else "op", op.name))
            for owner, function, one in self._calls:
                self._wrap(undo, owner, function, lambda _, one=one: one)
            undo.callback(setattr, cuda, "on_launch", cuda.on_launch)
            cuda.on_launch = self._launch
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._undo.close()

    @contextmanager
    def range(self, kind: str) -> Iterator[None]:
        """A range of your own, `with ranges.range("step"): ...`."""
        self.recorder.push(named(kind), ())
        try:
            yield
        finally:
            self.recorder.pop()

    def _wrap_layers(self, undo: ExitStack, model: Layer) -> None:
        layers = [("", model), *model.named_layers()]
        classes = {
            c: None for _, layer in layers for c in type(layer).__mro__ if issubclass(c, Layer) and c is not Layer
        }
        for method in PASSES:
            ranges = {id(layer): Range.of_layer(name, type(layer).__name__, method) for name, layer in layers}
            of = functools.partial(_range_of_layer, ranges, method)
            for owner in classes:
                if method in vars(owner):
                    self._wrap(undo, owner, method, of)

    def _wrap(self, undo: ExitStack, owner: Any, function: str, range_of: Callable[[Any], Range]) -> None:
        original = vars(owner)[function]
        undo.callback(setattr, owner, function, original)
        setattr(owner, function, ranged(original, range_of, self.recorder))

    def _launch(self, function: str, args: tuple[Any, ...], run: Callable[[], None]) -> None:
        self.recorder.push(named("launch", function), args)
        try:
            run()
        finally:
            self.recorder.pop()


def recording() -> bool:
    """Whether a `Ranges` is entered."""
    return Ranges._active


def _range_of_layer(ranges: dict[int, Range], method: str, layer: Layer) -> Range:
    return ranges.get(id(original(layer))) or Range.of_layer("", type(layer).__name__, method)
