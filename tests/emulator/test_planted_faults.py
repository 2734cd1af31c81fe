"""Mistakes that people make in kernels: each is caught, with kernel, block, thread and source line."""

from pathlib import Path

import numpy as np
import pytest

from gpulayers.emulator import cupy as cp
from gpulayers.emulator import errors
from gpulayers.emulator.launch import limits
from gpulayers.emulator.settings import using

SOURCE = (Path(__file__).parent / "kernels" / "faults.cu").read_text()
LINES = SOURCE.splitlines()
pytestmark = pytest.mark.usefixtures("compiler")


@pytest.fixture(params=["compute_75", "compute_90"])
def arch(request):
    with using(arch=request.param):
        yield request.param


def module(*options: str):
    return cp.RawModule(code=SOURCE, options=options)


def total(*options: str) -> list[float]:
    x, out = cp.arange(1000, dtype=cp.float32), cp.zeros(2, cp.float32)
    module(*options).get_function("total")((4,), (128,), (x, out, np.int32(1000)))
    return out.tolist()


def test_without_a_fault_the_sum_is_right(arch):
    assert total() == pytest.approx([499500.0, 332833500.0])


FAULTS = [  # option, exception, words of the message, text of the source line
    ("FAULT_NO_BARRIER", errors.DataRace, "shared memory", "t += part[w]"),
    ("FAULT_WARP_BARRIER", errors.DataRace, "shared memory", "t += part[w]"),
    ("FAULT_REUSED", errors.DataRace, "loaded by", "part[warp] = v"),
    ("FAULT_UNINITIALISED", errors.UninitialisedRead, "byte 8 of shared memory (128 bytes, part)", "t += part[w]"),
    ("FAULT_BOUND", errors.OutOfBounds, "byte 4000 of argument 0", "i <= n"),
    ("FAULT_PLAIN_ADD", errors.DataRace, "argument 1", "out[0] += s"),
    ("FAULT_DIVERGENT_BARRIER", errors.BarrierDivergence, "thread (64, 0, 0)", "BARRIER"),
    ("FAULT_DIVERGENT_SHUFFLE", errors.WarpDivergence, "waits for lane 20", "__shfl_down_sync"),
    ("MASK=0x0000ffffu", errors.WarpDivergence, "does not name the lane", "__shfl_down_sync"),
    ("MASK=0x7fffffffu", errors.WarpDivergence, "does not name the lane", "__shfl_down_sync"),
]


@pytest.mark.parametrize(("option", "kind", "words", "line"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_a_planted_fault_is_caught(arch, option, kind, words, line):
    with pytest.raises(kind) as caught:
        total(f"-D{option}")
    error = caught.value
    assert words in error.message
    assert error.kernel == "total"
    assert error.block is not None
    assert error.thread is not None
    assert error.place is not None
    assert line in error.place.text
    assert LINES[error.place.line - 1].strip() == error.place.text
    for part in ("total", f"block {error.block}", f"thread {error.thread}", f"kernel.cu:{error.place.line}"):
        assert part in str(error)


def test_misaligned_vector_load():
    kernel = module().get_function("vector_copy")
    x, out = cp.arange(1024, dtype=cp.float32), cp.empty((64, 4), cp.float32)
    kernel((2,), (32,), (out, x, np.int32(4)))
    np.testing.assert_array_equal(out.get().ravel(), np.arange(4, 260))
    with pytest.raises(
        errors.Misaligned, match=r"vector_copy: block .* misaligned load of 16 bytes at byte 4 of argument 1"
    ):
        kernel((2,), (32,), (out, x, np.int32(1)))
    with pytest.raises(errors.Misaligned):  # a view that begins between two vectors
        kernel((2,), (32,), (out, x[1:], np.int32(0)))
    kernel((2,), (32,), (out, x[8:], np.int32(0)))


def test_too_little_shared_memory():
    kernel = module().get_function("reverse")
    x, out = cp.arange(256, dtype=cp.float32), cp.empty(256, cp.float32)
    kernel((2,), (128,), (out, x, np.int32(128)), shared_mem=512)
    np.testing.assert_array_equal(out.get().reshape(2, 128), np.arange(256).reshape(2, 128)[:, ::-1])
    with pytest.raises(errors.OutOfBounds, match=r"thread \(127, 0, 0\).*byte 508 of shared memory \(508 bytes, row\)"):
        kernel((2,), (128,), (out, x, np.int32(128)), shared_mem=508)
    with pytest.raises(errors.OutOfBounds, match="shared memory"):
        kernel((2,), (128,), (out, x, np.int32(128)))
    with pytest.raises(errors.LaunchError, match="max_dynamic_shared_size_bytes"):
        kernel((2,), (128,), (out, x, np.int32(128)), shared_mem=60 << 10)
    kernel.max_dynamic_shared_size_bytes = 60 << 10
    kernel((2,), (128,), (out, x, np.int32(128)), shared_mem=60 << 10)
    with pytest.raises(errors.LaunchError, match="the device has"):
        kernel.max_dynamic_shared_size_bytes = 300 << 10


def test_static_shared_memory_counts_into_the_48_kb():
    kernel = module().get_function("total")
    arguments = (cp.ones(32, cp.float32), cp.zeros(2, cp.float32), np.int32(32))
    assert (kernel.shared_size_bytes, kernel.max_dynamic_shared_size_bytes) == (128, (48 << 10) - 128)
    with pytest.raises(errors.LaunchError, match="49152 bytes of dynamic and 128 of static shared memory"):
        kernel((1,), (128,), arguments, shared_mem=48 << 10)
    kernel.max_dynamic_shared_size_bytes = 48 << 10
    kernel((1,), (128,), arguments, shared_mem=48 << 10)


def test_arguments_that_do_not_fit():
    kernel = module().get_function("row_sum")
    out, ids, x = cp.empty(8, cp.float32), cp.arange(8), cp.arange(8, dtype=cp.float32)
    good = (out, ids, x, np.int64(8), np.float32(2))
    kernel((1,), (32,), good)
    assert out.tolist() == [2.0 * k for k in range(8)]
    wrong = [
        (4, 2.0, "Python float has 8 bytes"),
        (4, np.float64(2), "float64 has 8 bytes"),
        (4, np.int32(2), r"numpy.int32 for a parameter of type float"),
        (3, np.int32(8), "int32 has 4 bytes"),
        (1, ids.astype(cp.int32), r"array of int32 for a parameter of type const long long\*"),
        (1, ids.astype(cp.float64), r"array of float64 for a parameter of type const long long\*"),
        (0, out.astype(cp.float16), r"array of float16 for a parameter of type float\*"),
        (2, cp.arange(16, dtype=cp.float32)[::2], "strides"),
        (2, np.arange(8, dtype=np.float32), "numpy.ndarray of shape"),
        (3, x, "an array for a parameter of type long long"),
        (4, "2", "unsupported type str"),
        (4, [2.0], "unsupported type list"),
    ]
    for place, value, message in wrong:
        arguments = [*good[:place], value, *good[place + 1 :]]
        with pytest.raises(errors.ArgumentError, match=f"row_sum: argument {place}: .*{message}"):
            kernel((1,), (32,), arguments)
    with pytest.raises(errors.ArgumentError, match="4 arguments for 5 parameters"):
        kernel((1,), (32,), good[:4])
    assert issubclass(errors.ArgumentError, TypeError)


def test_a_null_pointer_is_accepted_and_must_not_be_used():
    kernel = module().get_function("row_sum")
    out, ids, null = cp.empty(8, cp.float32), cp.arange(8), np.uint64(0)
    kernel((1,), (32,), (out, ids, null, np.int64(0), np.float32(2)))
    with pytest.raises(errors.OutOfBounds, match="out-of-bounds load"):
        kernel((1,), (32,), (out, ids, null, np.int64(8), np.float32(2)))


def test_none_is_refused_as_a_null_pointer():
    """cupy #9046: in CuPy 13 it reached the kernel as 0xffffffff."""
    kernel = module().get_function("row_sum")
    with pytest.raises(errors.ArgumentError, match=r"argument 2: None is no null pointer .*numpy\.uint64\(0\)"):
        kernel((1,), (32,), (cp.empty(8, cp.float32), cp.arange(8), None, np.int64(0), np.float32(2)))


def test_bad_index_behind_a_pointer():
    kernel = module().get_function("row_sum")
    out, x = cp.empty(8, cp.float32), cp.arange(8, dtype=cp.float32)
    for bad in (-1, 8, 10**12, -(10**12)):
        ids = cp.asarray(np.array([0, 1, 2, 3, bad, 5, 6, 7]))
        with pytest.raises(errors.OutOfBounds, match=r"thread \(4, 0, 0\): out-of-bounds load of 4 bytes"):
            kernel((1,), (32,), (out, ids, x, np.int64(8), np.float32(2)))


def test_a_neighbouring_array_is_out_of_bounds_even_inside_one_block_of_memory():
    kernel = module().get_function("row_sum")
    flat = cp.arange(64, dtype=cp.float32)
    with pytest.raises(errors.OutOfBounds, match="argument 2"):
        kernel((1,), (32,), (cp.empty(8, cp.float32), cp.arange(8) + 1, flat[8:16], np.int64(8), np.float32(2)))


def test_threads_that_return_before_a_barrier():
    kernel = module().get_function("early_return")
    out, x = cp.empty(64, cp.float32), cp.arange(64, dtype=cp.float32)
    kernel((1,), (64,), (out, x, np.int32(64)))
    with pytest.raises(errors.BarrierDivergence, match=r"4 of the block's 64 threads.*thread \(60, 0, 0\) has ended"):
        kernel((1,), (64,), (out, x, np.int32(60)))


def test_blocks_that_read_what_others_write():
    kernel = module().get_function("neighbours")
    with pytest.raises(errors.DataRace, match="nothing orders the two"):
        kernel((4,), (32,), (cp.zeros(128, cp.float32), np.int32(128)))
    with pytest.raises(errors.DataRace, match="nothing orders the two"):
        kernel((1,), (128,), (cp.zeros(128, cp.float32), np.int32(128)))
    with using(check_races=False):
        kernel((4,), (32,), (cp.zeros(128, cp.float32), np.int32(128)))


def test_races_between_blocks_that_do_not_run_together(monkeypatch):
    monkeypatch.setattr(limits, "threads_together", 32)
    with pytest.raises(errors.DataRace, match=r"nothing orders"):
        module().get_function("neighbours")((64,), (1,), (cp.zeros(64, cp.float32), np.int32(64)))
    with pytest.raises(errors.DataRace):
        total("-DFAULT_PLAIN_ADD")


def test_equal_values_may_be_stored_twice_and_different_ones_not():
    flag = cp.zeros(1, cp.int32)
    module().get_function("same_value")((4,), (64,), (flag,))
    assert flag.item() == 7
    with pytest.raises(errors.DataRace, match="different values"):
        module().get_function("different_values")((1,), (64,), (flag,))


def test_stores_through_const_pointers():
    with pytest.raises(errors.WriteToConstant, match="which the kernel takes as const"):
        module().get_function("writes_its_input")((1,), (32,), (cp.zeros(32, cp.float32),))


def test_stale_reads_of_what_the_launch_has_written():
    kernel = module().get_function("in_place")
    x = cp.ones(32, cp.float32)
    kernel((1,), (32,), (x, x, np.int32(0)))
    assert x.tolist() == [2.0] * 32
    with pytest.raises(errors.DataRace, match="read-only cache"):
        kernel((1,), (32,), (x, x, np.int32(1)))


def test_running_from_one_shared_array_into_the_next():
    kernel = module().get_function("two_arrays")
    out = cp.zeros(8, cp.float32)
    kernel((1,), (8,), (out, np.int32(0)))
    assert out.tolist() == [3.0] * 8
    with pytest.raises(errors.OutOfBounds, match="shared memory"):
        kernel((1,), (8,), (out, np.int32(1)))


def test_endless_loops():
    with using(max_steps=1000), pytest.raises(errors.EndlessLoop, match="endless: block"):
        module().get_function("endless")((1,), (32,), (cp.zeros(1, cp.int32),))


def test_shuffles_do_not_read_from_lanes_that_have_ended():
    kernel = module().get_function("exited_lanes")
    out, x = cp.empty(32, cp.float32), cp.arange(32, dtype=cp.float32)
    kernel((1,), (32,), (out, x, np.int32(32)))
    with pytest.raises(errors.WarpDivergence, match=r"waits for lane 31.*has ended"):
        kernel((1,), (32,), (out, x, np.int32(31)))


def test_the_last_block_may_read_what_the_others_released():
    x, sums = cp.arange(8, dtype=cp.float32), cp.empty(8, cp.float32)
    out, ticket = cp.empty(1, cp.float32), cp.zeros(1, cp.uint32)
    module().get_function("last_block")((8,), (32,), (out, sums, x, ticket))
    assert out.item() == 28
    ticket.fill(0)
    with pytest.raises(errors.DataRace, match="nothing orders the two"):
        module("-DFAULT_NO_FENCE").get_function("last_block")((8,), (32,), (out, sums, x, ticket))


def test_launch_sizes():
    kernel = module().get_function("same_value")
    flag = cp.zeros(1, cp.int32)
    with pytest.raises(errors.LaunchError, match="2048 threads"):
        kernel((1,), (2048,), (flag,))
    with pytest.raises(errors.LaunchError, match=r"block \(1, 1, 65\)"):
        kernel((1,), (1, 1, 65), (flag,))
    with pytest.raises(errors.LaunchError, match="grid"):
        kernel((1, 70000), (32,), (flag,))
    with pytest.raises(TypeError, match="expected tuple"):
        kernel(4, (32,), (flag,))
    with pytest.raises(TypeError):
        kernel((4.0,), (32,), (flag,))
    kernel((0,), (32,), (flag,))  # CuPy launches one block
    assert flag.item() == 7


def test_compile_errors_and_missing_kernels():
    with pytest.raises(errors.CompileError, match=r"kernel.cu\(1\): error"):
        cp.RawModule(code="__global__ void k() { x = 1; }").get_function("k")
    with pytest.raises(errors.EmulatorError, match=r"no kernel nothing in the module .*same_value"):
        module().get_function("nothing")
