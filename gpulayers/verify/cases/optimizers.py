"""The updates of the optimizers, their control numbers, and the norm of the gradient."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpulayers.ops.adafactor import adafactor
from gpulayers.ops.adam import adam
from gpulayers.ops.adam_rules import adamax, amsgrad, lamb, lion, nadam, radam
from gpulayers.ops.gradient_rules import adadelta, adagrad, asgd, muon, rmsprop, rprop
from gpulayers.ops.move import follow, move
from gpulayers.ops.newton_schulz import newton_schulz
from gpulayers.ops.sgd import sgd
from gpulayers.ops.sum_of_squares import sum_of_squares
from gpulayers.ops.update_control import CONTROL_SIZE, OUTCOME_SIZE, Control, update_control
from gpulayers.verify.case import Arg, Case, Maker, OpCase, exact, written
from gpulayers.verify.cases.inputs import EXTREMES, VOCABULARY, normal

STEP = Control(1, scale=0.5, limit=math.inf, rate=1e-3, correction1=0.271, correction2=0.002997001, t=3, extra=0.4)
CONTROLS = {
    "": STEP,
    ", limit": STEP._replace(limit=0.25),
    ", rate 0": STEP._replace(rate=0),
    ", skipped": Control(0, 0, 0, 0, 0, 0),
}


def gradients(rng: np.random.Generator) -> Iterator[tuple[str, np.ndarray, bool]]:
    for size in (0, 1, 5, 1023, VOCABULARY):
        yield f"{size} parameters", normal(rng, size), size == VOCABULARY
    yield "float16 extremes", EXTREMES, False


def adam_cases(rng: np.random.Generator) -> Iterator[Case]:
    for name, g, large in gradients(rng):
        for control, numbers in CONTROLS.items():
            if control and large:
                continue
            for decoupled in (False, True):
                p, m = normal(rng, g.size), normal(rng, g.size)
                v = rng.uniform(0, 2, g.size).astype(np.float32)
                if control == ", skipped" and g.size > 1:
                    g = g.copy()
                    g[1] = np.inf
                moments = (written(m, exact=True), written(v, exact=True))
                gradient, finish = finishing(p, g, decoupled)
                yield OpCase(
                    op=adam,
                    name=name + control + ", decoupled decay, copy, cleared" * decoupled,
                    args=(written(p, exact=True), *moments, gradient, exact(np.array(numbers, np.float32))),
                    options={
                        "lr_scale": 1.5,
                        "beta1": 0.9,
                        "beta2": 0.999,
                        "eps": 1e-8,
                        "weight_decay": 0.1,
                        "decoupled": decoupled,
                        "l1": 0.0 if decoupled else 0.01,
                        **finish,
                    },
                    large=large,
                )


def finishing(p: np.ndarray, g: np.ndarray, both: bool) -> tuple[Any, dict[str, Any]]:
    """The gradient and the last arguments of an update: with a copy in storage type and a cleared gradient, or not."""
    return (written(g), {"copy": written(p), "clear": True}) if both else (g, {})


def sgd_cases(rng: np.random.Generator) -> Iterator[Case]:
    for name, g, large in gradients(rng):
        for kind, momentum, nesterov in (("", 0.0, False), (", momentum", 0.9, False), (", Nesterov", 0.9, True)):
            for control, numbers in CONTROLS.items():
                if large and (control or not kind):
                    continue
                p = normal(rng, g.size)
                m = written(normal(rng, g.size), exact=True) if momentum else None
                gradient, finish = finishing(p, g, nesterov)
                args = (written(p, exact=True), m, gradient, exact(np.array(numbers, np.float32)))
                options = {"lr_scale": 1.5, "momentum": momentum, "nesterov": nesterov, "weight_decay": 0.1, "l1": 0.01}
                options |= finish
                more = ", copy, cleared" * bool(finish)
                yield OpCase(op=sgd, name=name + kind + control + more, args=args, options=options, large=large)


# op, which of m, v, w it has, its numbers
RULES = (
    (amsgrad, "mvw", (0.9, 0.999, 1e-8)),
    (nadam, "mv", (0.9, 0.999, 1e-8)),
    (radam, "mv", (0.9, 0.999, 1e-8)),
    (adamax, "mv", (0.9, 0.999, 1e-8)),
    (lion, "m", (0.9, 0.99)),
    (lamb, "mvw", (0.9, 0.999, 1e-6, 0.1)),
    (rmsprop, "v", (0.99, 1e-8, 0.0)),
    (rmsprop, "mvw", (0.9, 1e-2, 0.9)),
    (adagrad, "v", (0.1, 1e-10)),
    (adadelta, "mv", (0.9, 1e-6)),
    (rprop, "mv", (0.5, 1.2, 1e-6, 50.0)),
    (asgd, "m", (0.01, 0.75, 1.0)),
    (muon, "mw", (0.95, True)),
)


def rule_cases(rng: np.random.Generator) -> Iterator[Case]:
    """The elementwise rules of `ops/adam_rules.py` and `ops/gradient_rules.py`."""
    for op, has, numbers in RULES:
        for size in (0, 1, 1023):
            for control, values in CONTROLS.items():
                for decoupled in (False, True):
                    p, m, g = normal(rng, size), normal(rng, size), normal(rng, size)
                    v, w = rng.uniform(0.1, 2, (2, size)).astype(np.float32)
                    m = abs(m) if op is adadelta else m  # a mean of squares
                    w = m * 0.1 if op is rmsprop else w  # the mean's square is below the mean of squares
                    if control == ", skipped" and size > 1:
                        g[1] = np.inf
                    state = (
                        written(a, exact=True) if letter in has else None
                        for letter, a in zip("mvw", (m, v, w), strict=True)
                    )
                    gradient, finish = finishing(p, g, decoupled)
                    options = {"lr_scale": 1.5, "numbers": numbers, "weight_decay": 0.1, "decoupled": decoupled}
                    yield OpCase(
                        op=op,
                        name=f"{size} parameters, {has}{control}" + ", decoupled decay, copy, cleared" * decoupled,
                        args=(written(p, exact=True), *state, gradient, exact(np.array(values, np.float32))),
                        options={**options, "l1": 0.01, **finish},
                    )


def direction_cases(rng: np.random.Generator) -> Iterator[Case]:
    """Steps along directions, averages, and what works on whole matrices."""
    for size in (0, 1, 1023):
        for control, values in CONTROLS.items():
            numbers = exact(np.array(values, np.float32))
            p, u = exact(normal(rng, size)), exact(normal(rng, size))
            totals = [exact(np.array([float((a.array.astype(np.float64) ** 2).sum())])) for a in (p, u)]
            for name, more in (("", (None, None)), (", trust", totals)):
                args = (written(p.array, exact=True), u, numbers, 1.5, 0.7, 0.1, *more)
                yield OpCase(op=move, name=f"{size} parameters{control}{name}", args=args)
            yield OpCase(op=follow, name=f"{size}{control}", args=(written(p.array, exact=True), u, 0.99, numbers))
        yield OpCase(op=follow, name=f"{size}, always", args=(written(p.array, exact=True), u, 0.99))
    why = "fifteen products that follow each other"
    for shape in ((5, 7), (7, 5), (1, 33), (31, 31)):
        g = exact(normal(rng, *shape))
        yield OpCase(op=newton_schulz, name=f"{shape}", args=(g,), storages=("float32",), factor=20, why=why)
    for shape in ((5, 7), (9,), (2, 3, 4)):
        for control, values in CONTROLS.items():
            p, g = normal(rng, *shape), normal(rng, *shape)
            sizes = (shape[:-1], (*shape[:-2], shape[-1]))
            state = [written(rng.uniform(0.1, 2, s).astype(np.float32), exact=True) for s in (*sizes, shape)]
            state = [*state[:2], None] if len(shape) > 1 else [None, None, state[2]]
            args = (written(p, exact=True), *state, g, exact(np.array(values, np.float32)))
            yield OpCase(op=adafactor, name=f"{shape}{control}", args=(*args, 1.5, -0.8, 1e-7, 1e-3, 1.0, 0.1, 0.01))


def sum_of_squares_cases(rng: np.random.Generator) -> Iterator[Case]:
    for name, x, large in gradients(rng):
        for kind, limit in (("", None), (", limit", exact(np.array([0.5])))):
            if not (large and kind):
                yield OpCase(op=sum_of_squares, name=name + kind, args=(x, limit), large=large)
    for value in (3e38, 1e-30):  # the square leaves float32, the sum is finite
        x = np.full(1023, value, np.float32)
        yield OpCase(op=sum_of_squares, name=f"values of {value:g}", args=(x,), storages=("float32",))
    for value in (np.nan, np.inf):
        x = normal(rng, 1023)
        x[1000] = value
        yield OpCase(op=sum_of_squares, name=f"one {value}", args=(x,))
    view = Arg(normal(rng, 40, 6), view=lambda a: a[:, 1:3])
    yield OpCase(op=sum_of_squares, name="strided view", args=(view,))


def update_control_cases(rng: np.random.Generator) -> Iterator[Case]:
    for name, total, options in (
        ("plain", 25.0, {}),
        ("clipped", 25.0, {"clip_norm": 1.0}),
        ("clipped by value", 25.0, {"clip_value": 0.5}),
        ("with Adam's corrections", 1.0, {"beta1": 0.9, "beta2": 0.999}),
        ("norm 0", 0.0, {"clip_norm": 1.0}),
        ("with a loss", 25.0, {"loss": exact(np.array([3.5]))}),
        ("loss inf: skipped", 25.0, {"loss": exact(np.array([math.inf]))}),
        ("NaN: skipped", math.nan, {"clip_norm": 1.0}),
        ("inf: skipped", math.inf, {}),
        ("too large: skipped", 1e12, {"largest": 1e3}),
    ):
        for count in (1.0, 4.0, 0.0):
            yield OpCase(
                op=update_control,
                name=f"{name}, count {count:g}",
                args=control_args(total, count),
                options=options,
                storages=("float32",),
            )
    groups = exact(np.array([[0.8, 0.6, 0.1, 1.0], [0.5, 0.99, 0.0, 0.0]]))
    for name, options in {
        "betas": {"beta1": 0.9, "beta2": 0.999},
        "RAdam": {"beta1": 0.9, "beta2": 0.999, "rectify": True},
        "NAdam": {
            "beta1": 0.9, "beta2": 0.999, "momentum_decay": 0.004,
            "product": written(np.array([0.3, 0.2, 0.1]), exact=True),
        },
    }.items():  # fmt: skip
        control = written(np.full((3, CONTROL_SIZE), 5, np.float32), exact=True)
        args = (control, *control_args(25.0, 4.0)[1:])
        options["groups"] = groups
        name = f"groups, {name}"
        yield OpCase(op=update_control, name=name, args=args, options=options, storages=("float32",))
    for name, total, scale, bad in (
        ("grows", 25.0, (1024.0, 3.0, 0.0), 0),
        ("halved", math.inf, (1024.0, 3.0, 0.0), 0),
        ("at the floor", math.inf, (1.0, 3.0, 5.0), 0),
        ("bad input", 25.0, (1024.0, 3.0, 0.0), 1),
    ):
        error = np.array([bad, 0, 0, 0])
        loss_scale = written(np.array(scale, np.float32), exact=True)
        options = {"error": error, "loss_scale": loss_scale, "growth_interval": 4, "clip_norm": 1.0}
        args, name = control_args(total, 4.0), f"loss scale, {name}"
        yield OpCase(op=update_control, name=name, args=args, options=options, storages=("float32",))


def control_args(total: float, count: float) -> tuple[Any, ...]:
    counters = written(np.array([7, 2]))
    control = written(np.full(CONTROL_SIZE, 5, np.float32), exact=True)
    outcome = written(np.zeros(OUTCOME_SIZE), exact=True)
    rates = exact(np.array([3e-4, 2e-4], np.float32))
    totals = exact(np.array([total * 0.25, total * 0.75]))
    return control, counters, outcome, totals, None, exact(np.array([count])), rates


MAKERS: list[Maker] = [adam_cases, sgd_cases, rule_cases, direction_cases, sum_of_squares_cases, update_control_cases]
