"""H25 (cupy #1790): a machine without CuPy, without a driver, or with one that fails, says so once and works on."""

import re
import subprocess
import sys

import fake_cupy
import numpy as np
import pytest

import gpulayers.cuda
from gpulayers.backend import use
from gpulayers.cuda import GPUUnavailable, import_cupy, launch
from gpulayers.kernel_arguments import check_arguments, parameters
from gpulayers.layers.linear import Linear

REMEDY = re.escape(
    ": install an NVIDIA driver and the wheel for its CUDA version (pip install 'cupy-cuda12x[ctk]>=14', or cuda13x), "
    "or choose the numpy backend"
)

WRAPPED = '''
try:
    raise ImportError("libcuda.so.1: cannot open shared object file")
except ImportError as error:
    raise ImportError("""
================================================================
Failed to import CuPy.
================================================================
""") from error
'''

FIRST_CALL = """
class cuda:
    class runtime:
        def getDeviceCount():
            raise RuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient")
"""

NO_DEVICE = "class cuda:\n    class runtime:\n        getDeviceCount = staticmethod(lambda: 0)\n"

KERNEL_FAILS = """
class cuda:
    class runtime:
        getDeviceCount = staticmethod(lambda: 1)
def zeros(shape):
    raise ValueError()
"""

CASES = [
    ("raise ModuleNotFoundError(\"No module named 'cupy'\", name='cupy')", "CuPy is not installed"),
    ("import no_such_backend", r"CuPy cannot be imported \(No module named 'no_such_backend'\)"),
    (WRAPPED, r"CuPy cannot be imported \(libcuda\.so\.1: cannot open shared object file\)"),
    ("raise OSError('bad wheel')", r"CuPy cannot be imported \(bad wheel\)"),
    (FIRST_CALL, r"the CUDA device does not answer \(cudaErrorInsufficientDriver: CUDA driver version .*\)"),
    (KERNEL_FAILS, r"the CUDA device does not answer \(ValueError\)"),
    (NO_DEVICE, "CuPy finds no CUDA device"),
]


@pytest.mark.parametrize(("source", "reason"), CASES)
def test_one_sentence_and_the_cpu_works_on(source, reason, tmp_path, monkeypatch):
    (tmp_path / "cupy.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    import_cupy.cache_clear()
    try:
        for _ in range(2):  # the same sentence again, not another error
            with pytest.raises(GPUUnavailable, match=f"^no GPU can be used because {reason}{REMEDY}$") as caught:
                use("cupy")
            assert "\n" not in str(caught.value)
        with pytest.raises(GPUUnavailable):
            Linear(3, 2, rng=0).to("cupy")
        layer = Linear(3, 2, rng=0)
        y, saved = layer.forward(np.ones((4, 3), np.float32))
        assert layer.backward(y, saved).shape == (4, 3)
    finally:
        import_cupy.cache_clear()
        sys.modules.pop("cupy", None)


def test_a_failed_move_changes_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    import_cupy.cache_clear()
    layer = Linear(3, 2, rng=0)
    before = layer.state_dict()
    with pytest.raises(GPUUnavailable):
        layer.to("cupy")
    assert all(np.array_equal(array, before[name]) for name, array in layer.state_dict().items())


def test_importing_the_library_never_imports_cupy(tmp_path):
    (tmp_path / "cupy.py").write_text("raise SystemExit('somebody imported cupy')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import gpulayers, numpy as np\n" + (
        "from gpulayers.layers.linear import Linear\n"
        "y, saved = Linear(3, 2).forward(np.ones((1, 3), 'f4')); assert 'cupy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_cupy_that_works_is_used(monkeypatch):
    cupy = fake_cupy.install(monkeypatch)
    assert use("cupy") is cupy
    import_cupy.cache_clear()


# ------------------------------------------------------------------------------------------------- launch


class Kernel:
    """Records its launches; `max_dynamic_shared_size_bytes` is set as CuPy's is."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def __call__(self, grid, block, args, shared_mem):
        self.calls.append((grid, block, args, shared_mem))


@pytest.fixture
def kernel(monkeypatch):
    kernel = Kernel()

    class Module:
        def get_function(self, name):
            assert name == "scale"
            return kernel

    code = 'extern "C" __global__ void scale(float* y, const float* x, float by, offset n) {}'
    monkeypatch.setattr(gpulayers.cuda, "_module", lambda xp, source, storage: Module())
    monkeypatch.setattr(gpulayers.cuda, "_parameters", lambda source, function: parameters(code, function))
    gpulayers.cuda._kernel.cache_clear()
    yield kernel
    gpulayers.cuda._kernel.cache_clear()


ARGUMENTS = (np.zeros(4, np.float32), None, np.float32(2), np.int64(4))


def test_launch_passes_arrays_null_pointers_and_exact_scalars(kernel):
    x = np.zeros(4, np.float32)
    args = (x, *ARGUMENTS[1:])
    launch("scale", "scale", (1,), (128,), args, shared=100_000)
    [(grid, block, passed, shared)] = kernel.calls
    assert (grid, block, shared) == ((1,), (128,), 100_000)
    assert passed == (x, np.uint64(0), np.float32(2), np.int64(4))
    assert passed[1].nbytes == 8  # a pointer's size
    assert kernel.max_dynamic_shared_size_bytes == 100_000


def test_shared_memory_is_asked_for_below_48_kb_too(kernel):
    """The kernel's static arrays count: 48 KB of dynamic memory and one float more are refused."""
    launch("scale", "scale", (1,), (128,), ARGUMENTS, shared=48 << 10)
    assert kernel.max_dynamic_shared_size_bytes == 48 << 10


@pytest.mark.parametrize("scalar", [2.0, 2, True])
def test_h10_launch_refuses_bare_python_numbers(kernel, scalar):
    """cupy #8485: a Python float is 8 bytes, of which a `float` parameter would read the wrong four."""
    for place, name, dtype in ((2, "by", "float32"), (3, "n", "int64")):
        args = (*ARGUMENTS[:place], scalar, *ARGUMENTS[place + 1 :])
        message = f"scale: {name} is a {type(scalar).__name__}; wrap it to its C type, numpy.{dtype}"
        with pytest.raises(TypeError, match=message):
            launch("scale", "scale", (1,), (128,), args)
    assert not kernel.calls


@pytest.mark.parametrize(
    ("place", "wrong", "message"),
    [
        (0, np.zeros(4), "y must be float32, got an array of float64"),
        (1, np.zeros(4, np.float16), "x must be float32, got an array of float16"),
        (1, np.int64(0), "x must be float32, got int64"),
        (2, np.zeros(1, np.float32), "by must be float32, got an array of float32"),
        (2, np.float64(2), "by must be float32, got float64"),
        (2, None, "by is a NoneType"),
        (3, np.int32(4), "n must be int64, got int32"),
    ],
)
def test_launch_refuses_what_the_kernel_would_misread(kernel, place, wrong, message):
    with pytest.raises(TypeError, match=f"scale: {message}"):
        launch("scale", "scale", (1,), (128,), (*ARGUMENTS[:place], wrong, *ARGUMENTS[place + 1 :]))
    with pytest.raises(TypeError, match="scale takes 4 arguments, got 3"):
        launch("scale", "scale", (1,), (128,), ARGUMENTS[:3])
    assert not kernel.calls


def test_the_parameters_of_every_kernel_are_known():
    """And a pointer to storage takes the storage type, an address, or nothing."""
    count = 0
    for path in gpulayers.cuda.kernel_folder().glob("*.cu"):
        code = path.read_text(encoding="utf-8")
        for function in re.findall(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)', code):
            count += 1
            wanted = parameters(code, function)
            args = [np.uint64(0) if one.pointer else (one.dtype or np.dtype("f2")).type(0) for one in wanted]
            check_arguments(function, wanted, np.dtype(np.float16), tuple(args))
    assert count > 40


def test_h09_launch_refuses_views(kernel):
    """cupy #9233: a raw kernel would read a transposed view in storage order."""
    x = np.zeros((4, 3), np.float32)
    for view in (x.T, x[::2], x[:, 1:]):
        with pytest.raises(ValueError, match="scale: y is not contiguous, strides"):
            launch("scale", "scale", (1,), (128,), (view, *ARGUMENTS[1:]))
    assert not kernel.calls


def test_h13_an_empty_grid_is_nothing_to_do(kernel):
    launch("scale", "scale", (0, 1), (128,), ARGUMENTS)
    assert not kernel.calls


# ------------------------------------------------------------------------------------------------- sources


def test_the_kernel_folder_is_found():
    assert (gpulayers.cuda.kernel_folder() / "common.cuh").is_file()


# ------------------------------------------------------------------------------------------------- errors

REPORT = r"""
#include "common.cuh"
extern "C" __global__ void report(long long* errors, const long long* values, int rows, int size) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    if (values[row] < 0 || values[row] >= size) report_error(errors, BAD_TARGET, row, values[row], size);
}
"""


def test_an_error_on_the_device_is_raised_once_when_somebody_asks():
    xp = use("emulated")
    kernel = xp.RawKernel(REPORT, "report", ("-std=c++17", f"-I{gpulayers.cuda.kernel_folder()}"))
    values = xp.asarray(np.array([0, 1 << 40, -3, 5]))
    flag = gpulayers.cuda.error_flag(values)
    assert gpulayers.cuda.error_flag(values[:2]) is flag
    gpulayers.cuda.check_errors(values)
    kernel((2,), (2,), (flag, values, np.int32(4), np.int32(6)))
    kernel((2,), (2,), (flag, values[2:], np.int32(2), np.int32(6)))  # the first report stays
    assert flag.get().tolist() == [1, 1, 1 << 40, 6]
    with pytest.raises(ValueError, match=r"target 1099511627776 in row 1 is outside 0\.\.5"):
        gpulayers.cuda.check_errors(values)
    gpulayers.cuda.check_errors(values)
    gpulayers.cuda.check_errors(np.zeros(1))
