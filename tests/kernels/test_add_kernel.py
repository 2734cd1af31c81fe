import numpy as np
import pytest
from devices import STORAGE, check_kernel, in_storage, on_devices

import gpulayers as gl
from gpulayers.ops.add import add

SHAPES = [((1,), (1,)), ((0, 4), (4,)), ((5, 3), (5, 3)), ((5, 3), (3,)), ((2, 3, 131), (3, 131)), ((3, 1024), (1024,))]


@on_devices
@in_storage
@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_against_the_reference(device, storage, a, b, rng):
    args = (rng.normal(size=shape).astype(np.float32) for shape in (a, b))
    check_kernel(add, device, *args, storage=storage)


@on_devices
def test_views_and_other_axes(device, rng):
    a, b = rng.normal(size=(2, 7, 12)).astype(np.float32)
    check_kernel(add, device, a.T[::2], b.T[::2])
    check_kernel(add, device, a, b[1, ::-1])
    check_kernel(add, device, a, b[:, :1])  # no kernel, but right


@on_devices
@in_storage
def test_any_alignment(device, storage, rng):
    """A row of whole packs, or an array, that begins behind a 16-byte boundary."""
    x, row = (rng.normal(size=size).astype(STORAGE[storage]) for size in (49, 17))
    there, row_there = gl.to_device(x, device), gl.to_device(row, device)
    assert np.array_equal(add(there[:48].reshape(3, 16), row_there[1:]).get(), x[:48].reshape(3, 16) + row[1:])
    assert np.array_equal(add(there[1:], there[:48]).get(), x[1:] + x[:48])
