import numpy as np
import pytest
from devices import check_kernel, in_storage, on_devices

import gpulayers as gl
from gpulayers.ops.additive_scores import additive_scores, additive_scores_backward

SHAPES = [(1, 1, 1, 1), (2, 3, 5, 7), (3, 1, 33, 2), (2, 2, 3, 129), (1, 2, 3, 1023), (2, 1, 4, 1024), (5, 1, 1, 128)]
EMPTY = [(0, 3, 5, 7), (2, 0, 5, 7), (2, 3, 0, 7)]


def values(rng, B, T, S, A):
    return (rng.normal(size=shape).astype(np.float32) for shape in ((B, T, A), (B, S, A), (A,), (B, T, S)))


@on_devices
@in_storage
@pytest.mark.parametrize("shape", SHAPES + EMPTY)
def test_kernels(device, storage, shape, rng):
    query, keys, v, dscores = values(rng, *shape)
    check_kernel(additive_scores, device, query, keys, v, storage=storage)
    u = np.tanh(query[:, :, None] + keys[:, None])
    check_kernel(additive_scores_backward, device, dscores, u, v, storage=storage, factor=2)  # sums of sums


@on_devices
def test_arrays_that_start_between_16_byte_boundaries(device, rng):
    xp = gl.use(device)
    query, keys, v, _ = values(rng, 2, 1, 3, 8)
    wanted = additive_scores.reference(query, keys, v)[0]
    for moved in range(3):
        args = []
        for i, x in enumerate((query, keys, v)):
            flat = xp.zeros(x.size + 1, np.float32)
            args.append(flat[1:].reshape(x.shape) if i == moved else flat[:-1].reshape(x.shape))
            args[-1][...] = xp.asarray(x)
        assert np.allclose(additive_scores.cuda(*args)[0].get(), wanted, atol=1e-6)


@on_devices
def test_wrong_shapes_are_refused_before_the_launch(device):
    xp = gl.use(device)
    query, keys, v = xp.zeros((2, 3, 4), "f"), xp.zeros((2, 5, 4), "f"), xp.zeros(4, "f")
    with pytest.raises(ValueError, match=r"additive_scores: keys must have shape \(2, 5, 4\), got \(3, 5, 4\)"):
        additive_scores(query, xp.zeros((3, 5, 4), "f"), v)
    with pytest.raises(ValueError, match=r"additive_scores: v must have shape \(4,\), got \(3,\)"):
        additive_scores(query, keys, v[:3])
    scores, u = additive_scores(query, keys, v)
    with pytest.raises(ValueError, match=r"dscores must have shape \(2, 3, 5\), got \(2, 3, 4\)"):
        additive_scores_backward(scores[:, :, :4], u, v)
    with pytest.raises(ValueError, match=r"v must have shape \(4,\), got \(5,\)"):
        additive_scores_backward(scores, u, xp.zeros(5, "f"))
