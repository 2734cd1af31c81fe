"""All losses on the device at once: none waits for it, none lets a float64 array into a float32 step."""

import numpy as np
import pytest
from devices import refuse_waiting

import gpulayers as gl
from gpulayers.cuda import error_flag
from gpulayers.emulator import array


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_nobody_waits(reduction, monkeypatch, rng):
    cp = gl.use("emulated")
    shapes = (4, 5), (4, 5), (4, 1), (5,)
    x, target, weight, row = (cp.asarray(rng.uniform(0.1, 0.9, shape).astype(np.float32)) for shape in shapes)
    ids, signs, scale = (
        cp.asarray(a) for a in (np.array([0, 4, -100, 2]), np.array([1, -1, 1, -1]), np.array(2, np.float32))
    )
    error_flag(x)  # made once for a device, which waits
    made = []
    view_of, make = array.view_of, array.ndarray.__init__

    def watched_view(host, allocation):
        made.append(host.dtype)
        return view_of(host, allocation)

    def watched_init(self, *args, **kwargs):
        make(self, *args, **kwargs)
        made.append(self.dtype)

    monkeypatch.setattr(array, "view_of", watched_view)
    monkeypatch.setattr(array.ndarray, "__init__", watched_init)
    refuse_waiting(monkeypatch)
    options = {"reduction": reduction, "scale": scale}
    gl.cross_entropy(x, ids, weight=row, label_smoothing=0.1, z_loss=0.1, softcap=5.0, **options)
    gl.cross_entropy(x, target, weight=row, label_smoothing=0.1, z_loss=0.1, softcap=5.0, **options)
    gl.cross_entropy(x.T, ids, axis=0, **options)
    gl.nll_loss(x, ids, row, **options)
    gl.binary_cross_entropy(x, target, weight, **options)
    gl.binary_cross_entropy_with_logits(x, target, weight, pos_weight=row, **options)
    gl.kl_div(x, target, **options)
    for loss in (gl.mse_loss, gl.l1_loss, gl.huber_loss):
        loss(x, target, weight=weight, **options)
    gl.smooth_l1_loss(x, target, **options)
    gl.hinge_embedding_loss(x, cp.broadcast_to(signs[:, None], (4, 5)), **options)
    gl.cosine_embedding_loss(x, target, signs, **options)
    assert np.float32 in made
    assert np.float64 not in made
