"""Every body of an op against the float64 reference on the same, already rounded values."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gpulayers.backend import is_array, is_floating, to_device, to_numpy
from gpulayers.verify import tolerances
from gpulayers.verify.case import STORAGES, Arg, OpCase
from gpulayers.verify.result import Row, Worst, Wrong, measure

Body = Callable[..., Any]
Results = list[np.ndarray | None]


def check_op(case: OpCase, device: str, quick: bool) -> Iterator[Row]:
    """The rows of one case. device: 'numpy', or where kernels run besides, 'emulated' or 'cupy'."""
    op = case.op
    for storage in case.storages[: 1 if quick else None]:
        comparison = Comparison(case, storage)
        chosen: list[tuple[str, Body, str]] = [("reference", op.reference, "numpy")]
        if op.cpu is not None and storage == "float32":
            chosen.append(("cpu", op.cpu, "numpy"))
        if device != "numpy" and op.cuda is not None:
            chosen.append((f"cuda on {device}", op.cuda, device))
        elif device != "numpy" and storage == "float32":  # what an array there gets where there is no kernel
            chosen.append((f"reference on {device}", op.reference, device))
        for name, body, where in chosen:
            yield measure(case, "op", name, storage, functools.partial(comparison.with_body, body, where))


class Comparison:
    """A case in one storage type, and what is right for it."""

    def __init__(self, case: OpCase, storage: str) -> None:
        self.case, self.storage = case, storage

    @functools.cached_property
    def exact(self) -> Results:
        return call(self.case, self.storage, self.case.op.reference, "numpy", wide=True)

    @functools.cached_property
    def dtypes(self) -> list[Any]:
        found = call(self.case, self.storage, self.case.op.reference, "numpy")
        return [None if a is None else a.dtype for a in found]

    def with_body(self, body: Body, device: str) -> Worst:
        found = call(self.case, self.storage, body, device)
        if device == "cupy":  # the emulator has no chance in it
            again = call(self.case, self.storage, body, device)
            if not all(same_bits(a, b) for a, b in zip(found, again, strict=True)):
                raise Wrong("a second run gave other bits")
        dtypes = [None if a is None else a.dtype for a in found]
        if dtypes != self.dtypes:
            raise Wrong(
                f"results of type {', '.join(map(str, dtypes))}; the reference gives {', '.join(map(str, self.dtypes))}"
            )
        worst = Worst()
        for a, b in zip(found, self.exact, strict=True):
            if a is not None:
                worst = worst.with_result(*self.error(a, b))
        return worst

    def error(self, a: np.ndarray, b: Any) -> tuple[float, float]:
        """(error, tolerance) of one result."""
        error = tolerances.error(a, b, self.case.scale)
        if not is_floating(a.dtype):
            return error, tolerances.RELATIVE["float64"]
        if self.case.zeros and np.any((b == 0) & (a != 0)):
            raise Wrong("a value that must be exactly 0 is not")
        # Statistics and losses are wider than the storage and held to their own type; sums in float64 are of float32.
        name = "float32" if a.dtype == np.float64 else a.dtype.name
        return error, tolerances.RELATIVE[name] * self.case.factor


def call(case: OpCase, storage: str, body: Body, device: str, wide: bool = False) -> Results:
    """What a body returns, and what it leaves in the arguments that it writes, in host memory.

    Raises Wrong if it wrote another argument.
    """
    given = [*case.args, *case.options.values()]
    made: dict[int, Any] = {}  # one array for what is given twice, such as an input that is its own out=
    arrays = [_on_device(a, storage, device, wide, made) for a in given]
    before = [np.array(to_numpy(a)) if is_array(a) else None for a in arrays]
    args, options = arrays[: len(case.args)], dict(zip(case.options, arrays[len(case.args) :], strict=True))
    returned = body(*args, **options)
    results = list(returned) if type(returned) is tuple else [] if returned is None else [returned]
    for one, was, now in zip(given, before, arrays, strict=True):
        if isinstance(one, Arg) and one.written:
            results.append(now)
        elif was is not None and not same_bits(was, to_numpy(now)):
            raise Wrong("it wrote an argument that it may only read")
    host = [None if r is None else np.asarray(to_numpy(r) if is_array(r) else r) for r in results]
    return case.compared(host) if case.compared is not None else host


def _on_device(given: Any, storage: str, device: str, wide: bool, made: dict[int, Any]) -> Any:
    if not isinstance(given, Arg | np.ndarray):
        return given
    if id(given) not in made:
        arg = given if isinstance(given, Arg) else Arg(given)
        array = np.array(arg.array)
        if is_floating(array.dtype):
            with np.errstate(over="ignore"):
                array = array if arg.exact else array.astype(STORAGES[storage])
            array = array.astype(np.float64) if wide else array
        array = to_device(array, device)
        made[id(given)] = array if arg.view is None else arg.view(array)
    return made[id(given)]


def same_bits(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and a.tobytes() == b.tobytes()
