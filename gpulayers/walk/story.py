"""One training step as a story: what went in, forward, loss, backward with finite differences, update.

The step is a step like any other (`model.forward`, `cross_entropy`, `model.backward`, `optimizer.step`), listened to
from outside; nothing is computed for the telling but the finite differences, the softmax in the loss, and Adam's m_hat
and v_hat.
"""

import copy
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import gpulayers
from gpulayers.backend import to_device, to_numpy
from gpulayers.gradcheck import numerical_gradient
from gpulayers.layers.layer import Layer
from gpulayers.ops.cross_entropy import cross_entropy
from gpulayers.ops.softmax import softmax
from gpulayers.optim import SGD, Adam, Optimizer
from gpulayers.profiling.ranges import Ranges
from gpulayers.step import Train
from gpulayers.verify import tolerances
from gpulayers.walk.examples import Example
from gpulayers.walk.formulas import OPS, Formula, Names, OpFormula, formula_of, names_of
from gpulayers.walk.record import Node, Recording

Named = tuple[str, np.ndarray]


class Gradient(NamedTuple):
    """A parameter's gradient by backward and by finite differences of the loss, and how far they are apart.

    error: the largest difference over the largest finite difference (1e-3 at least of the model's largest gradient).
    """

    name: str
    backward: np.ndarray
    numeric: np.ndarray
    error: float
    agrees: bool


class Entry(NamedTuple):
    """title: of a layer, an op or a parameter. source: the file to read. arrays: with their names."""

    title: str
    source: str = ""
    formulas: tuple[str, ...] = ()
    arrays: tuple[Named, ...] = ()
    gradients: tuple[Gradient, ...] = ()
    depth: int = 0


class Chapter(NamedTuple):
    title: str
    entries: list[Entry]


class Story(NamedTuple):
    """title, facts: what is told. chapters: in the order of the step. worst: the worst error of all gradients."""

    title: str
    facts: tuple[str, ...]
    chapters: list[Chapter]
    worst: float
    agrees: bool


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # looked for after the step
def tell(name: str, example: Example, optimizer: Optimizer, step: int, seed: int, backend: str) -> Story:
    """Step number `step` (from 1) of `optimizer` on the example; the steps before it are made and not told.

    Raises FloatingPointError where a gradient is not finite: nothing can be compared with it.
    """
    for k in range(step - 1):
        _step(example, optimizer, Train(seed, k), backend)
    numeric = _numeric(example)
    before = {n: copy.deepcopy(to_numpy(p.values)) for n, p in example.model.named_parameters()}
    recording = Recording()
    with Ranges(recording, example.model, optimizer):
        loss, gradients = _step(example, optimizer, Train(seed, step - 1), backend)
    if not all(np.isfinite(gradient).all() for gradient in (*gradients.values(), *numeric.values())):
        raise FloatingPointError(f"the gradient of step {step} is not finite")
    teller = _Teller(example.model, gradients, numeric)
    nodes = recording.root.children
    loss_at = next(i for i, node in enumerate(nodes) if node.one.kind == "loss")
    chapters = [
        Chapter("what goes in", [_batch(example)]),
        Chapter("forward", list(teller.forward(nodes[:loss_at]))),
        Chapter("loss", [_loss(nodes[loss_at], example.targets, loss)]),
        Chapter("backward", list(teller.backward(nodes[loss_at + 1 :]))),
        Chapter("update", []),
    ]
    called = {name: gradient.name.removeprefix("d") for name, gradient in teller.gradients.items()}
    chapters[-1].entries.extend(_updates(optimizer, called, gradients, before, step))
    compared = teller.gradients.values()
    return Story(
        f"one training step of {name} by hand",
        (
            f"{example.model.parameter_count()} parameters, {next(example.model.parameters()).dtype} on {backend}",
            f"{example.told}",
            f"loss {loss:.6f}, update {step} of {type(optimizer).__name__}",
        ),
        chapters,
        max((g.error for g in compared), default=0.0),
        all(g.agrees for g in compared),
    )


def _step(example: Example, optimizer: Optimizer, train: Train, backend: str) -> tuple[float, dict[str, np.ndarray]]:
    """The step itself. Returns the loss and all gradients, as the optimizer found them."""
    model = example.model
    inputs = [to_device(x, backend) for x in example.inputs]
    logits, saved = model.forward(*inputs, train=train)
    loss, dlogits = cross_entropy(logits, to_device(example.targets, backend))
    model.backward(dlogits, saved)
    gradients = {name: np.array(to_numpy(p.grad)) for name, p in model.named_parameters()}
    optimizer.step()
    return float(loss), gradients


def _numeric(example: Example) -> dict[str, np.ndarray]:
    """d loss / d parameter by finite differences, in float64 on the CPU."""
    model = copy.deepcopy(example.model).to("numpy", np.float64)
    inputs = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in example.inputs]

    def loss() -> float:
        return float(cross_entropy(model.forward(*inputs, train=Train())[0], example.targets)[0])

    return {name: numerical_gradient(loss, p.data) for name, p in model.named_parameters()}


class _Teller:
    """Entries of the passes. gradients: those that have been told, by the parameter's name."""

    def __init__(self, model: Layer, total: dict[str, np.ndarray], numeric: dict[str, np.ndarray]) -> None:
        self.model, self.total, self.numeric = model, total, numeric
        self.names = {id(p): name for name, p in model.named_parameters()}
        self.largest = max((float(abs(g).max()) for g in numeric.values() if g.size), default=0.0)
        self.gradients: dict[str, Gradient] = {}

    def forward(self, nodes: list[Node], depth: int = 0) -> Iterator[Entry]:
        for node in nodes:
            if node.layer is not None and not node.is_leaf:
                yield self._heading(node, depth)
                yield from self.forward(node.children, depth + 1)
            elif (entry := self._forward(node, depth)) is not None:
                yield entry

    def _heading(self, node: Node, depth: int) -> Entry:
        assert node.layer is not None
        formulas = () if depth == 0 else (formula_of(node.layer, Names()).forward,)
        own = tuple((name, node.values[id(p)]) for name, p in node.own().items())
        return Entry(_title(node), _source(node.layer), formulas, own, depth=depth)

    def _forward(self, node: Node, depth: int) -> Entry | None:
        if node.layer is None:
            return _op(node, depth)
        if _idle(node):
            return None
        names = names_of(self.model, node.one.name)
        formula = formula_of(node.layer, names)
        own = [(self._called(node, key), node.values[id(p)]) for key, p in node.own().items()]
        arrays = _numbered(names.x, node.inputs) + own + _numbered(names.y, node.outputs)
        return Entry(_title(node), _source(node.layer), (formula.forward,), tuple(arrays), depth=depth)

    def backward(self, nodes: list[Node], depth: int = 0) -> Iterator[Entry]:
        for node in nodes:
            if node.layer is not None and not node.is_leaf:
                yield Entry(_title(node), depth=depth)
                yield from self.backward(node.children, depth + 1)
                if node.own():
                    arrays, gradients = self._own_gradients(node)
                    yield Entry(f"{_title(node)}, its own", "", (), tuple(arrays), tuple(gradients), depth + 1)
            elif node.layer is None and node.one.kind != "optimizer":
                yield _op(node, depth)
            elif node.layer is not None and not _idle(node):
                yield self._backward(node, depth)

    def _backward(self, node: Node, depth: int) -> Entry:
        assert node.layer is not None
        names = names_of(self.model, node.one.name)
        formula: Formula = formula_of(node.layer, names)
        so_far, gradients = self._own_gradients(node)
        arrays = _numbered(f"d{names.y}", node.inputs) + _numbered(f"d{names.x}", node.outputs) + so_far
        used = [text for key, text in formula.parameters.items() if getattr(node.layer, key, None) is not None]
        formulas = tuple(text for text in (*used, formula.dx) if text)
        return Entry(_title(node), _source(node.layer), formulas, tuple(arrays), tuple(gradients), depth)

    def _own_gradients(self, node: Node) -> tuple[list[Named], list[Gradient]]:
        """Of the parameters that the layer uses itself: (those to which more will be added, those that are whole)."""
        so_far, whole = [], []
        for key, parameter in node.own().items():
            name, now = self.names[id(parameter)], node.gradients[id(parameter)]
            if np.array_equal(now, self.total[name]):
                whole.append(self._compared(f"d{self._called(node, key)}", name))
            else:  # used in several places
                so_far.append((f"d{self._called(node, key)}, so far", now))
        return so_far, whole

    def _called(self, node: Node, key: str) -> str:
        """W2 in the network whose equations say so, else the attribute."""
        names = names_of(self.model, node.one.name)
        return getattr(names, key, key)

    def _compared(self, called: str, name: str) -> Gradient:
        found, numeric = self.total[name].astype(np.float64), self.numeric[name]
        scale = max(float(abs(numeric).max(initial=0.0)), 1e-3 * self.largest) or 1.0
        error = float(abs(found - numeric).max(initial=0.0)) / scale
        kind = self.total[name].dtype.name
        limit = tolerances.GRADIENT if kind == "float64" else 10 * tolerances.RELATIVE[kind]
        self.gradients[name] = Gradient(called, found, numeric, error, error <= limit)
        return self.gradients[name]


def _batch(example: Example) -> Entry:
    arrays = [("ids" if x.dtype.kind in "iu" else "pixels", x) for x in example.inputs]
    if len(arrays) == 2:
        arrays = [("source", example.inputs[0]), ("target_in", example.inputs[1])]
    return Entry("the batch", arrays=(*arrays, ("targets", example.targets)))


def _loss(node: Node, targets: np.ndarray, loss: float) -> Entry:
    losses, dlogits = node.outputs[:2]
    return Entry(
        "cross_entropy",
        "gpulayers/ops/cross_entropy.py",
        (OPS["cross_entropy"].formula,),
        (
            ("logits", node.inputs[0]),
            ("p", softmax.reference(node.inputs[0])),
            ("targets", targets),
            ("loss of each row", losses),
            ("loss", np.asarray(loss)),
            ("dlogits", dlogits),
        ),
    )


def _op(node: Node, depth: int) -> Entry:
    """An op that a layer called between its sub-layers. An array that it got to write a result into is no input."""
    known = OPS.get(node.one.name, OpFormula())
    inputs = [named for named in zip(node.names, node.inputs, strict=True) if named[0] not in known.outputs]
    named = len(node.outputs) <= len(known.outputs)  # a body may leave the last out: a kernel's weights are whole
    outputs = list(zip(known.outputs, node.outputs, strict=False)) if named else _numbered("result", node.outputs)
    formulas = (known.formula,) if known.formula else ()
    return Entry(node.one.text, formulas=formulas, arrays=(*inputs, *outputs), depth=depth)


def _idle(node: Node) -> bool:
    """What changes nothing, as a Dropout of 0."""
    return (
        not node.own()
        and len(node.inputs) == len(node.outputs) == 1
        and np.array_equal(node.inputs[0], node.outputs[0])
    )


def _numbered(name: str, values: list[np.ndarray]) -> list[Named]:
    """name, or name 1, name 2, ... if there are several."""
    return [(name if len(values) == 1 else f"{name} {i + 1}", value) for i, value in enumerate(values)]


def _title(node: Node) -> str:
    kind = type(node.layer).__name__
    return kind if node.one.name == kind else f"{node.one.name}  {kind}"


def _source(layer: Layer) -> str:
    """The layer's file, from the folder that the package lies in."""
    file = Path(inspect.getfile(type(layer)))
    root = Path(gpulayers.__file__).parents[1]
    return file.relative_to(root).as_posix() if file.is_relative_to(root) else file.name


# ------------------------------------------------------------------------------------------------ update


def _updates(
    optimizer: Optimizer,
    called: dict[str, str],
    gradients: dict[str, np.ndarray],
    before: dict[str, np.ndarray],
    step: int,
) -> Iterator[Entry]:
    state = optimizer.state_dict()
    after = {s.name: np.array(to_numpy(s.parameter.values)) for s in optimizer.flat.segments}
    lr = optimizer.rate(step - 1)
    if isinstance(optimizer, Adam):
        (b1, b2), eps = optimizer.betas, optimizer.eps
        c1, c2 = 1 - b1**step, 1 - b2**step
        yield Entry(
            f"Adam, update {step}",
            "gpulayers/ops/adam.py",
            (
                f"m = {b1:g} m + {1 - b1:g} g      v = {b2:g} v + {1 - b2:g} g^2",
                f"m_hat = m / (1 - {b1:g}^{step}) = m / {c1:.6g}      v_hat = v / (1 - {b2:g}^{step}) = v / {c2:.6g}",
                f"p = p - {lr:g} m_hat / (sqrt(v_hat) + {eps:g})",
            ),
        )
    else:
        yield Entry(f"SGD, update {step}", "gpulayers/ops/sgd.py", (f"p = p - {lr:g} g",))
    for name in before:
        arrays: list[Named] = [("old", before[name]), ("g", gradients[name])]
        if isinstance(optimizer, Adam):
            m, v = state[f"m.{name}"], state[f"v.{name}"]
            arrays += [("m", m), ("v", v), ("m_hat", m / c1), ("v_hat", v / c2)]
        arrays.append(("new", after[name]))
        known = name.endswith(called.get(name, name))
        yield Entry(name if known else f"{called[name]}  {name}", arrays=tuple(arrays), depth=1)


def make_optimizer(name: str, model: Layer, lr: float) -> Optimizer:
    """Plain SGD, or Adam as the paper has it: no decay, no clipping, no schedule."""
    return Adam(model, lr) if name == "adam" else SGD(model, lr)


def play(name: str, example: Example, optimizer: str, lr: float, step: int, seed: int, backend: str) -> Story:
    return tell(name, example, make_optimizer(optimizer, example.model, lr), step, seed, backend)
