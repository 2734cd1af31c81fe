import fake_cupy
import ml_dtypes
import numpy as np
import pytest

from gpulayers import backend
from gpulayers.backend import (
    array_module,
    device_of,
    empty,
    is_array,
    is_floating,
    to_device,
    to_numpy,
    use,
    wide,
    zeros,
)
from gpulayers.cuda import import_cupy


@pytest.fixture
def cupy(monkeypatch):
    yield fake_cupy.install(monkeypatch)
    import_cupy.cache_clear()


def test_the_array_decides(cupy):
    host, device = np.zeros(2), cupy.asarray([1.0, 2.0])
    assert array_module(host) is np
    assert array_module(None, device, None) is cupy
    assert array_module() is array_module(None) is np
    assert (device_of(host), device_of(device)) == ("numpy", "cupy")
    assert is_array(host)
    assert is_array(device)
    assert not any(is_array(x) for x in (1.0, np.float32(1), [1], None, "x"))


def test_an_array_with_a_module_of_its_own_is_emulated():
    """How the emulator's arrays say where they belong."""

    class Array:
        array_module = backend  # any module object

    assert array_module(Array()) is backend
    assert device_of(Array()) == "emulated"


def test_modules_never_mix(cupy):
    """H25 (thinc #74): a GPU array and a NumPy array in one call raise, with the remedy."""
    with pytest.raises(TypeError, match=r"arrays of numpy and cupy meet .*gpulayers\.to_device\(array, device\)"):
        array_module(np.zeros(1), cupy.asarray([1.0]))


@pytest.mark.parametrize("value", [1.0, [1, 2], "x", np.float32(1)])
def test_no_array_is_one_sentence(value):
    with pytest.raises(TypeError, match=f"expected an array of numpy or cupy, got {type(value).__name__}"):
        array_module(np.zeros(1), value)


def test_use(cupy):
    assert use("numpy") is np
    assert use("cupy") is cupy
    with pytest.raises(ValueError, match="unknown device 'cuda'; the devices are numpy, cupy, emulated"):
        use("cuda")


def test_moving(cupy):
    host = np.array([1.0, 2.0], np.float32)
    there = to_device(host, "cupy")
    assert device_of(there) == "cupy"
    assert to_device(there, "cupy") is there
    assert to_numpy(host) is host
    assert to_numpy(there).tolist() == [1, 2]
    assert to_numpy(there).dtype == np.float32


@pytest.mark.parametrize("shape", [(), 3, (2, 3), (0, 3), (1000, 1000)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "bool", ml_dtypes.bfloat16])
def test_empty_and_zeros(shape, dtype):
    like = np.empty(shape, dtype)
    for make in (empty, zeros):
        array = make(shape, dtype, like=np.zeros(1))
        assert type(array) is np.ndarray
        assert (array.shape, array.dtype) == (like.shape, like.dtype)
        assert array.flags.c_contiguous
        assert array.flags.writeable
    assert not zeros(shape, dtype).any()


def test_empty_beside_a_device_array(cupy):
    array = zeros((2, 3), np.float32, like=cupy.asarray([1.0]))
    assert device_of(array) == "cupy"
    assert not to_numpy(array).any()


def test_dtypes():
    assert all(is_floating(d) for d in ("float16", "float32", np.float64, ml_dtypes.bfloat16))
    assert not any(is_floating(d) for d in ("int8", "uint64", bool, complex))
    assert [wide(d).name for d in ("float16", ml_dtypes.bfloat16, "float32", "float64")] == ["float32"] * 3 + [
        "float64"
    ]
