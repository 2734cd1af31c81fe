"""Cross-entropy, mean squared error, and the losses that are sums over elements."""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpulayers.ops.binary_cross_entropy import binary_cross_entropy, binary_cross_entropy_with_logits
from gpulayers.ops.cosine_embedding import cosine_embedding, cosine_embedding_loss
from gpulayers.ops.cross_entropy import cross_entropy
from gpulayers.ops.cross_entropy_rows import cross_entropy_rows
from gpulayers.ops.hinge_embedding import hinge_embedding_loss
from gpulayers.ops.kl_div import kl_div
from gpulayers.ops.mse import mse, mse_loss
from gpulayers.ops.nll import nll, nll_loss
from gpulayers.ops.pointwise_loss import FORMULAS, pointwise_loss
from gpulayers.ops.regression_losses import huber_loss, l1_loss, smooth_l1_loss
from gpulayers.ops.soft_cross_entropy import soft_cross_entropy
from gpulayers.ops.softcap import softcap, softcap_backward
from gpulayers.verify.case import Arg, Case, GradientCase, Maker, OpCase, exact, transposed, written
from gpulayers.verify.cases.inputs import EXTREMES, VOCABULARY, normal

IGNORE = -100
CERTAIN = "the gradient is probability minus 1, and 1 - 1 for a class that is certain"
QUARTER = exact(np.array(0.25, np.float32))  # the scale of "mean", a scalar in device memory


def call(
    rng: np.random.Generator, logits: Any, targets: np.ndarray, cols: int, everything: bool, inplace: bool = False
) -> tuple[Any, ...]:
    """The arguments of the op, plain or with every option on."""
    if not everything:
        return logits, targets, None, None, IGNORE, 0.0, 0.0, inplace
    weight = exact(rng.choice([0, 0.5, 2], cols).astype(np.float32))
    return logits, targets, weight, QUARTER, IGNORE, 0.1, 1e-2, inplace


def cross_entropy_cases(rng: np.random.Generator) -> Iterator[Case]:
    for cols in (1, 2, 5, 31, 33, 1023, VOCABULARY):
        rows, large = (3, True) if cols == VOCABULARY else (7, False)
        for everything in (False, True):
            targets = rng.integers(0, cols, rows)
            targets[-1] = IGNORE
            logits, name = normal(rng, rows, cols, std=3), f"V {cols}" + ", every option" * everything
            yield case(name, call(rng, logits, targets, cols, everything), large=large)
            if not large:
                args = call(rng, written(logits), targets, cols, everything, inplace=True)
                yield case(f"{name}, in place", args)
    for name, logits, targets in adversarial(rng):
        for everything in (False, True):
            args = call(rng, logits, targets, 9, everything)
            yield case(name + ", every option" * everything, args, zeros=name == "all ignored")
    padded = np.array([[-3, -4, -5, -6, -7]], np.float32)  # reported against others (verl #2899): a padded tile counted
    yield case("all below 0, no multiple of a tile", (padded, np.array([0]), None, None, IGNORE, 0.0, 0.0, False))


def case(name: str, args: tuple[Any, ...], **more: Any) -> OpCase:
    return OpCase(
        op=cross_entropy_rows, name=name, args=args, scale=0.0 if more.get("zeros") else 0.25, why=CERTAIN, **more
    )


def adversarial(rng: np.random.Generator) -> Iterator[tuple[str, Any, np.ndarray]]:
    targets = np.array([3, 0, IGNORE, 8])
    logits = normal(rng, 4, 9, std=3)
    yield "all ignored", logits, np.full(4, IGNORE)
    yield "empty batch", logits[:0], targets[:0]
    yield "transposed view", transposed(logits), targets
    yield "float16 extremes", np.stack([np.roll(EXTREMES, i) for i in range(4)]), targets
    yield "a peak", np.where(np.arange(9) == targets[:, None], np.float32(80), logits), targets
    spoilt = logits.copy()
    spoilt[2] = np.nan  # what an ignored row holds changes nothing
    yield "NaN in an ignored row", spoilt, targets


def cross_entropy_gradients(rng: np.random.Generator) -> Iterator[Case]:
    targets = np.array([[0, IGNORE, 4], [3, 3, 1]])
    weight = rng.uniform(0.2, 2, 5)
    for reduction in ("mean", "sum", "none"):
        for name, options in (
            ("plain", {}),
            ("smoothing", {"label_smoothing": 0.1}),
            ("every option", {"label_smoothing": 0.2, "z_loss": 0.1, "weight": weight}),
        ):

            def loss(logits: Any, options: Any = options, reduction: str = reduction) -> tuple[Any, Any]:
                return cross_entropy(logits, targets, reduction=reduction, **options)

            name = f"{name}, {reduction}"
            inputs = (rng.normal(0, 2, (2, 3, 5)),)
            yield GradientCase(ops=(cross_entropy_rows,), name=name, function=loss, inputs=inputs)

    def large(logits: Any) -> tuple[Any, Any]:
        return cross_entropy(logits, np.array([VOCABULARY - 1, 7]))

    inputs = (rng.normal(0, 2, (2, VOCABULARY)),)
    name = f"V {VOCABULARY}"
    yield GradientCase(ops=(cross_entropy_rows,), name=name, function=large, inputs=inputs, large=True)


def soft_cross_entropy_cases(rng: np.random.Generator) -> Iterator[Case]:
    for cols in (1, 5, 1023, VOCABULARY):
        rows, large = (2, True) if cols == VOCABULARY else (6, False)
        logits, name = normal(rng, rows, cols, std=3), f"V {cols}"
        targets = rng.choice([0, 0.25, 1], (rows, cols)).astype(np.float32)
        targets[:, 3:] = 0  # a sum of about 1
        weight = exact(rng.choice([0, 0.5, 2], cols).astype(np.float32))
        args = (logits, targets, None, None, 0.0, 0.0, False)
        yield OpCase(op=soft_cross_entropy, name=name, args=args, scale=1, why=CERTAIN, large=large)
        args = (written(logits), targets, weight, QUARTER, 0.1, 1e-2, True)
        name += ", every option, in place"
        yield OpCase(op=soft_cross_entropy, name=name, args=args, scale=1, why=CERTAIN, large=large)
    impossible = np.array([[0, -np.inf, 1]], np.float32)
    args = (impossible, np.array([[0.5, 0, 0.5]], np.float32), None, None, 0.0, 0.0, False)
    yield OpCase(op=soft_cross_entropy, name="a class of probability 0", args=args)
    args = (transposed(normal(rng, 4, 9)), transposed(np.full((4, 9), 0.125, np.float32)), None, None, 0.0, 0.0, False)
    yield OpCase(op=soft_cross_entropy, name="transposed view", args=args, scale=1, why=CERTAIN)
    args = (normal(rng, 0, 5), normal(rng, 0, 5), None, None, 0.0, 0.0, False)
    yield OpCase(op=soft_cross_entropy, name="empty batch", args=args)
    t = rng.dirichlet(np.ones(5), (2, 3))
    for reduction in ("mean", "sum", "none"):
        options = {"label_smoothing": 0.2, "z_loss": 0.1, "weight": rng.uniform(0.2, 2, 5), "reduction": reduction}
        fixed = functools.partial(cross_entropy, targets=t, **options)
        inputs = (rng.normal(0, 2, (2, 3, 5)),)
        yield GradientCase(ops=(soft_cross_entropy,), name=reduction, function=fixed, inputs=inputs)


def softcap_cases(rng: np.random.Generator) -> Iterator[Case]:
    for size in (0, 1, 5, 1023, VOCABULARY):
        x, dy, large = normal(rng, size, std=40), normal(rng, size), size == VOCABULARY
        dy[::3] = 0
        name = f"{size} elements"
        yield OpCase(op=softcap, name=name, args=(x, 30.0), large=large)
        yield OpCase(op=softcap_backward, name=name, args=(x, exact(dy), 30.0, False), large=large)
        args = (written(x), exact(dy), 30.0, True)
        yield OpCase(op=softcap_backward, name=f"{name}, in place", args=args, large=large)
    x = np.array([np.inf, -np.inf, 65504, 6e-8, 0], np.float32)
    yield OpCase(op=softcap, name="extremes", args=(x, 30.0))
    fixed = functools.partial(cross_entropy, targets=np.array([[0, IGNORE, 4], [3, 3, 1]]), softcap=3.0)
    inputs = (rng.normal(0, 3, (2, 3, 5)),)
    yield GradientCase(ops=(softcap, softcap_backward), name="cross_entropy", function=fixed, inputs=inputs)


def nll_cases(rng: np.random.Generator) -> Iterator[Case]:
    for cols in (1, 2, 5, 1023, VOCABULARY):
        rows, large = (2, True) if cols == VOCABULARY else (7, False)
        x, targets = normal(rng, rows, cols, mean=-3), rng.integers(0, cols, rows)
        targets[-1] = IGNORE
        yield OpCase(op=nll, name=f"V {cols}", args=(x, targets, None, None, IGNORE), large=large)
        args = (x, targets, exact(rng.choice([0, 0.5, 2], cols).astype(np.float32)), QUARTER, IGNORE)
        yield OpCase(op=nll, name=f"V {cols}, every option", args=args, large=large)
    x = normal(rng, 4, 9)
    yield OpCase(op=nll, name="all ignored", args=(x, np.full(4, IGNORE), None, None, IGNORE), zeros=True)
    yield OpCase(op=nll, name="transposed view", args=(transposed(x), np.array([3, 0, 8, 8]), None, None, IGNORE))
    yield OpCase(op=nll, name="empty batch", args=(x[:0], np.zeros(0, np.int64), None, None, IGNORE))
    targets, weight = np.array([[0, IGNORE, 4], [3, 3, 1]]), rng.uniform(0.2, 2, 5)
    for reduction in ("mean", "sum", "none"):
        fixed = functools.partial(nll_loss, target=targets, weight=weight, reduction=reduction)
        inputs = (rng.normal(0, 2, (2, 3, 5)),)
        yield GradientCase(ops=(nll,), name=reduction, function=fixed, inputs=inputs)


def cosine_cases(rng: np.random.Generator) -> Iterator[Case]:
    cancels = "the gradient is a difference of two directions"
    for cols in (5, 31, 1023, VOCABULARY):
        x1, x2 = normal(rng, 3, cols, mean=0.25), normal(rng, 3, cols)
        args = (x1, x2, np.array([1, -1, 1], np.float32), -0.5, 0.5, QUARTER)
        large = cols == VOCABULARY
        yield OpCase(op=cosine_embedding, name=f"D {cols}", args=args, scale=1, why=cancels, large=large)
    x1, x2, target = normal(rng, 4, 9), normal(rng, 4, 9), np.array([1, -1, -1, 1], np.float32)
    args = (transposed(x1), x2, target, -1.0, 1.0, None)
    yield OpCase(op=cosine_embedding, name="transposed view", args=args, scale=1, why=cancels)
    yield OpCase(op=cosine_embedding, name="zeros", args=(x1[1:], 0 * x2[1:], target[1:], -1.0, 0.0, None))
    yield OpCase(op=cosine_embedding, name="empty batch", args=(x1[:0], x2[:0], target[:0], 0.0, 1.0, None))
    for reduction in ("mean", "sum", "none"):
        fixed = functools.partial(cosine_embedding_loss, target=target, margin=-1.0, reduction=reduction)
        inputs = (rng.normal(size=(4, 5)), rng.normal(size=(4, 5)))
        yield GradientCase(ops=(cosine_embedding,), name=reduction, function=fixed, inputs=inputs)


def mse_cases(rng: np.random.Generator) -> Iterator[Case]:
    for size in (0, 1, 5, 1023, VOCABULARY):
        x, target = normal(rng, size), normal(rng, size)
        yield OpCase(op=mse, name=f"{size} elements", args=(x, target, 1 / max(1, size)), large=size == VOCABULARY)
    x, target = normal(rng, 100, 2), normal(rng, 100)
    yield OpCase(op=mse, name="strided view", args=(Arg(x, view=lambda a: a[:, 1]), target, 0.5))
    scaled = (target, target[::-1], 0.5, exact(np.array(1024, np.float32)))
    yield OpCase(op=mse, name="loss scale", args=scaled)
    fixed = rng.normal(size=(3, 4))
    for reduction in ("mean", "sum", "none"):

        def loss(x: Any, reduction: str = reduction) -> tuple[Any, Any]:
            return mse_loss(x, fixed, reduction)

        yield GradientCase(ops=(mse,), name=reduction, function=loss, inputs=(rng.normal(size=(3, 4)),))


def pair(rng: np.random.Generator, kind: str, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    """x and target as the kind of `pointwise_loss` takes them, in numbers that every storage holds."""
    x, target = normal(rng, *shape, std=2), normal(rng, *shape, std=2)
    if kind.startswith("bce"):
        target = rng.choice([0, 0.25, 1], shape).astype(np.float32)
    if kind == "bce":
        x = rng.uniform(0.05, 0.95, shape).astype(np.float32)
    if kind.startswith("kl"):
        x = -np.abs(x)
        target = -np.abs(target) if kind == "kl_log" else rng.choice([0, 0.25, 0.75], shape).astype(np.float32)
    if kind == "hinge":
        target = rng.choice([-1, 1], shape).astype(np.float32)
    return x, target


def pointwise_cases(rng: np.random.Generator) -> Iterator[Case]:
    for kind in FORMULAS:
        for size in (0, 1, 5, 1023, VOCABULARY):
            x, target = pair(rng, kind, size)
            args = (kind, x, target, None, None, 0.5, 1 / 64, None, False)  # smaller, and float16 would underflow
            yield OpCase(op=pointwise_loss, name=f"{kind}, {size} elements", args=args, large=size == VOCABULARY)
        x, target = pair(rng, kind, 34)
        row = exact(rng.uniform(0.5, 2, 17).astype(np.float32))
        args = (kind, Arg(np.repeat(x, 2), view=lambda a: a[::2]), target, row, row, 0.5, 1.0, QUARTER, True)
        yield OpCase(op=pointwise_loss, name=f"{kind}, every option", args=args)


def pointwise_gradients(rng: np.random.Generator) -> Iterator[Case]:
    row = rng.uniform(0.5, 2, 4)
    for name, kind, function, options in (
        ("l1_loss", "absolute", l1_loss, {"weight": row}),
        ("huber_loss", "huber", huber_loss, {"delta": 0.5, "weight": row}),
        ("smooth_l1_loss", "smooth", smooth_l1_loss, {"beta": 0.5}),
        ("weighted mse_loss", "squared", mse_loss, {"weight": row}),
        ("kl_div", "kl", kl_div, {}),
        ("kl_div of logarithms", "kl_log", kl_div, {"log_target": True}),
        ("binary_cross_entropy", "bce", binary_cross_entropy, {"weight": row}),
        (
            "binary_cross_entropy_with_logits",
            "bce_logits",
            binary_cross_entropy_with_logits,
            {"weight": row, "pos_weight": 1 + row},
        ),
        ("hinge_embedding_loss", "hinge", hinge_embedding_loss, {"margin": 0.5}),
    ):
        x, target = (a.astype(np.float64) for a in pair(rng, kind, 3, 4))
        for reduction in ("mean", "sum", "none"):
            fixed = functools.partial(function, target=target, reduction=reduction, **options)
            case_name = f"{name}, {reduction}"
            yield GradientCase(ops=(pointwise_loss,), name=case_name, function=fixed, inputs=(x,))


MAKERS: list[Maker] = [
    cross_entropy_cases,
    cross_entropy_gradients,
    soft_cross_entropy_cases,
    softcap_cases,
    nll_cases,
    cosine_cases,
    mse_cases,
    pointwise_cases,
    pointwise_gradients,
]
