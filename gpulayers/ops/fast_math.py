"""Functions for float32 blocks on the CPU where NumPy's own are slow: its `where`, `expm1` and `log1p` work element by
element (8, 20 and 18 ns an element against 4 of `exp`, NumPy 2.4, AVX2). The names are NumPy's, so that a formula
written for an array module runs on these as well.
"""

import numpy as np

abs, clip, exp, isnan = np.abs, np.clip, np.exp, np.isnan
Value = np.ndarray | float


def minimum(x: np.ndarray, most: float) -> np.ndarray:
    return np.clip(x, -np.inf, most)  # four times as fast as minimum with a scalar, and passes NaN on just so


def maximum(x: np.ndarray, least: float) -> np.ndarray:
    return np.clip(x, least, np.inf)


def where(condition: np.ndarray, a: Value, b: Value) -> np.ndarray:
    """A choice without branches, which random conditions mispredict: of the bits, b ^ (a ^ b) is a, and b ^ 0 is b."""
    a, b = _bits(a), _bits(b)
    out = np.multiply(a ^ b, condition)
    out ^= b
    return out.view(np.float32)


def _bits(value: Value) -> np.ndarray:
    return np.asarray(value, np.float32).view(np.uint32)


def expm1(x: np.ndarray) -> np.ndarray:
    """exp(x) - 1 = 2 t / (1 - t) with t = tanh(x / 2), which keeps all digits for x <= 0."""
    if x.size and x.max() > 0:
        return np.expm1(x)
    t = np.multiply(x, 0.5)
    np.tanh(t, out=t)
    rest = np.subtract(1, t)
    t += t
    t /= rest
    return t


def log1p(x: np.ndarray) -> np.ndarray:
    """log(1 + x) for 0 <= x <= 1. What 1 + x loses of x is known exactly, and added by the slope 1 / (1 + x)."""
    u = np.add(x, 1)
    lost = np.subtract(u, 1)
    np.subtract(x, lost, out=lost)
    lost /= u
    np.log(u, out=u)
    u += lost
    return u
