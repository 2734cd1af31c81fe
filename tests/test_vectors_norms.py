"""LayerNorm and RMSNorm of several axes, GroupNorm, InstanceNorm, and BatchNorm of images, against PyTorch."""

import numpy as np
import pytest
from outside import DTYPES, case, case_names, cast, check_case, close, load, part

from gpulayers.layers.batchnorm import BatchNorm
from gpulayers.layers.groupnorm import GroupNorm
from gpulayers.layers.instancenorm import InstanceNorm
from gpulayers.layers.layernorm import LayerNorm
from gpulayers.layers.rmsnorm import RMSNorm
from gpulayers.step import Train

CASES = {
    "layer two axes": lambda: LayerNorm((4, 7)),
    "layer two axes no bias": lambda: LayerNorm((4, 7), 1e-2, bias=False),
    "layer all axes": lambda: LayerNorm((3, 4, 7)),
    "layer no weight": lambda: LayerNorm(7, elementwise_affine=False),
    "rms two axes": lambda: RMSNorm((4, 7)),
    "rms no weight": lambda: RMSNorm(7, 1e-2, elementwise_affine=False),
    "group": lambda: GroupNorm(2, 6, axis=1),
    "group images": lambda: GroupNorm(3, 6, 1e-2, axis=1),
    "group no weight": lambda: GroupNorm(2, 4, affine=False, axis=1),
    "group no positions": lambda: GroupNorm(2, 6),
    "group of all": lambda: GroupNorm(1, 5, axis=1),
    "group of one": lambda: GroupNorm(5, 5, axis=1),
}
TRACKED = {
    "instance": lambda: InstanceNorm(5, axis=1),
    "instance affine": lambda: InstanceNorm(3, 1e-2, affine=True, axis=1),
    "instance tracked": lambda: InstanceNorm(5, affine=True, track_running_stats=True, axis=1),
    "instance tracked images": lambda: InstanceNorm(3, momentum=0.3, track_running_stats=True, axis=1),
    "batch images": lambda: BatchNorm(4, axis=1),
    "batch volumes": lambda: BatchNorm(3, momentum=None, axis=1),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_norm(name, dtype):
    check_case(CASES[name](), case("norms", name), dtype)


def test_large_mean():
    """In float32 too: x - mean is exact to a rounding of x, 2^-12 of its spread here."""
    wanted = case("norms", "group large mean")
    for dtype, tolerance in (("float64", 1e-9), ("float32", 3e-4)):
        layer = GroupNorm(2, 4, axis=1, dtype=dtype)
        layer.load_state_dict(wanted.parameters)
        y, saved = layer.forward(cast(wanted.inputs[0], dtype))
        dx = layer.backward(cast(wanted.dy, dtype), saved)
        for found, right in ((y, wanted.y), (dx, wanted.input_gradients[0])):
            assert np.abs(found - right).max() <= tolerance


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", TRACKED)
@pytest.mark.parametrize("last", [False, True], ids=["axis 1", "channels last"])
def test_batches(name, dtype, last):
    """Training, then evaluation; and the same with the channels moved to the last axis."""
    wanted = part(load("norms"), f"{name}/")
    layer = TRACKED[name]().to(dtype=dtype)
    layer.load_state_dict({k: wanted[k] for k in ("weight", "bias") if k in wanted}, strict=False)
    layer.axis = -1 if last else 1
    for batch in ("0", "1", "2", "evaluation"):
        one = part(wanted, f"{batch}/")
        found = run(layer, one, None if batch == "evaluation" else Train(), dtype, last)
        assert found.keys() >= one.keys() - {"x", "dy"}
        for key in one.keys() - {"x", "dy"}:
            close(found[key], one[key], dtype)


def run(layer, wanted, train, dtype, last):
    def there(a):
        return np.moveaxis(a, 1, -1) if last else a

    def back(a):
        return np.moveaxis(a, -1, 1) if last else a

    layer.zero_grad()
    y, saved = layer.forward(there(cast(wanted["x"], dtype)), train)
    found = {"y": back(y), "dx": back(layer.backward(there(cast(wanted["dy"], dtype)), saved))}
    layer.commit()
    found |= {f"d{name}": parameter.grad for name, parameter in layer.named_parameters()}
    return found | layer.state_dict()


def test_every_case_of_the_file_is_run():
    assert case_names("norms") == CASES.keys() | TRACKED.keys() | {"group large mean"}
