"""Whole Vision Transformers against PyTorch: logits, loss and every gradient, those of the pixels included."""

import numpy as np
import pytest
from outside import DTYPES, close, load, part

from gpulayers.models.vit import ViT, ViTConfig
from gpulayers.ops.cross_entropy import cross_entropy


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pool", ["class", "mean"])
def test_logits_loss_and_all_gradients(pool, dtype):
    height, width, channels, patch, classes, dim, heads, layers, hidden = (int(n) for n in load("vit")["sizes"])
    config = ViTConfig((height, width), channels, patch, classes, dim, heads, layers, hidden, pool=pool)
    wanted = part(load("vit"), f"{pool}/")
    model = ViT(config, dtype=dtype)
    model.load_state_dict(part(wanted, "parameter "))
    logits, saved = model.forward(wanted["pixels"].astype(dtype))
    loss, dlogits = cross_entropy(logits, wanted["labels"])
    dpixels = model.backward(dlogits, saved)
    close(logits, wanted["logits"], dtype)
    close(loss, wanted["loss"], dtype)
    gradients = part(wanted, "gradient ")
    assert gradients.keys() == {name for name, _ in model.named_parameters()}
    found = {name: parameter.grad for name, parameter in model.named_parameters()} | {"pixels": dpixels}
    largest = max(np.abs(gradient).max() for gradient in gradients.values())
    for name, gradient in (gradients | {"pixels": wanted["dpixels"]}).items():
        # rounding is relative to what flows through the network, not to one small gradient in it
        limit = {"float64": 1e-13, "float32": 5e-6}[dtype] * largest
        assert np.abs(found[name] - gradient).max() < limit, name
