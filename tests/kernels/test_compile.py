"""Every kernel compiles as CuPy compiles it, for every storage type and architecture, and none spills registers.

The default run takes each storage type on one architecture; `pytest -m slow` takes them all. `-rP` shows the numbers.
"""

import itertools
import re
from pathlib import Path

import pytest

import gpulayers.ops
from gpulayers.cuda import STORAGE, kernel_folder, kernel_source
from gpulayers.emulator.nvrtc import resources

SOURCES = sorted(path.stem for path in kernel_folder().glob("*.cu"))
ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")
DEFAULT = {("float32", "sm_75"), ("float16", "sm_90"), ("bfloat16", "sm_120")}
PAIRS = [
    pytest.param(*pair, marks=() if pair in DEFAULT else pytest.mark.slow)
    for pair in itertools.product(STORAGE, ARCHITECTURES)
]


@pytest.mark.parametrize(("storage", "arch"), PAIRS)
@pytest.mark.parametrize("source", SOURCES)
def test_no_spills(source, storage, arch):
    code, options = kernel_source(source, STORAGE[storage])
    report = resources(code, f"{source}.cu", arch=arch, options=options)
    assert set(report) == functions(code)
    for name, used in report.items():
        print(f"{name:32} {storage:8} {arch:6} {used.registers:3} registers, {used.shared:5} bytes shared")
        assert used.spill_stores == used.spill_loads == used.stack == 0, f"{name} spills: {used}"
        assert used.registers <= 128, (
            f"{name}: {used.registers} registers leave a multiprocessor with 512 threads or fewer"
        )
        assert used.shared <= 48 << 10


def functions(code):
    """Names of the kernels in a source."""
    return set(re.findall(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(', code))


def test_each_kernel_has_its_op_and_its_test():
    """One word names a thing in kernels/, ops/ and tests/."""
    ops = Path(gpulayers.ops.__file__).parent  # of what is installed, which need not be this checkout
    for source in SOURCES:
        assert (ops / f"{source}.py").is_file(), source
        assert (Path(__file__).parent / f"test_{source}_kernel.py").is_file(), source
