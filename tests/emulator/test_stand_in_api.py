"""The stand-in offers only what the installed CuPy has: names, parameters, dtypes. CuPy imports without a GPU."""

import inspect
import re

import ml_dtypes
import numpy as np
import pytest

from gpulayers.emulator import array_operators, cuda, cuda_runtime, functions, kernels, memory_pool, streams, ufuncs
from gpulayers.emulator import cupy as ours

cupy = pytest.importorskip("cupy", reason="CuPy is not installed: the stand-in cannot be compared with it")

PYTHON_ONLY = {"array_module"}
DTYPES = ["?", "b", "B", "h", "H", "i", "I", "q", "Q", "e", "f", "d"]


def parameters(function) -> tuple[list[str], list[str]] | None:
    """(positional, keyword-only) parameters of a function, from its signature or from its docstring's first line."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return documented(function)
    positional = [one.name for one in found if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    keyword = [one.name for one in found if one.kind == one.KEYWORD_ONLY]
    return ([] if any(one.kind == one.VAR_POSITIONAL for one in found) else positional), keyword


def documented(function) -> tuple[list[str], list[str]] | None:
    first = (function.__doc__ or "").strip().split("\n")[0]
    head = re.search(r"\((.*)\)", first)
    if not head:
        return None
    names = [re.split(r"[=:]", part)[0].split()[-1] for part in head[1].split(",") if part.strip()]
    names = [name for name in names if name not in ("self", "cls", "/")]
    star = names.index("*") if "*" in names else len(names)
    return [name for name in names[:star] if not name.startswith("*")], names[star + 1 :]


def public(module) -> list[str]:
    return [name for name in vars(module) if not name.startswith("_")]


def test_every_public_name_exists_in_cupy():
    own = {"ndarray", "RawKernel", "RawModule"}
    offered = [name for name in public(ours) if is_offered(getattr(ours, name))]
    assert own <= set(offered)
    assert [name for name in offered if not hasattr(cupy, name)] == []
    assert len(offered) > 200


def is_offered(value) -> bool:
    """Leaves out the tables and helpers that the stand-in's own code keeps in its module."""
    return callable(value) and value not in (
        ours.delegate, ours.variadic, ours.about_dtypes, ours.ufunc, ours.wrap, ours.unwrap, ours.to_device,
        ours.check_dtype, ours.MemoryPool, ours.PinnedMemoryPool, ours.Any,
    )  # fmt: skip


@pytest.mark.parametrize("name", functions.PARAMETERS)
def test_parameters_of_functions(name):
    theirs = parameters(getattr(cupy, name))
    assert theirs is not None
    check_parameters(functions.PARAMETERS[name], *theirs)


@pytest.mark.parametrize("name", array_operators.METHODS)
def test_parameters_of_methods(name):
    theirs = documented(getattr(cupy.ndarray, name))
    assert theirs is not None
    check_parameters(array_operators.METHODS[name], *theirs)


def check_parameters(table: str, positional: list[str], keyword: list[str]) -> None:
    """Positional ones in CuPy's order from the first on, all others (behind `*`) under CuPy's names."""
    before, _, behind = table.partition("*")
    assert before.split() == positional[: len(before.split())]
    assert set(behind.split()) <= {*positional, *keyword}


WRITTEN_OUT = [
    "array", "asarray", "asanyarray", "ascontiguousarray", "asfortranarray", "copy", "empty", "full", "zeros", "ones",
    "empty_like", "full_like", "zeros_like", "ones_like", "arange", "linspace", "eye", "identity", "tri", "indices",
    "asnumpy", "reshape", "astype", "copyto", "fill_diagonal", "pad",
]  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_functions_that_are_written_out(name):
    mine, theirs = parameters(getattr(ours, name)), parameters(getattr(cupy, name))
    assert mine is not None
    assert theirs is not None
    assert mine[0] == theirs[0][: len(mine[0])]
    assert set(mine[1]) <= {*theirs[0], *theirs[1]}


def test_array_attributes_exist_in_cupy():
    mine = {name for name in dir(ours.ndarray) if not name.startswith("_")} - PYTHON_ONLY
    assert mine - set(dir(cupy.ndarray)) == set()
    special = {name for name in vars(ours.ndarray) if name.startswith("__")}
    assert special - set(dir(cupy.ndarray)) - {"__slots__", "__weakref__", "__annotations__", "__static_attributes__",
                                               "__firstlineno__", "__annotate_func__"} <= {"__iter__"}  # fmt: skip


CLASSES = {
    streams.Stream: "Stream",
    streams.Event: "Event",
    cuda.Device: "Device",
    memory_pool.MemoryPool: "MemoryPool",
    memory_pool.PinnedMemoryPool: "PinnedMemoryPool",
    memory_pool.MemoryPointer: "MemoryPointer",
}


@pytest.mark.parametrize("mine", CLASSES, ids=lambda one: one.__name__)
def test_classes_of_the_cuda_namespace(mine):
    theirs = getattr(cupy.cuda, CLASSES[mine])
    names = [name for name in vars(mine) if not name.startswith("_") and name not in ("allocate",)]
    assert [name for name in names if not hasattr(theirs, name) and name not in instance_attributes(theirs)] == []


def instance_attributes(theirs) -> set[str]:
    return set(re.findall(r"~\w+\.(\w+)", theirs.__doc__ or ""))


def test_namespaces():
    assert [name for name in cuda.__all__ if not hasattr(cupy.cuda, name)] == []
    for space, names in (("memory", "OutOfMemoryError MemoryPointer MemoryPool"), ("compiler", "CompileException"),
                         ("stream", "Stream Event get_current_stream")):  # fmt: skip
        for name in names.split():
            assert hasattr(getattr(cuda, space), name)
            assert hasattr(getattr(cupy.cuda, space), name)
    own = [name for name in public(cuda_runtime) if inspect.isfunction(vars(cuda_runtime)[name])]
    assert [name for name in own if not hasattr(cupy.cuda.runtime, name)] == []


@pytest.mark.parametrize("mine", [kernels.RawKernel, kernels.RawModule], ids=lambda one: one.__name__)
def test_kernels(mine):
    theirs = getattr(cupy, mine.__name__)
    assert [name for name in vars(mine) if not name.startswith("_") and not hasattr(theirs, name)] == []
    positional, keyword = documented(theirs) or ([], [])
    names = [name for name in inspect.signature(mine.__init__).parameters if name != "self"]
    assert set(names) <= {*positional, *keyword}
    call = set(inspect.signature(kernels.RawKernel.__call__).parameters) - {"self"}
    assert call == {"grid", "block", "args", "shared_mem", "stream"}  # of cupy.cuda.Function.__call__


def test_ufunc_methods_and_bfloat16():
    for name in ufuncs.NAMES:
        theirs = getattr(cupy, name)
        assert isinstance(theirs, cupy.ufunc), name
        assert (theirs.nin, theirs.nout) == (getattr(ours, name).nin, getattr(ours, name).nout)
        has_loop = any("E" in one for one in theirs.types)
        assert has_loop or name in ufuncs.NO_BFLOAT16, name
        assert bool(theirs._scatter_op) == (name in ufuncs.SCATTER), name
    assert {name for name in vars(ufuncs.ufunc) if not name.startswith("_")} <= set(dir(cupy.ufunc))


def loop_of(ufunc, kinds: tuple, weak: tuple):
    """The loop that CuPy would choose for arrays of these dtypes (weak: Python's scalar types)."""
    return ufunc._ops._guess_routine_from_in_types(kinds, weak)


def mine_for(ufunc, kinds: tuple, weak: tuple):
    operands = [
        one(1) if one else ours.ones(2, kind) for kind, one in zip(kinds, weak, strict=True)
    ]  # fmt: skip
    result = ufunc(*operands)
    return tuple(one.dtype for one in (result if isinstance(result, tuple) else (result,)))


@pytest.mark.parametrize("name", ufuncs.NAMES)
def test_dtypes_that_come_out(name):
    """For all pairs of dtypes: the dtype that CuPy computes in, or its refusal."""
    theirs, mine = getattr(cupy, name), getattr(ours, name)
    kinds = [np.dtype(one) for one in DTYPES] + [np.dtype(ml_dtypes.bfloat16)]
    cases = [((kind,) * theirs.nin, (False,) * theirs.nin) for kind in kinds]
    if theirs.nin == 2:
        cases += [((kind, other), (False, False)) for kind in kinds[-4:] for other in kinds]
        cases += [((kind, np.dtype(float)), (False, float)) for kind in kinds[-4:]]
    for inputs, weak in cases:
        loop = loop_of(theirs, inputs, weak)
        try:
            found = mine_for(mine, inputs, weak)
        except TypeError:
            continue  # stricter than CuPy is allowed
        assert loop is not None, f"{name}{inputs}: CuPy has no loop"
        assert found == tuple(np.dtype(one) for one in loop.out_types), (name, inputs, weak)
