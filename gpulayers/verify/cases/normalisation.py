"""LayerNorm and RMSNorm."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpulayers.ops.layernorm import add_layernorm, layernorm, layernorm_backward
from gpulayers.ops.rmsnorm import rmsnorm, rmsnorm_backward
from gpulayers.verify.case import Case, Function, GradientCase, Maker, OpCase, exact
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


MAKERS: list[Maker] = [layernorm_cases, rmsnorm_cases]
