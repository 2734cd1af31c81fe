import numpy as np
import pytest
from devices import STORAGE, Exact, check_kernel, in_storage, on_devices

import gpulayers as gl
from gpulayers.ops.rotary import rotary, rotary_tables

SHAPES = [(1, 1, 1, 2), (2, 3, 3, 6), (2, 7, 2, 16), (1, 3, 2, 66), (2, 5, 1, 64), (0, 3, 2, 4), (2, 0, 2, 4)]


def tables(x, start=0):
    return [Exact(t) for t in rotary_tables(x.shape[1], x.shape[3], 10000.0, like=x, start=start)]


@on_devices
@in_storage
@pytest.mark.parametrize("shape", SHAPES)
def test_against_the_reference(device, storage, shape, rng):
    x = rng.normal(size=shape).astype(np.float32)
    check_kernel(rotary, device, x, *tables(x, start=3), storage=storage)


@on_devices
def test_views(device, rng):
    x = rng.normal(size=(2, 3, 4, 5, 8)).astype(np.float32)
    for view in (x[:, :, 1], x[:, ::2, 3, 1:], x[0].swapaxes(0, 1), x[0].swapaxes(2, 3)[..., :4], x[:, 0, :, :, 1:7]):
        check_kernel(rotary, device, view, *tables(view))


@on_devices
@in_storage
@pytest.mark.parametrize("start", [1, 3, 8])
def test_any_alignment(device, storage, start, rng):
    """Halves of whole packs, which begin between two 16-byte boundaries."""
    x = rng.normal(size=(2, 3, 2, 32)).astype(STORAGE[storage])
    longer = gl.to_device(np.concatenate([np.zeros(start), x.ravel()]).astype(x.dtype), device)
    there = longer[start:].reshape(x.shape)
    cos, sin = rotary_tables(3, 32, 10000.0, like=there)
    expected = rotary(gl.to_device(x, device), cos, sin).get()
    assert np.array_equal(rotary(there, cos, sin).get(), expected)
    assert np.array_equal(rotary(there, cos, sin, out=there).get(), expected)


@on_devices
@in_storage
@pytest.mark.parametrize("d", [6, 16])
def test_in_place_in_a_part_of_a_buffer(device, storage, d, rng):
    """Queries and keys lie side by side; only the heads that are given may change."""
    qkv = rng.normal(size=(2, 5, 3, 2 * d)).astype(STORAGE[storage])
    there = gl.to_device(qkv.copy(), device)
    q = there[:, :, 1, : 2 * d].reshape(2, 5, 2, d)
    cos, sin = rotary_tables(5, d, 10000.0, like=there)
    y = rotary(q.copy(), cos, sin)
    assert rotary(q, cos, sin, out=q) is q
    expected = qkv.copy()
    expected[:, :, 1] = y.get().reshape(2, 5, 2 * d)
    assert np.array_equal(there.get(), expected)


@on_devices
def test_refusals(device):
    x = gl.to_device(np.zeros((1, 2, 2, 4), np.float32), device)
    cos, sin = rotary_tables(2, 4, 10000.0, like=x)
    for out in (x[:, :, :1], x.astype(np.float16), x.swapaxes(1, 3)):
        with pytest.raises(ValueError, match="rotary: out must be float32"):
            rotary(x, cos, sin, out=out)
