"""The stand-in for CuPy: conventions of arrays, pool, streams and kernels."""

import copy
import gc
import sys

import ml_dtypes
import numpy as np
import pytest

from gpulayers.backend import array_module, device_of, to_device, to_numpy, use
from gpulayers.emulator import cupy as cp
from gpulayers.emulator.settings import record_launches, using


def test_it_is_never_the_real_cupy():
    assert sys.modules.get("cupy") is not cp
    assert cp.__name__ != "cupy"
    assert cp.ndarray.array_module is cp


def test_the_library_knows_its_arrays():
    x = cp.arange(3)
    assert array_module(x) is cp
    assert use("emulated") is cp
    assert device_of(x) == "emulated"
    np.testing.assert_array_equal(to_numpy(to_device(np.arange(3), "emulated")), np.arange(3))
    with pytest.raises(TypeError, match="meet in one call"):
        array_module(x, np.arange(3))


def test_new_memory_is_poisoned():
    for dtype in (np.float16, np.float32, np.float64, ml_dtypes.bfloat16):
        assert np.isnan(cp.empty(5, dtype).get().astype(np.float32)).all()
    assert (cp.empty(5, np.int64).get() == -1).all()
    assert np.isnan(cp.empty_like(cp.ones((2, 3), np.float32)).get()).all()


@pytest.mark.parametrize(
    "mix",
    [
        lambda x, h: x + h,
        lambda x, h: h + x,
        lambda x, h: h * x,
        lambda x, h: cp.maximum(x, h),
        lambda x, h: np.maximum(x, h),
        lambda x, h: cp.concatenate([x, h]),
        lambda x, h: cp.where(x > 1, x, h),
        lambda x, h: cp.dot(x, h),
        lambda x, h: x.__iadd__(h),
        lambda x, h: x.__setitem__(0, h),
        lambda x, h: x == h,
    ],
)
def test_host_arrays_do_not_mix(mix):
    with pytest.raises(TypeError, match="Unsupported type"):
        mix(cp.arange(3.0), np.arange(3.0))


def test_no_implicit_conversion():
    x = cp.arange(3.0)
    for convert in (np.asarray, np.array, lambda a: np.zeros(3) + np.asarray(a), lambda a: np.stack([a.get(), a])):
        with pytest.raises(TypeError):
            convert(x)
    host = x.get()
    assert isinstance(host, np.ndarray)
    host[0] = 9
    assert x[0].item() == 0
    np.testing.assert_array_equal(cp.asnumpy(x), [0, 1, 2])
    np.testing.assert_array_equal(cp.asnumpy([1, 2]), [1, 2])


def test_get_and_set():
    x = cp.empty((2, 3), cp.float32)
    x.set(np.arange(6, dtype=np.float32).reshape(2, 3))
    out = np.empty((2, 3), np.float32)
    assert x.get(out=out) is out
    np.testing.assert_array_equal(out, x.get())
    with pytest.raises(TypeError, match="cannot be set"):
        x.set(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="Shape mismatch"):
        x.set(np.zeros(6, np.float32))
    with pytest.raises(TypeError, match=r"Only numpy\.ndarray"):
        x.set([1, 2])


def test_results_are_arrays_where_numpy_gives_scalars():
    x = cp.arange(6, dtype=cp.float32).reshape(2, 3)
    for result in (x.sum(), x[0, 0], x.max(), cp.mean(x), x[1][2], cp.add(x[0, 0], 1), cp.argmax(x)):
        assert isinstance(result, cp.ndarray)
        assert result.shape == ()
    assert float(x.sum()) == 15
    assert [float(v) for v in x[0]] == [0, 1, 2]


def test_an_element_is_a_view():
    x = cp.zeros(3)
    y = x[1]
    y += 5
    assert x.tolist() == [0, 5, 0]


def test_promotion_follows_nep_50():
    half, single = cp.ones(2, cp.float16), cp.ones(2, cp.float32)
    assert (half * 2.0).dtype == np.float16
    assert (single * 2.0).dtype == np.float32
    assert (single * np.float64(2)).dtype == np.float64
    assert (single * np.float32(2)).dtype == np.float32
    assert (single * cp.ones((), cp.float64)).dtype == np.float64
    assert (single + half).dtype == np.float32
    assert (cp.ones(2, cp.int32) / 2).dtype == np.float64
    assert (np.float32(3) * single).dtype == np.float32
    assert isinstance(np.float32(3) * single, cp.ndarray)
    assert cp.exp(half).dtype == np.float16
    assert (cp.ones(2, ml_dtypes.bfloat16) * 2).dtype == ml_dtypes.bfloat16
    assert (cp.ones(2, ml_dtypes.bfloat16) * 2.0).dtype == np.float32  # in CuPy as well


def test_views_share_memory_and_copies_do_not():
    x = cp.arange(12.0).reshape(3, 4)
    for view in (
        x[1:],
        x.T,
        x.reshape(-1),
        x[:, ::2],
        x.ravel(),
        cp.transpose(x),
        x.view(cp.int64),
        cp.broadcast_to(x, (2, 3, 4)),
    ):
        assert x.data.ptr <= view.data.ptr < x.data.ptr + x.nbytes
    for other in (
        x.copy(),
        x + 0,
        x[[0, 1]],
        x.astype(cp.float32),
        cp.ascontiguousarray(x.T),
        x.flatten(),
        copy.deepcopy(x),
    ):
        assert not x.data.ptr <= other.data.ptr < x.data.ptr + x.nbytes
    assert x.astype(cp.float64, copy=False) is x
    assert cp.asarray(x) is x
    assert cp.ascontiguousarray(x) is x


def test_memory_outlives_its_array_as_long_as_a_view_does():
    y = cp.arange(1000.0)[10:20]
    gc.collect()
    assert y.sum().item() == sum(range(10, 20))


def test_numpy_functions_come_here():
    x = cp.arange(4.0)
    assert isinstance(np.exp(x), cp.ndarray)
    assert isinstance(np.sum(x), cp.ndarray)
    assert isinstance(np.concatenate([x, x]), cp.ndarray)
    with pytest.raises(TypeError):
        np.linalg.inv(x)


def test_what_cupy_does_not_take_is_refused():
    x = cp.arange(4.0)
    for wrong in (
        lambda: cp.add(x, x, where=x > 1),
        lambda: cp.sum(x, where=x > 1),
        lambda: x.sum(initial=1),
        lambda: cp.zeros(3, like=x),
        lambda: cp.einsum("i,i->i", x, x, out=x),
        lambda: cp.matmul(cp.ones((2, 2), ml_dtypes.bfloat16), cp.ones((2, 2), ml_dtypes.bfloat16)),
        lambda: cp.exp([1, 2]),
        lambda: x.astype(cp.float32, casting="safe"),
        lambda: x + "a",
        lambda: range(cp.asarray(3)),
    ):
        with pytest.raises(TypeError):
            wrong()
    for wrong in (lambda: cp.maximum.reduce(x), lambda: cp.multiply.at(x, [0], 2.0)):
        with pytest.raises(NotImplementedError):
            wrong()
    with pytest.raises(AttributeError):
        _ = cp.random
    with pytest.raises(AttributeError):
        _ = x.ctypes
    with pytest.raises(ValueError, match="Unsupported dtype"):
        cp.array(["a"])
    with pytest.raises(TypeError, match="unhashable"):
        hash(x)


def test_outputs():
    x, y = cp.arange(4.0), cp.zeros(4)
    assert cp.add(x, 1, out=y) is y
    assert cp.sum(x, out=cp.zeros(())).item() == 6
    cp.multiply(x, 2, y)
    assert y.tolist() == [0, 2, 4, 6]
    with pytest.raises(TypeError):
        cp.add(x, 0.5, out=cp.zeros(4, cp.int32))
    with pytest.raises(TypeError):
        cp.zeros(4, cp.int32).__iadd__(0.5)


def test_scatter():
    x = cp.zeros(4)
    cp.add.at(x, cp.asarray([1, 1, 3]), cp.asarray([1.0, 2.0, 5.0]))
    x.scatter_add([0], 7.0)
    assert x.tolist() == [7, 3, 0, 5]


def test_sums_of_pool_bytes():
    pool = cp.get_default_memory_pool()
    gc.collect()
    before = pool.used_bytes()
    x = cp.zeros(1000, cp.float32)
    assert pool.used_bytes() - before == 4096
    assert x.data.ptr % 512 == 0
    del x
    gc.collect()
    assert pool.used_bytes() == before
    assert pool.free_bytes() >= 4096
    pool.free_all_blocks()
    assert pool.free_bytes() == 0
    pool.set_limit(size=before + 1000)
    try:
        with pytest.raises(cp.cuda.memory.OutOfMemoryError, match="Out of memory"):
            cp.zeros(10000)
    finally:
        pool.set_limit(size=0)


def test_streams_and_events():
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        assert cp.cuda.get_current_stream() == stream
        start, end = cp.cuda.Event(), cp.cuda.Event()
        start.record()
        stream.record(end)
        stream.wait_event(end)
        stream.synchronize()
    assert cp.cuda.get_current_stream() == cp.cuda.Stream.null
    assert cp.cuda.get_elapsed_time(start, end) >= 0
    with pytest.raises(RuntimeError, match="never recorded"):
        cp.cuda.get_elapsed_time(cp.cuda.Event(), end)
    assert cp.cuda.Device(0).compute_capability == "75"
    with using(arch="compute_90"):
        assert cp.cuda.Device().compute_capability == "90"
        assert cp.cuda.runtime.getDeviceProperties(0)["major"] == 9


def test_large_arrays_cost_no_memory_until_touched():
    x = cp.empty(2**33, cp.uint8)
    x[2**32 + 5] = 7
    assert x[2**32 + 4 : 2**32 + 7].tolist() == [0, 7, 0]


def test_a_kernel_of_your_own_in_five_lines(compiler):
    source = """extern "C" __global__ void saxpy(const float* x, float* y, float a, long long n) {
        long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
        if (i < n) y[i] = a * x[i] + y[i];
    }"""
    x, y = cp.arange(1000, dtype=cp.float32), cp.ones(1000, dtype=cp.float32)
    kernel = cp.RawKernel(source, "saxpy")
    with record_launches() as launches:
        kernel((4,), (256,), (x, y, np.float32(2), np.int64(1000)))
    np.testing.assert_array_equal(y.get(), 2 * np.arange(1000) + 1)
    assert [(one.kernel, one.grid, one.block) for one in launches] == [("saxpy", (4, 1, 1), (256, 1, 1))]
    assert launches[0].instructions > 1000


def test_a_pointer_beyond_two_to_the_31_elements(compiler):
    source = """extern "C" __global__ void poke(unsigned char* x, OFFSET at) { x[at + threadIdx.x] = 1; }"""
    x, at = cp.empty(2**32, cp.uint8), 2**31 + 100
    kernel = cp.RawKernel(source, "poke", options=("-DOFFSET=long long",))
    kernel((1,), (4,), (x, np.int64(at)))
    assert x[at - 1 : at + 5].tolist() == [0, 1, 1, 1, 1, 0]


def test_module_conventions():
    with pytest.raises(TypeError, match="Exactly one"):
        cp.RawModule()
    with pytest.raises(TypeError, match="expected tuple"):
        cp.RawModule(code="", options=["-DX"])
    with pytest.raises(TypeError):
        cp.RawModule("code")
    with pytest.raises(ValueError, match="need CUDA C"):
        cp.RawModule(path="x.ptx", name_expressions=("a",))
