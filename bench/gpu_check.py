"""A body's results against the float64 reference on the host, before it is timed."""

import math
from typing import Any

import numpy as np

from bench.gpu_cases import Case
from bench.gpu_peers import to_array
from bench.gpu_timing import Call, poisoned
from gpulayers.backend import array_module, is_array, is_floating, to_numpy
from gpulayers.verify.tolerances import RELATIVE, error

CHECKED = 1 << 19  # elements of an array that are compared, where some rows of it will do

TOLERANCE = {**RELATIVE, "float32": 1e-5, "float64": 1e-5}  # float64: sums of float32 or narrower numbers
PEER = 4 * RELATIVE["bfloat16"]  # PyTorch rounds in between where we do not


class WrongResult(ValueError):
    """What was computed is not what the reference says, so its time means nothing."""


class Exact:
    """Results of the float64 reference on some rows of a case's arguments, computed by NumPy."""

    def __init__(self, case: Case, arguments: tuple[Any, ...]) -> None:
        self.case = case
        first = next(a for a in arguments if is_array(a))
        self.size = first.shape[0]
        self.rows = rows_to_check(case.check, first.shape)
        self.results = results(case, case.op.reference, tuple(widen(self.sample(a)) for a in arguments))

    def sample(self, a: Any) -> Any:
        """The rows that are compared, in host memory; all of an array that has another number of them."""
        if not (is_array(a) or hasattr(a, "detach")):
            return a
        rows = self.rows if a.ndim and a.shape[0] == self.size else None
        return gather(a, rows) if is_array(a) else to_array(a if rows is None else a[rows.tolist()])

    def compare(self, found: tuple[Any, ...], peer: bool = False) -> float:
        """The largest error. Raises WrongResult."""
        if not peer and len(found) != len(self.results):
            raise WrongResult(f"{self.case.op.name}: {len(found)} results in place of {len(self.results)}")
        worst = 0.0
        for a, b in zip(found, self.results, strict=False):
            if a is None or b is None:
                continue
            bound = PEER if peer else TOLERANCE.get(self.case.kind or a.dtype.name, 0.0) * self.case.factor
            e = error(widen(self.sample(a)), b)
            if not e <= bound or has_nan(a):
                raise WrongResult(f"{self.case.op.name}: error {e:.1e} against float64, above {bound:.1e}, or a NaN")
            worst = max(worst, e)
        return worst


def gather(a: Any, rows: np.ndarray | None) -> np.ndarray:
    """A copy of some rows, or of all, in host memory. By their bits: indexing need not know bfloat16."""
    if rows is not None:
        a = a.view(f"u{a.dtype.itemsize}")[array_module(a).asarray(rows)].view(a.dtype)
    return np.array(to_numpy(a))


def rows_to_check(check: str, shape: tuple[int, ...]) -> np.ndarray | None:
    """Evenly over all rows, first and last among them; the first ones; or None for all."""
    size, row = shape[0], math.prod(shape[1:])
    count = max(2, CHECKED // max(1, row))
    if check == "all" or count >= size:
        return None
    return np.arange(count) if check == "first rows" else np.linspace(0, size - 1, count).round().astype(np.int64)


def widen(a: Any) -> Any:
    return a.astype(np.float64) if isinstance(a, np.ndarray) and is_floating(a.dtype) else a


def results(case: Case, function: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """What the call computes: what it returns, then the arguments that it writes."""
    return (*_as_tuple(function(*arguments)), *(arguments[i] for i in case.written))


def _as_tuple(returned: Any) -> tuple[Any, ...]:
    if isinstance(returned, tuple | list):
        return tuple(returned)
    return () if returned is None else (returned,)


def check_ours(exact: Exact, function: Any, arguments: tuple[Any, ...], xp: Any) -> float:
    """The first call, in memory full of NaN."""
    with poisoned(xp):
        found = results(exact.case, function, arguments)
    return exact.compare(found)


def check_peer(exact: Exact, call: Call) -> float:
    """The first call, or the second in what the first has left full of NaN where its results are new tensors.

    An optimizer's tensors are the op's own arrays: its first step is the one to compare.
    """
    found = _as_tuple(call())
    if not exact.case.written:
        for tensor in found:
            if tensor is not None and tensor.is_floating_point() and not tensor.requires_grad:
                tensor.fill_(float("nan"))
        del found
        found = _as_tuple(call())
    return exact.compare(found, peer=True)


NAN = {  # dtype -> (integers of its size, all bits but the sign, infinity)
    "bfloat16": (np.uint16, 0x7FFF, 0x7F80),
    "float16": (np.uint16, 0x7FFF, 0x7C00),
    "float32": (np.uint32, 0x7FFFFFFF, 0x7F800000),
    "float64": (np.uint64, (1 << 63) - 1, 0x7FF << 52),
}


def has_nan(a: Any) -> bool:
    """Of a whole array or tensor, by its bits: not every library has isnan for bfloat16."""
    if not is_array(a):
        return bool(a.isnan().any()) if a.is_floating_point() else False
    if not is_floating(a.dtype) or not a.size:
        return False
    kind, all_but_sign, infinity = NAN[np.dtype(a.dtype).name]
    return bool(((a.view(kind) & kind(all_but_sign)) > kind(infinity)).any())
