"""One line of the certificate, and how it comes from a measurement."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpulayers.verify import tolerances
from gpulayers.verify.case import Case


@dataclass(frozen=True)
class Row:
    """error: the worst of all results, beside the tolerance that it comes closest to; NaN if there is none.

    kind: op, gradient or layer. note: what went wrong; or why the tolerance is wider than the table's.
    """

    kind: str
    subject: str
    case: str
    body: str
    dtype: str
    error: float
    tolerance: float
    passed: bool
    note: str = ""

    @property
    def share(self) -> float:
        """The part of the tolerance that the error takes; infinite for what could not be measured."""
        return float("inf") if np.isnan(self.error) else self.error / self.tolerance


@dataclass(frozen=True)
class Worst:
    """The error that comes closest to its tolerance."""

    error: float = 0.0
    tolerance: float = tolerances.RELATIVE["float32"]

    def with_result(self, error: float, tolerance: float) -> "Worst":
        if np.isnan(self.error) or error / tolerance < self.error / self.tolerance:
            return self
        return Worst(error, tolerance)


class Wrong(Exception):
    """A result that is wrong in another way than by its values; the message says how."""


def measure(case: Case, kind: str, body: str, dtype: str, run: Callable[[], Worst]) -> Row:
    """The row of what `run` finds. Whatever it raises is a failure, with the message as its note."""
    try:
        worst = run()
    except Exception as error:  # a body may raise anything, and the other rows are still wanted
        note = " ".join(str(error).split()) or type(error).__name__
        if not isinstance(error, Wrong):
            note = f"{type(error).__name__}: {note}"
        return Row(kind, case.subject, case.name, body, dtype, float("nan"), 0.0, False, note)
    passed = bool(worst.error <= worst.tolerance)
    note = getattr(case, "why", "")
    return Row(kind, case.subject, case.name, body, dtype, worst.error, worst.tolerance, passed, note)
