"""What every rank asserts, see the files of checks beside this one."""

from pathlib import Path

import pytest
from ranks import check, needs_mpi

HERE = Path(__file__).parent
CALLS, STEPS, ON_GPUS = (HERE / f"{name}_checks.py" for name in ("communicator", "training", "gpu"))


@needs_mpi
def test_two_ranks():
    check(2, CALLS, ON_GPUS)


@needs_mpi
def test_three_ranks():
    check(3, STEPS)


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 5])
def test_all_of_it(size):
    check(size, CALLS, STEPS, ON_GPUS)


@needs_mpi
@pytest.mark.multigpu
def test_two_gpus():
    cupy = pytest.importorskip("cupy")
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("there is one GPU")
    check(2, CALLS, ON_GPUS, device="cupy")
