"""`Op`: one fused primitive with up to three bodies of the same signature."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulayers.backend import array_module, is_array, is_floating

Body = Callable[..., Any]


@dataclass(frozen=True)
class Op:
    """A primitive that picks its body by the arrays that it is called with.

    reference: the specification, plain array code for every module and dtype, right in float64.
    cpu: the fast NumPy body for float32; the reference where there is none, and for float16 and bfloat16 in host
    memory, which it computes in float32.
    cuda: checks and launches a kernel; the reference runs on CuPy arrays where there is none.

    float64 always takes the reference: gradient checks stand on it. All arrays must be of one module. float64 never
    meets another floating type, which would be a silent promotion (a dy that NumPy made float64, mostly), unless the op
    is `mixed`: the optimizer's sums are float64 beside float32 parameters.
    """

    name: str
    reference: Body
    cpu: Body | None = None
    cuda: Body | None = None
    mixed: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.cpu is not None and _plain(args) and (not kwargs or _plain(kwargs.values())):
            return self.cpu(*args, **kwargs)
        return self.body(*args, **kwargs)(*args, **kwargs)

    def body(self, *args: Any, **kwargs: Any) -> Body:
        """The body that a call with these arguments runs."""
        if self.cpu is not None and _plain(args) and _plain(kwargs.values()):
            return self.cpu
        arrays = [a for a in (*args, *kwargs.values()) if is_array(a)]
        xp = array_module(*arrays)
        dtypes = [a.dtype for a in arrays if is_floating(a.dtype)]
        dtype = dtypes[0] if dtypes else None
        if not self.mixed and np.float64 in dtypes and any(other != np.float64 for other in dtypes):
            names = " and ".join(sorted({str(other) for other in dtypes}))
            raise TypeError(f"{self.name} got {names} arrays in one call: convert one of them with astype")
        if dtype == np.float64 or (xp is np and dtype is not None and dtype != np.float32):
            return self.reference
        return (self.cpu if xp is np else self.cuda) or self.reference

    @property
    def bodies(self) -> dict[str, Body]:
        """Name and function of each body that exists."""
        named = {"reference": self.reference, "cpu": self.cpu, "cuda": self.cuda}
        return {name: body for name, body in named.items() if body is not None}

    def __repr__(self) -> str:
        return f"Op({self.name}: {', '.join(self.bodies)})"


WITHOUT_ARRAYS = frozenset((int, float, bool, str, type(None)))
FLOAT32 = np.dtype(np.float32)


def _plain(values: Collection[Any]) -> bool:
    """Whether NumPy arrays are all that there is beside numbers, every floating one of them float32.

    The common case of a CPU run, told in a tenth of the time of the rules in full: an op on few numbers takes 10 us.
    """
    for value in values:
        if type(value) is np.ndarray:
            if value.dtype is not FLOAT32 and value.dtype.char not in "f?bBhHiIlLqQ":
                return False
        elif type(value) not in WITHOUT_ARRAYS:
            return False
    return True


BLOCK = 1 << 16  # elements of an elementwise block: two float32 work arrays of it stay inside a 1 MB L2 cache


def row_blocks(rows: int, cols: int, block: int = BLOCK) -> Iterator[slice]:
    """Slices over `rows` such that a slice times `cols` has about `block` elements, at least one row."""
    step = max(1, block // max(1, cols))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def as_rows(x: Any) -> Any:
    """(..., cols) -> (rows, cols); right for empty arrays too, where reshape(-1, cols) cannot be."""
    if x.ndim == 2:
        return x
    cols = x.shape[-1]
    rows = 1
    for size in x.shape[:-1]:
        rows *= size
    return x.reshape(rows, cols)


def check_shape(op: str, shape: tuple[int, ...], **arrays: Any) -> None:
    """Refuse arrays of another shape, where a kernel would read beside them. None among them is passed over."""
    for name, array in arrays.items():
        if array is not None and array.shape != shape:
            raise ValueError(f"{op}: {name} must have shape {shape}, got {array.shape}")


def check_like(op: str, x: Any, **arrays: Any) -> None:
    """The same for arrays that must have the shape and dtype of x."""
    for name, array in arrays.items():
        if array is not None and (array.shape, array.dtype) != (x.shape, x.dtype):
            raise ValueError(f"{op}: {name} must be {x.dtype} {x.shape} as x is, got {array.dtype} {array.shape}")
