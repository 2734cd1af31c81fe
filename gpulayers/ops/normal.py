"""The normal distribution function Phi, for the exact GELU. NumPy has no erf, so both bodies are our own.

The reference starts from its small tail, written with the Mills ratio R: for a >= 0

    Phi(-a) = exp(-a^2 / 2) m(a),     m(a) = R(a) / sqrt(2 pi) = 1/sqrt(2 pi) integral_0^inf exp(-a t - t^2 / 2) dt

m falls smoothly from 1/2 to 0, and all digits of the tail are kept, where (1 + erf) / 2 would cancel.
"""

import functools
import math

import numpy as np

from gpulayers.backend import Array, array_module, empty


@functools.cache
def _nodes() -> tuple[tuple[float, float], ...]:
    """Gauss-Legendre nodes and weights of the integral; beyond t = 9 the integrand is under 3e-18 of its start."""
    nodes, weights = np.polynomial.legendre.leggauss(80)
    scaled = zip((nodes + 1) * 4.5, weights * 4.5 / math.sqrt(2 * math.pi), strict=True)
    return tuple((float(t), float(w)) for t, w in scaled)


def normal_cdf(x: Array) -> Array:
    """Phi(x) on any device, float32 or float64, |x| <= 40. In float64 the error is below 5e-16."""
    xp = array_module(x)
    a = xp.abs(x)
    m = xp.zeros_like(x)
    for t, weight in _nodes():
        m += weight * xp.exp(-t * (a + t / 2))
    tail = xp.exp(-a * a / 2) * m
    return xp.where(x > 0, 1 - tail, tail)


# --------------------------------------------------------------------------- cpu: a table, and what is left by Taylor
#
# At the nearest point p of the table, with d = x - p, |d| <= 1 / 1024, and phi' = -x phi:
#
#     Phi(x) = Phi(p) + phi(p) d (1 - x d / 2)              phi(x) = phi(p) (1 - x d (1 - x d / 2))
#
# What is left out is under 4e-7 of Phi(x) and 9e-7 of phi(x) at |x| = 13; under 2e-8 and 5e-7, which is d^2 / 2, for
# |x| < 4. No exponential (3.8 ns an element where NumPy has no AVX-512) and no polynomial: a table is read at 0.8 ns.

POINTS = 512  # a unit of x
EDGE = 14  # there and beyond Phi is 0 or 1 and phi is 0: Phi(-14) = 8e-45 is six times the least number of float32
SIZE = 1 << 14  # of the table, a power of two, so that one pass turns any integer, that of a NaN too, into an index


@functools.cache
def _table() -> tuple[np.ndarray, np.ndarray]:
    """Phi and phi, float32, (SIZE,) each: point i lies at i mod SIZE, negative ones at the end."""
    i = np.roll(np.arange(-SIZE // 2, SIZE // 2), SIZE // 2)
    x = i / POINTS
    cdf, density = normal_cdf(x), np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    far = np.abs(x) >= EDGE
    cdf[far], density[far] = x[far] > 0, 0
    tables = cdf.astype(np.float32), density.astype(np.float32)
    for table in tables:
        table.flags.writeable = False
    return tables


def normal_cpu(x: np.ndarray, cdf: np.ndarray, density: np.ndarray, work: list[np.ndarray], *, derive: bool) -> None:
    """cdf = Phi(x), and with `derive` density = phi(x), for float32 within -EDGE to EDGE or NaN.

    work: three arrays. All like x, and contiguous.
    """
    d, xd, factor = work
    nearest, whole, index = xd, density.view(np.int32), empty(x.shape, np.int64, like=x)
    cdf_table, density_table = _table()
    np.multiply(x, POINTS, out=d)
    np.rint(d, out=nearest)
    np.copyto(whole, nearest, casting="unsafe")
    whole &= SIZE - 1
    np.copyto(index, whole)
    d -= nearest
    d *= 1 / POINTS
    # "wrap" costs half of "clip" and a third of "raise" where nothing lies outside
    np.take(cdf_table, index, out=cdf, mode="wrap")
    np.take(density_table, index, out=density, mode="wrap")
    np.multiply(x, d, out=xd)
    np.multiply(xd, -0.5, out=factor)
    factor += 1  # 1 - x d / 2
    d *= density
    d *= factor
    cdf += d
    if derive:
        xd *= factor
        np.subtract(1, xd, out=xd)
        density *= xd
