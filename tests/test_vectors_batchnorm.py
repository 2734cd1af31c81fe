"""BatchNorm against PyTorch: three batches in training, then one in evaluation."""

import pytest
from outside import DTYPES, cast, close, load, part

from gpulayers.layers.batchnorm import BatchNorm
from gpulayers.step import Train

CASES = {
    "rows": {},
    "rows and positions": {"axis": 1},
    "average": {"momentum": None},
    "momentum eps": {"momentum": 0.3, "eps": 1e-2},
    "no weight": {"affine": False},
    "no running statistics": {"track_running_stats": False},
    "one channel": {},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_batchnorm(name, dtype):
    wanted = part(load("batchnorm"), f"{name}/")
    layer = BatchNorm(wanted["0/x"].shape[1], **CASES[name], dtype=dtype)
    layer.load_state_dict({k: wanted[k] for k in ("weight", "bias") if k in wanted}, strict=False)
    for batch in ("0", "1", "2", "evaluation"):
        train = None if batch == "evaluation" else Train()
        found = one_batch(layer, part(wanted, f"{batch}/"), train, dtype)
        assert found.keys() == part(wanted, f"{batch}/").keys() - {"x", "dy"}
        for key, array in found.items():
            close(array, wanted[f"{batch}/{key}"], dtype)


def one_batch(layer, wanted, train, dtype):
    layer.zero_grad()
    y, saved = layer.forward(cast(wanted["x"], dtype), train)
    found = {"y": y, "dx": layer.backward(cast(wanted["dy"], dtype), saved)}
    layer.commit()
    found |= {f"d{name}": parameter.grad for name, parameter in layer.named_parameters()}
    return found | {name: array for name, array in layer.state_dict().items() if name not in ("weight", "bias")}


def test_every_case_of_the_file_is_run():
    assert {key.partition("/")[0] for key in load("batchnorm") if "/" in key} == CASES.keys()
