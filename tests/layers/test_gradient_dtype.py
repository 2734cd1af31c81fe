"""A float64 gradient for a float32 layer is refused, by every layer that computes with it."""

import numpy as np
import pytest

from gpulayers.verify.case import LayerCase
from gpulayers.verify.certificate import collect

PASS_ON = {"Dropout", "Rotary", "SinusoidalPositions"}  # dx has the type of dy, and the layer before refuses it
CASES = {
    case.subject: case
    for case in collect(quick=True)
    if isinstance(case, LayerCase) and all(x.size for x in case.inputs) and case.subject not in PASS_ON
}


def doubled(y):
    return tuple(map(doubled, y)) if isinstance(y, tuple) else np.ones(y.shape)


@pytest.mark.parametrize("name", CASES)
def test_float64_is_refused(name):
    case = CASES[name]
    layer, options = case.make(), dict(case.options)
    if case.train is not None:
        options["train"] = case.train.snapshot()
    inputs = (x.astype(np.float32) if x.dtype.kind == "f" else x for x in case.inputs)
    y, saved = layer.forward(*inputs, **options)
    with pytest.raises(TypeError, match="float64"):
        layer.backward(doubled(y), saved)
    assert not any(parameter.grad.any() for parameter in layer.parameters())
