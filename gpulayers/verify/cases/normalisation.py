"""LayerNorm, RMSNorm, BatchNorm and GroupNorm."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpulayers.ops.batchnorm import batchnorm, batchnorm_backward, batchnorm_statistics, batchnorm_update
from gpulayers.ops.groupnorm import groupnorm, groupnorm_backward
from gpulayers.ops.layernorm import add_layernorm, layernorm, layernorm_backward
from gpulayers.ops.rmsnorm import rmsnorm, rmsnorm_backward
from gpulayers.verify.case import Arg, Case, Function, GradientCase, Maker, OpCase, exact, written
from gpulayers.verify.cases.inputs import normal, rows

EPS = 1e-5
CANCELS = "dx is a difference of terms of about dy / std, nearly equal where there are few columns"


def layernorm_cases(rng: np.random.Generator) -> Iterator[Case]:
    for r in rows(rng):
        dy = normal(rng, *r.x.shape)
        weight, bias = normal(rng, r.x.shape[1]), normal(rng, r.x.shape[1])
        for affine in (True,) if r.large else (True, False):
            name = r.name if affine else f"{r.name}, no weight"
            w, b = (weight, bias) if affine else (None, None)
            yield OpCase(op=layernorm, name=name, args=(r.arg(r.x), w, b, EPS), large=r.large)
            # The norm is of x + f as it is stored: values whose sum needs no rounding in any type.
            x, f = (np.clip(np.round(8 * a) / 8, -8, 8) for a in (r.x, dy))
            yield OpCase(op=add_layernorm, name=name, args=(r.arg(x), r.arg(f), w, b, EPS), large=r.large)
            _, mean, rstd = layernorm.reference(r.x, w, b, EPS)
            for more, residual in (("", None), (", residual", r.arg(normal(rng, *r.x.shape)))):
                yield OpCase(
                    op=layernorm_backward,
                    name=name + more,
                    args=(r.arg(dy), r.arg(r.x), exact(mean), exact(rstd), w, residual),
                    factor=2,
                    scale=terms(rstd, dy, w),
                    why=CANCELS,
                    large=r.large,
                )
    yield from large_means()
    yield from many_rows(rng)
    yield from layernorm_gradients(rng)


def layernorm_gradients(rng: np.random.Generator) -> Iterator[Case]:

    def run(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        y, mean, rstd = layernorm(x, weight, bias, EPS)
        return y, (x, mean, rstd, weight)

    function = Function(run, lambda dy, saved: layernorm_backward(dy, *saved))
    for cols in (1, 2, 33):
        inputs = (rng.normal(3, 2, (5, cols)), *rng.normal(size=(2, cols)))
        yield GradientCase(ops=(layernorm, layernorm_backward), name=f"D {cols}", function=function, inputs=inputs)

    def run_sum(x: np.ndarray, f: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> tuple[Any, Any]:
        total, y, mean, rstd = add_layernorm(x, f, weight, bias, EPS)
        return (total, y), (total, mean, rstd, weight)

    def backward_sum(dy: tuple[np.ndarray, np.ndarray], saved: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        dx, dweight, dbias = layernorm_backward(dy[1], *saved, dy[0])
        return dx, dx, dweight, dbias

    inputs = (*rng.normal(3, 2, (2, 5, 33)), *rng.normal(size=(2, 33)))
    function = Function(run_sum, backward_sum)
    yield GradientCase(ops=(layernorm_backward, add_layernorm), name="both outputs", function=function, inputs=inputs)


def terms(rstd: np.ndarray, dy: np.ndarray, weight: np.ndarray | None) -> float:
    g = dy if weight is None else dy * weight
    return float(rstd.max(initial=0) * np.abs(g).max(initial=0))


def large_means() -> Iterator[Case]:
    """Reported against others (burn #5607): E[x^2] - E[x]^2 cancels to nothing. Exact in float32, not in 16 bits."""
    for mean in (4096, 10000, 100000):
        x = (mean + np.array([[0, 0.5, 1, 1.5]])).astype(np.float32)
        args = (x, None, None, EPS)
        yield OpCase(op=layernorm, name=f"large mean {mean}", args=args, storages=("float32",))


def many_rows(rng: np.random.Generator) -> Iterator[Case]:
    """More rows than a kernel has blocks for: the sums of several rows meet in one."""
    x, dy = normal(rng, 600, 9), normal(rng, 600, 9)
    _, mean, rstd = layernorm.reference(x, None, None, EPS)
    why = "sums over 600 rows"
    args = (dy, x, exact(mean), exact(rstd), None)
    yield OpCase(op=layernorm_backward, name="600 rows", args=args, factor=3, why=why, large=True)
    rstd = rmsnorm.reference(x, None, EPS)[1]
    yield OpCase(op=rmsnorm_backward, name="600 rows", args=(dy, x, exact(rstd), None), factor=3, why=why, large=True)


def rmsnorm_cases(rng: np.random.Generator) -> Iterator[Case]:
    for r in rows(rng):
        dy = normal(rng, *r.x.shape)
        weight = normal(rng, r.x.shape[1])
        for w in (weight,) if r.large else (weight, None):
            name = r.name if w is not None else f"{r.name}, no weight"
            yield OpCase(op=rmsnorm, name=name, args=(r.arg(r.x), w, EPS), large=r.large)
            rstd = rmsnorm.reference(r.x, w, EPS)[1]
            yield OpCase(
                op=rmsnorm_backward,
                name=name,
                args=(r.arg(dy), r.arg(r.x), exact(rstd), w),
                factor=2,
                scale=terms(rstd, dy, w),
                why=CANCELS,
                large=r.large,
            )

    def run(x: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        y, rstd = rmsnorm(x, weight, EPS)
        return y, (x, rstd, weight)

    function = Function(run, lambda dy, saved: rmsnorm_backward(dy, *saved))
    for cols in (1, 2, 33):
        inputs = (rng.normal(1, 2, (5, cols)), rng.normal(size=cols))
        yield GradientCase(ops=(rmsnorm, rmsnorm_backward), name=f"D {cols}", function=function, inputs=inputs)


def batchnorm_cases(rng: np.random.Generator) -> Iterator[Case]:
    for r in rows(rng):
        dy, (weight, bias) = normal(rng, *r.x.shape), normal(rng, 2, r.x.shape[1])
        x, mean, var = r.x.astype(np.float64), *normal(rng, 2, r.x.shape[1])
        if len(x):
            yield OpCase(op=batchnorm_statistics, name=r.name, args=(r.arg(r.x),), large=r.large)
            mean, var = batchnorm_statistics.reference(x)
        mean, var = mean.astype(np.float32), abs(var).astype(np.float32)
        for affine in (True,) if r.large else (True, False):
            w, b = (weight, bias) if affine else (None, None)
            name = r.name if affine else f"{r.name}, no weight"
            args = (r.arg(r.x), exact(mean), exact(var), w, b, EPS)
            yield OpCase(op=batchnorm, name=name, args=args, scale=spread(r.x, mean, var, w), why=FAR, large=r.large)
            for more, fixed in (("", False), (", running statistics", True)):
                yield OpCase(
                    op=batchnorm_backward,
                    name=name + more,
                    args=(r.arg(dy), r.arg(r.x), exact(mean), exact(var), w, EPS, fixed),
                    factor=3,
                    scale=terms(1 / np.sqrt(var + EPS), dy * spread(r.x, mean, var), w),
                    why=CANCELS,
                    large=r.large,
                )
    yield from batchnorm_shapes(rng)
    yield from batchnorm_updates(rng)
    yield from batchnorm_gradients(rng)


FAR = "x - mean is as exact as x is, which counts where a value lies far from its column's mean"


def spread(x: np.ndarray, mean: np.ndarray, var: np.ndarray, weight: np.ndarray | None = None) -> float:
    """The largest xhat, times its weight, 1 at least."""
    xhat = (x - mean) / np.sqrt(var + EPS) * (1 if weight is None else weight)
    return float(np.abs(xhat).max(initial=1))


def batchnorm_shapes(rng: np.random.Generator) -> Iterator[Case]:
    """Few and many channels and rows: blocks of every width, several of them a column; and what a one-pass variance
    would get wrong."""
    for n, cols in ((1, 3), (2, 1), (5000, 3), (700, 40), (33, 129)):
        x = normal(rng, n, cols, mean=3, std=2)
        why = "sums over many rows"
        yield OpCase(op=batchnorm_statistics, name=f"{n} x {cols}", args=(x,), factor=2, why=why, large=n > 1000)
    for mean in (4096, 10000, 100000):
        x = (mean + np.array([[0, 0.5, 1, 1.5]])).astype(np.float32).T
        yield OpCase(op=batchnorm_statistics, name=f"large mean {mean}", args=(x,), storages=("float32",))


def batchnorm_updates(rng: np.random.Generator) -> Iterator[Case]:
    for cols in (1, 5, 1025):
        old_mean, new_mean, old_var, new_var = (exact(abs(normal(rng, cols))) for _ in range(4))
        running = (written(old_mean.array, exact=True), written(old_var.array, exact=True), written(np.array([3])))
        for name, momentum, apply in (("0.1", 0.1, None), ("average", None, 1), ("skipped", 0.1, 0)):
            control = None if apply is None else exact(np.array([apply, 0, 0, 0, 0, 0], np.float32))
            args = (*running, new_mean, new_var, 9, momentum, control)
            yield OpCase(op=batchnorm_update, name=f"D {cols}, {name}", args=args, storages=("float32",))
        of_samples = (exact(abs(normal(rng, 3, cols))) for _ in range(2))
        args = (*running, *of_samples, 9, 0.1)
        yield OpCase(op=batchnorm_update, name=f"D {cols}, of 3 samples", args=args, storages=("float32",))


def batchnorm_gradients(rng: np.random.Generator) -> Iterator[Case]:
    ops = (batchnorm_statistics, batchnorm, batchnorm_backward)

    def run(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, tuple[Any, ...]]:
        mean, var = batchnorm_statistics(x)
        return batchnorm(x, mean, var, weight, bias, EPS), (x, mean, var, weight, EPS)

    def run_fixed(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, tuple[Any, ...]]:
        mean, var = np.linspace(-1, 1, x.shape[1]), np.linspace(1, 3, x.shape[1])
        return batchnorm(x, mean, var, weight, bias, EPS), (x, mean, var, weight, EPS, True)

    for name, forward in (("", run), (", running statistics", run_fixed)):
        function = Function(forward, lambda dy, saved: batchnorm_backward(dy, *saved))
        for n, cols in ((3, 1), (5, 33)):
            inputs = (rng.normal(3, 2, (n, cols)), *rng.normal(size=(2, cols)))
            yield GradientCase(ops=ops, name=f"{n} x {cols}{name}", function=function, inputs=inputs)


def groupnorm_cases(rng: np.random.Generator) -> Iterator[Case]:
    shapes = {
        "one element": ((1, 1, 1), 1),
        "primes": ((3, 14, 5), 7),
        "one value a group": ((5, 4, 1), 4),
        "1023 positions": ((2, 3, 1023), 3),
        "a group of 12 channels of 77": ((2, 12, 77), 1),
        "transposed view": ((3, 6, 11), 2),
        "empty batch": ((0, 6, 5), 2),
        "no positions": ((3, 6, 0), 2),
    }
    for name, (shape, groups) in shapes.items():
        x, dy = normal(rng, *shape, mean=1, std=2), normal(rng, *shape)
        weight, bias = normal(rng, 2, shape[1])

        def arg(array: np.ndarray, view: bool = name == "transposed view") -> Any:
            moved = np.ascontiguousarray(array.swapaxes(1, 2))
            return Arg(moved, view=lambda a: a.swapaxes(1, 2)) if view else array

        _, mean, var = groupnorm.reference(x, None, None, groups, EPS)
        for more, w, b in (("", weight, bias), (", no weight", None, None)):
            yield OpCase(op=groupnorm, name=name + more, args=(arg(x), w, b, groups, EPS))
            yield OpCase(
                op=groupnorm_backward,
                name=name + more,
                args=(arg(dy), arg(x), exact(mean), exact(var), w, EPS),
                factor=3,
                scale=terms(1 / np.sqrt(var + EPS), dy, None if w is None else w[:, None]),
                why=CANCELS,
            )
    for mean in (4096, 10000, 100000):
        x = (mean + np.array([0, 0.5, 1, 1.5])).astype(np.float32).reshape(1, 2, 2)
        args = (x, None, None, 1, EPS)
        yield OpCase(op=groupnorm, name=f"large mean {mean}", args=args, storages=("float32",))
    yield from groupnorm_gradients(rng)


def groupnorm_gradients(rng: np.random.Generator) -> Iterator[Case]:
    for name, shape, groups in (("2 groups", (3, 6, 5), 2), ("a group for each channel", (2, 3, 7), 3)):

        def run(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, groups: int = groups) -> tuple[np.ndarray, Any]:
            y, mean, var = groupnorm(x, weight, bias, groups, EPS)
            return y, (x, mean, var, weight, EPS)

        function = Function(run, lambda dy, saved: groupnorm_backward(dy, *saved))
        inputs = (rng.uniform(-2, 5, shape), *rng.normal(size=(2, shape[1])))
        yield GradientCase(ops=(groupnorm, groupnorm_backward), name=name, function=function, inputs=inputs)


MAKERS: list[Maker] = [layernorm_cases, rmsnorm_cases, batchnorm_cases, groupnorm_cases]
