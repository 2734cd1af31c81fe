"""One body of one op as a subject for `bench.worker`."""

import functools
from typing import Any

import numpy as np

from bench.all_cases import CASES
from bench.cases import Case
from bench.target_cases import TargetCase

TOLERANCE = 1e-5  # of float32 against the float64 reference, relative to the largest magnitude of each result


class Call:
    """A subject whose step calls `function`; checked against the float64 reference before it is timed.

    written: the arguments that it writes, as in `Case`. whole: it gives every result of the op; a peer need not.
    """

    def __init__(self, case: Case, function: Any, written: tuple[int, ...], whole: bool = True) -> None:
        exact = exact_results(case)
        arguments = case.fresh()
        found = results(function, arguments, written)
        if whole and len(found) != len(exact):
            raise ValueError(f"{case.op.name}: {len(found)} results in place of {len(exact)}, so not timed")
        error = worst_error(found, exact)
        if not error <= TOLERANCE * case.factor:
            raise ValueError(f"{case.op.name}: error {error:.1e} against float64, so not timed")
        flops = case.flops(*arguments) if case.flops else 0
        self.facts = {"bytes": case.bytes(arguments, found), "flops": flops, "error": error}
        self.function, self.arguments = function, arguments

    def step(self) -> None:
        self.function(*self.arguments)


def make(case: str, body: str, threads: int = 1) -> Call:
    """body: of the op, or "threads", of a case that has it."""
    chosen = CASES[case]
    if body == "threads":
        assert isinstance(chosen, TargetCase)
        assert chosen.threaded
        return Call(chosen, chosen.threaded(threads), chosen.written)
    return Call(chosen, chosen.op.bodies[body], chosen.written)


@functools.lru_cache(maxsize=1)  # the bodies of one op come one after the other
def exact_results(case: Case) -> tuple[Any, ...]:
    return results(case.op.reference, tuple(map(_float64, case.fresh())), case.written)


def results(function: Any, arguments: tuple[Any, ...], written: tuple[int, ...]) -> tuple[Any, ...]:
    """What the call computes: what it returns, then the arguments that it writes."""
    returned = function(*arguments)
    if isinstance(returned, list):  # the parts of several threads
        returned = tuple(np.concatenate(part) for part in zip(*returned, strict=True))
    returned = returned if isinstance(returned, tuple) else () if returned is None else (returned,)
    return *returned, *(arguments[i] for i in written)


def worst_error(found: tuple[Any, ...], exact: tuple[Any, ...]) -> float:
    """Relative to the largest magnitude of each result, the worst of all. None is not compared."""
    worst = 0.0
    for a, b in zip(found, exact, strict=False):
        if a is None or b is None:
            continue
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        if a.shape != b.shape:
            raise ValueError(f"a result of shape {a.shape} in place of {b.shape}")
        with np.errstate(invalid="ignore"):
            difference = np.where(a == b, 0, np.abs(a - b))  # equal infinities too; a NaN stays one and fails
        largest = np.abs(b[np.isfinite(b)]).max(initial=1e-30)
        worst = float(np.maximum(worst, difference.max(initial=0) / largest))
    return worst


def _float64(value: Any) -> Any:
    return value.astype(np.float64) if isinstance(value, np.ndarray) and value.dtype == np.float32 else value
