import copy

import numpy as np
import pytest
from contract import check_layer
from devices import DEVICES, refuse_waiting
from tolerances import assert_close

import gpulayers as gl
from gpulayers.layers.batchnorm import BatchNorm
from gpulayers.layers.layer import Layer
from gpulayers.layers.linear import Linear
from gpulayers.layers.recompute import Recompute
from gpulayers.layers.sequential import Sequential
from gpulayers.optim import SGD, AdamW, LossScale
from gpulayers.parameter import pack

TRAIN = gl.Train()
everywhere = pytest.mark.parametrize("device", ["numpy", *DEVICES])


def statistics(model: Layer) -> dict[str, np.ndarray]:
    return {name: array for name, array in model.state_dict().items() if "running" in name or "tracked" in name}


def run(model: Layer, x: np.ndarray, *, bad: bool = False) -> None:
    """Forward and backward, without a step."""
    x = gl.to_device(x, gl.device_of(next(model.parameters()).data))
    y, saved = model.forward(x, train=TRAIN)
    dy = y * 0 + 1
    if bad:
        dy[0, 0] = np.nan
    model.backward(dy, saved)


def batches(rng, count: int, shape=(6, 4)) -> list[np.ndarray]:
    return list(rng.normal(2, 3, (count, *shape)).astype(np.float32))


def expected(xs: list[np.ndarray], momentum: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    mean, var = 0.0, 1.0
    for x in xs:
        x = x.astype(np.float64)
        mean = (1 - momentum) * mean + momentum * x.mean(axis=0)
        var = (1 - momentum) * var + momentum * x.var(axis=0, ddof=1)
    return np.asarray(mean), np.asarray(var)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((4, 1), {}),
        ((7, 4), {}),
        ((3, 5, 8), {}),
        ((3, 8, 5), {"axis": 1}),
        ((5, 3, 4), {"axis": 0}),
        ((4, 3, 2, 5), {"axis": -3}),
        ((0, 4), {}),
        ((1023, 3), {}),
        ((7, 4), {"affine": False}),
        ((7, 4), {"track_running_stats": False}),
        ((7, 4), {"affine": False, "track_running_stats": False}),
        ((7, 4), {"momentum": None, "eps": 0.1}),
    ],
)
@pytest.mark.parametrize("train", [TRAIN, None], ids=["training", "evaluation"])
def test_contract(shape, options, train, rng):
    features = shape[options.get("axis", -1)]
    check_layer(lambda: BatchNorm(features, **options), rng.normal(1, 2, shape), train=train)


def test_channels_first_are_channels_last_moved(rng):
    x, dy = rng.normal(size=(2, 3, 4, 5)).astype(np.float32)
    last, first = BatchNorm(5), BatchNorm(5, axis=1)
    y, saved = last.forward(x, TRAIN)
    y_first, saved_first = first.forward(np.moveaxis(x, -1, 1), TRAIN)
    assert_close(np.moveaxis(y_first, 1, -1), y)
    assert_close(np.moveaxis(first.backward(np.moveaxis(dy, -1, 1), saved_first), 1, -1), last.backward(dy, saved))
    assert_close(first.weight.grad, last.weight.grad)


def test_evaluation_uses_the_running_statistics():
    layer = BatchNorm(2, eps=1.0)
    layer.running_mean.data[...], layer.running_var.data[...] = [1, 2], [3, 8]
    assert layer(np.array([[1, 2], [3, 5]], np.float32)).tolist() == [[0, 0], [1, 1]]
    assert layer(np.array([[1, 2]], np.float32)).tolist() == [[0, 0]]  # one row will do


def test_names_in_a_checkpoint(tmp_path, rng):
    layer = BatchNorm(4)
    assert list(layer.state_dict()) == ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    assert layer.state_dict()["num_batches_tracked"].dtype == np.int64
    run(layer, batches(rng, 1)[0])
    layer.commit()
    layer.save(tmp_path / "m.safetensors")
    other = BatchNorm(4).load(tmp_path / "m.safetensors")
    assert all(np.array_equal(a, statistics(layer)[name]) for name, a in statistics(other).items())
    assert list(BatchNorm(4, affine=False, track_running_stats=False).state_dict()) == []


# ------------------------------------------------------------------------------------------------- the step commits


@everywhere
@pytest.mark.parametrize("make", [lambda m: SGD(m, 0.1), AdamW])
def test_the_step_commits_in_order(device, make, rng):
    """Two steps, of two micro-batches each."""
    model, xs = BatchNorm(4).to(device), batches(rng, 4)
    optimizer = make(model)
    for k in (0, 2):
        before = statistics(model)
        run(model, xs[k])
        run(model, xs[k + 1])
        assert all(np.array_equal(before[name], a) for name, a in statistics(model).items())
        optimizer.step()
    mean, var = expected(xs)
    found = statistics(model)
    assert_close(found["running_mean"], mean)
    assert_close(found["running_var"], var)
    assert found["num_batches_tracked"] == 4


@everywhere
def test_h21_the_unbiased_variance_is_stored(device):
    """pytorch #60528: normalised by the biased variance of the batch, stored is the unbiased one."""
    model = BatchNorm(1).to(device)
    optimizer = SGD(model, lr=0.0)
    x, zero = (gl.to_device(np.array(a, np.float32), device) for a in ([[0], [2]], [[0]]))
    for mean, var, evaluated in ((0.1, 1.1, -0.0953458), (0.19, 1.19, -0.1741720)):
        y, saved = model.forward(x, train=TRAIN)
        model.backward(y * 0, saved)
        optimizer.step()
        assert_close(gl.to_numpy(y)[:, 0], np.array([-0.9999950, 0.9999950]))
        found = statistics(model)
        assert_close(found["running_mean"], np.array([mean]))
        assert_close(found["running_var"], np.array([var]))
        assert_close(gl.to_numpy(model(zero))[:, 0], np.array([evaluated]))


@everywhere
def test_a_skipped_step_changes_no_bit(device, rng):
    model, xs = BatchNorm(4).to(device), batches(rng, 3)
    optimizer = AdamW(model)
    run(model, xs[0])
    optimizer.step()
    before = statistics(model)
    run(model, xs[1], bad=True)
    optimizer.step()
    assert (optimizer.applied, optimizer.skipped) == (1, 1)
    assert all(before[name].tobytes() == a.tobytes() for name, a in statistics(model).items())
    run(model, xs[2])
    optimizer.step()  # nothing of the skipped batch is left
    assert_close(statistics(model)["running_mean"], expected([xs[0], xs[2]])[0])


def test_the_step_does_not_wait_for_the_device(rng, monkeypatch):
    model, xs = Sequential(Linear(4, 4, rng=0), BatchNorm(4)).to("emulated"), batches(rng, 2)
    optimizer = AdamW(model)
    with monkeypatch.context() as patch:
        refuse_waiting(patch)
        for x in xs:
            run(model, x)
            optimizer.step()
    assert statistics(model)["layers.1.num_batches_tracked"] == 2


@pytest.mark.parametrize(
    "zero", [lambda model, optimizer: model.zero_grad(), lambda model, optimizer: optimizer.zero_grad()]
)
def test_zero_grad_drops_what_is_queued(zero, rng):
    model, xs = BatchNorm(4), batches(rng, 2)
    optimizer = SGD(model, 0.1)
    run(model, xs[0])
    zero(model, optimizer)
    run(model, xs[1])
    optimizer.step()
    assert_close(statistics(model)["running_mean"], expected(xs[1:])[0])
    optimizer.step()
    model.commit()
    assert statistics(model)["num_batches_tracked"] == 1


def test_commit_without_an_optimizer(rng):
    model, xs = Sequential(BatchNorm(4), BatchNorm(4)), batches(rng, 2)
    for x in xs:
        run(model, x)
    model.commit()
    found = [a for name, a in statistics(model).items() if name.endswith("running_var")]
    assert_close(found[0], expected(xs)[1])
    assert not np.array_equal(found[0], found[1])


def test_a_forward_pass_alone_changes_nothing(rng):
    model = BatchNorm(4)
    before = statistics(model)
    model.forward(batches(rng, 1)[0], TRAIN)
    model(batches(rng, 1)[0])
    model.commit()
    assert all(np.array_equal(before[name], a) for name, a in statistics(model).items())


def test_evaluation_and_empty_batches_are_not_counted(rng):
    model = BatchNorm(4)
    before = statistics(model)
    for x, train in ((batches(rng, 1)[0], None), (np.zeros((0, 4), np.float32), TRAIN)):
        y, saved = model.forward(x, train)
        model.backward(np.ones_like(y), saved)
    model.commit()
    assert all(np.array_equal(before[name], a) for name, a in statistics(model).items())


def test_recompute_counts_once(rng):
    plain, again, (x,) = BatchNorm(4), Recompute(BatchNorm(4)), batches(rng, 1)
    for model in (plain, again):
        run(model, x)
        model.commit()
    for a, b in zip(statistics(plain).values(), statistics(again).values(), strict=True):
        assert np.array_equal(a, b)


def test_used_twice_counts_twice(rng):
    model = BatchNorm(4)
    both, (x,) = Sequential(model, model), batches(rng, 1)
    run(both, x)
    both.commit()
    assert statistics(model)["num_batches_tracked"] == 2
    run(model, x)
    both.commit()
    assert statistics(model)["num_batches_tracked"] == 3


def test_a_step_between_forward_and_backward_in_evaluation(rng):
    """Backward uses the statistics that forward used."""
    model, (x, other) = BatchNorm(4), batches(rng, 2)
    y, saved = model.forward(x)
    run(model, other)
    model.commit()
    assert_close(model.backward(np.ones_like(y), saved), np.full_like(x, 1 / np.sqrt(1 + 1e-5)))


def test_a_copy_has_queue_and_buffers_of_its_own(rng):
    for packed in (False, True):
        model, xs = BatchNorm(4), batches(rng, 2)
        if packed:
            pack(model)
        run(model, xs[0])
        clone = copy.deepcopy(model)
        run(clone, xs[1])
        clone.commit()
        assert statistics(model)["num_batches_tracked"] == 0
        assert statistics(clone)["num_batches_tracked"] == 2
        run(clone, xs[1])
        SGD(clone, 0.1).step()
        model.commit()
        assert statistics(model)["num_batches_tracked"] == 1
        assert statistics(clone)["num_batches_tracked"] == 3


def test_moving_drops_what_is_queued(rng):
    model = BatchNorm(4)
    run(model, batches(rng, 1)[0])
    model.to(dtype="float64").commit()
    assert statistics(model)["num_batches_tracked"] == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_statistics_of_low_precision_stay_wide(dtype, rng):
    model, (x,) = BatchNorm(4).to("emulated", dtype), batches(rng, 1)
    optimizer = AdamW(model, loss_scale=LossScale(initial=1.0))
    run(model, x.astype(model.weight.dtype))
    optimizer.step()
    assert model.running_mean.data.dtype == model.running_var.data.dtype == np.float32
    assert_close(statistics(model)["running_mean"], expected([x])[0], dtype)
    model.to("numpy", "float64").to(dtype="float32")
    assert model.running_mean.data.dtype == np.float32


# ------------------------------------------------------------------------------------------------- the door


@pytest.mark.parametrize(
    ("shape", "options", "sentence"),
    [
        ((2, 4), {}, r"at least 2 axes and 3 channels on axis -1, got \(2, 4\)"),
        ((3,), {}, r"at least 2 axes and 3 channels on axis -1, got \(3,\)"),
        ((2, 3), {"axis": 2}, r"at least 2 axes and 3 channels on axis 2, got \(2, 3\)"),
        ((2, 4, 3), {"axis": 1}, r"at least 2 axes and 3 channels on axis 1, got \(2, 4, 3\)"),
    ],
)
def test_wrong_shapes(shape, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        BatchNorm(3, **options)(np.zeros(shape, np.float32))


def test_one_value_a_channel():
    with pytest.raises(ValueError, match=r"statistics of a batch need 2 values of each channel, got an input \(1, 3\)"):
        BatchNorm(3).forward(np.zeros((1, 3), np.float32), TRAIN)


def test_wrong_dtypes_and_gradients():
    with pytest.raises(TypeError, match="BatchNorm has float32 parameters and got a float64 input"):
        BatchNorm(3)(np.zeros((2, 3)))
    with pytest.raises(TypeError, match="BatchNorm has float32 statistics and got a float64 input"):
        BatchNorm(3, affine=False)(np.zeros((2, 3)))
    with pytest.raises(TypeError, match="BatchNorm takes a floating input, got int64"):
        BatchNorm(3)(np.zeros((2, 3), np.int64))
    layer = BatchNorm(3)
    _, saved = layer.forward(np.zeros((2, 3), np.float32), TRAIN)
    with pytest.raises(ValueError, match=r"BatchNorm\.backward takes a gradient of shape \(2, 3\), got \(1, 3\)"):
        layer.backward(np.zeros((1, 3), np.float32), saved)
