import fake_cupy
import ml_dtypes
import numpy as np
import pytest

from gpulayers.cuda import import_cupy
from gpulayers.ops.op import Op, as_rows, row_blocks


def reference(x, y=None):
    return "reference"


def cpu(x, y=None):
    return "cpu"


def cuda(x, y=None):
    return "cuda"


@pytest.fixture
def cupy(monkeypatch):
    yield fake_cupy.install(monkeypatch)
    import_cupy.cache_clear()


ALL = Op("all", reference, cpu, cuda)


def test_the_body_follows_module_and_dtype(cupy):
    for dtype, on_host, on_device in [
        ("float32", "cpu", "cuda"),
        ("float64", "reference", "reference"),
        ("float16", "reference", "cuda"),
        (ml_dtypes.bfloat16, "reference", "cuda"),
        ("int64", "cpu", "cuda"),
    ]:
        x = np.zeros(3, dtype)
        assert ALL(x) == on_host
        assert ALL(cupy.asarray(x)) == on_device


def test_the_first_floating_array_decides():
    ids, x32, x64 = np.zeros(3, int), np.zeros(3, np.float32), np.zeros(3)
    assert ALL(ids, x64) == ALL(ids, y=x64) == ALL(x64, y=ids) == "reference"
    assert ALL(ids, x32) == ALL(x32, y=None) == ALL(x32, 0.5) == "cpu"


def test_float64_meets_no_other_type():
    """NumPy makes float64 of everything; a dy of that type would change the type of all that follows, or be cut."""
    x, y = np.zeros(3, np.float32), np.zeros(3)
    for a, b in ((x, y), (y, x), (y, x.astype(np.float16)), (y, x.astype(ml_dtypes.bfloat16))):
        with pytest.raises(
            TypeError, match=r"all got (b?float\d\d and b?float\d\d) arrays in one call: convert one of"
        ):
            ALL(a, y=b)
    assert ALL(x, y=x.astype(np.float16)) == "cpu"
    assert Op("sums", reference, cpu, mixed=True)(x, y=y) == "cpu"


def test_the_reference_stands_in(cupy):
    op = Op("only", reference)
    assert op(np.zeros(3, np.float32)) == op(cupy.asarray(np.zeros(3, np.float32))) == "reference"
    assert list(op.bodies) == ["reference"]
    assert list(ALL.bodies) == ["reference", "cpu", "cuda"]
    assert repr(ALL) == "Op(all: reference, cpu, cuda)"


def test_modules_never_mix(cupy):
    with pytest.raises(TypeError, match="arrays of numpy and cupy meet"):
        ALL(np.zeros(3), y=cupy.asarray([1.0]))


@pytest.mark.parametrize("rows", [0, 1, 7, 1000])
@pytest.mark.parametrize("cols", [0, 1, 33, 10_000])
def test_row_blocks_cover_all_rows_once(rows, cols):
    blocks = list(row_blocks(rows, cols, block=1000))
    assert [i for b in blocks for i in range(b.start, b.stop)] == list(range(rows))
    assert all((b.stop - b.start) * cols <= 1000 or b.stop - b.start == 1 for b in blocks)


@pytest.mark.parametrize(
    ("shape", "rows"), [((5,), (1, 5)), ((2, 3, 5), (6, 5)), ((0, 5), (0, 5)), ((2, 0), (2, 0)), ((0, 3, 0), (0, 0))]
)
def test_as_rows(shape, rows):
    assert as_rows(np.zeros(shape)).shape == rows
