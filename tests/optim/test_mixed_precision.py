"""float16 and bfloat16 parameters: float32 masters, and dynamic loss scaling."""

import copy
import math

import ml_dtypes  # noqa: F401 so that NumPy knows the name bfloat16
import numpy as np
import pytest
from devices import DEVICES

import gpulayers as gl
from gpulayers.ops.cross_entropy import cross_entropy
from gpulayers.optim import SGD, Adam, AdamW, LossScale, LossScaleError, make_schedule
from gpulayers.parameter import pack

everywhere = pytest.mark.parametrize("device", ["numpy", *DEVICES])
LOW = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])


def host(array) -> np.ndarray:
    return np.array(gl.to_numpy(array))


def add(parameter, values) -> None:
    """Add `values` to a gradient as the parameter's type has them: above 65,504 a float16 is infinite."""
    with np.errstate(over="ignore"):
        g = np.array(values, np.float32).astype(parameter.dtype)
    parameter.add_grad(gl.to_device(g, gl.device_of(parameter.data)))


def everything(model, optimizer) -> dict[str, bytes]:
    state = model.state_dict() | optimizer.state_dict()
    return {name: array.tobytes() for name, array in state.items() if name.startswith(("optimizer.a", "m.", "v.", "p"))}


# ------------------------------------------------------------------------------------------------- masters


@everywhere
@LOW
def test_updates_too_small_for_the_parameter_add_up_in_the_master(device, dtype, weights):
    model = weights(dtype, p=[1.0, 2.0]).to(device)
    optimizer = SGD(model, 1e-4)
    for _ in range(20):
        add(model.p, [1, 1])
        optimizer.step()
    assert model.state_dict()["p"] == pytest.approx(np.array([0.998, 1.998]), rel=1e-5)
    assert host(model.p.data).astype(np.float32) == pytest.approx(np.array([0.998, 1.998]), rel=4e-3)


@everywhere
@LOW
@pytest.mark.parametrize("make", [lambda m: SGD(m, 0.1, 0.9), Adam, AdamW])
def test_the_parameter_is_the_rounded_master_and_moments_are_float32(device, dtype, make, weights, rng):
    model = weights(dtype, p=rng.normal(size=(5, 7)), q=rng.normal(size=9)).to(device)
    optimizer = make(model)
    for _ in range(3):
        for parameter in model.parameters():
            add(parameter, rng.normal(size=parameter.shape))
        optimizer.step()
    for parameter in model.parameters():
        assert parameter.dtype == dtype
        assert parameter.grad.dtype == dtype
        assert np.array_equal(host(parameter.data), host(parameter.values).astype(dtype))
        assert not np.array_equal(host(parameter.data).astype(np.float32), host(parameter.values))
    assert all(a.dtype == np.float32 for name, a in optimizer.state_dict().items() if name[0] in "mv")


@everywhere
@LOW
def test_the_saved_state_is_the_master_and_a_resumed_run_has_the_same_bits(device, dtype, weights, rng):
    values, options = {"p": rng.normal(size=(5, 7)), "q": rng.normal(size=9)}, {"loss_scale": LossScale(8.0)}
    model = weights(dtype, **values).to(device)
    optimizer = AdamW(model, **options)

    def step(model, optimizer, k):
        for parameter in model.parameters():
            add(parameter, 8 * np.random.default_rng(k).normal(size=parameter.shape))
        optimizer.step()

    for k in range(3):
        step(model, optimizer, k)
    state = model.state_dict()
    assert all(array.dtype == np.float32 for array in state.values())
    other = weights(dtype, **{name: np.zeros(value.shape) for name, value in values.items()}).to(device)
    other_optimizer = AdamW(other, **options)
    other.load_state_dict(state)
    other_optimizer.load_state_dict(optimizer.state_dict())
    for k in range(3, 6):
        assert everything(model, optimizer) == everything(other, other_optimizer)
        assert host(model.p.data).tobytes() == host(other.p.data).tobytes()
        step(model, optimizer, k)
        step(other, other_optimizer, k)
    assert everything(model, optimizer) == everything(other, other_optimizer)


@LOW
def test_a_model_that_only_generates_has_no_master(dtype, weights):
    model = weights(dtype, p=[1.0])
    assert pack(model).master is None
    assert model.state_dict()["p"].dtype == dtype
    assert pack(weights("float32", p=[1.0])).master is None
    AdamW(float32 := weights("float32", p=[1.0]))
    assert float32.p.values is float32.p.data


@LOW
def test_masters_move_and_are_copied_with_the_model(dtype, weights):
    model = weights(dtype, p=[[1.0, 2.0]], q=[3.0])
    pack(model).make_master()
    exact = np.array([[1.0001, 2.0001]], np.float32)
    model.p.assign(exact)
    for other in (copy.deepcopy(model), model.to("emulated"), model.to("numpy")):
        assert np.array_equal(other.state_dict()["p"], exact)
        assert np.array_equal(host(other.p.data), exact.astype(dtype))
    clone = copy.deepcopy(model)
    clone.p.assign(2 * exact)
    assert np.array_equal(model.state_dict()["p"], exact)
    model.to(dtype="float32")
    assert np.array_equal(model.p.data, exact)  # nothing was lost on the way
    assert model.p.flat.master is None


# ------------------------------------------------------------------------------------------------- loss scaling


@everywhere
def test_h17_clipping_sees_the_unscaled_gradient(device, weights):
    """H17 a (pytorch#67590): clipped while multiplied by the scale, it was 0.000585938, 0.00078125."""
    model = weights("float16", p=[0.0, 0.0]).to(device)
    optimizer = SGD(model, 1.0, clip_norm=1.0, loss_scale=LossScale(1024))
    add(model.p, 1024 * np.array([0.03, 0.04]))
    optimizer.step()
    assert model.state_dict()["p"] == pytest.approx(-np.array([0.03, 0.04]), rel=1e-3)
    assert optimizer.grad_norm == pytest.approx(0.05, rel=1e-3)


@everywhere
def test_values_are_clipped_after_unscaling_too(device, weights):
    model = weights("float16", p=[0.0, 0.0]).to(device)
    optimizer = SGD(model, 1.0, clip_value=2.0, clip_norm=1.0, loss_scale=LossScale(1024))
    add(model.p, 1024 * np.array([3.0, -4.0]))
    optimizer.step()
    assert model.state_dict()["p"] == pytest.approx(np.array([-1, 1]) / math.sqrt(2), rel=1e-3)


@everywhere
@pytest.mark.parametrize("make", [lambda m, **k: SGD(m, 0.1, 0.9, **k), Adam, AdamW])
def test_h17_a_skipped_step_changes_nothing_but_the_scale(device, make, weights):
    """H17 b (milesial/Pytorch-UNet#468): gradient 3, scale 65,536: two skipped steps, then one at 16,384."""
    model = weights("float16", p=[0.5, -0.0]).to(device)
    optimizer = make(model, schedule=make_schedule("linear", 4), loss_scale=LossScale(65536.0))
    before, lr = everything(model, optimizer), optimizer.lr
    scales = []
    for _ in range(3):
        scales.append(float(optimizer.scale))
        assert everything(model, optimizer) == before
        assert optimizer.lr == lr
        add(model.p, scales[-1] * np.array([3.0, 0.0]))
        optimizer.step()
    assert scales == [65536, 32768, 16384]
    assert float(optimizer.scale) == 16384
    assert (optimizer.applied, optimizer.skipped, optimizer.last_step_applied) == (1, 2, True)
    assert optimizer.grad_norm == 3
    assert optimizer.lr < lr


@everywhere
def test_h17_a_floor_and_an_error_after_repeated_skips_at_it(device, weights):
    """H17 c (apex#834, #318): the scale halved for ever toward 0."""
    model = weights("float16", p=[1.0]).to(device)
    optimizer = SGD(model, 1.0, loss_scale=LossScale(4.0, floor=1.5, patience=2))
    scales = []
    for _ in range(3):
        add(model.p, [math.nan])
        optimizer.step()
        scales.append(float(optimizer.scale))
        assert optimizer.applied == 0
    assert scales == [2, 1.5, 1.5]
    add(model.p, [math.nan])
    optimizer.step()
    with pytest.raises(
        LossScaleError, match=r"not finite in 2 steps in a row at the lowest loss scale, 1\.5: the model"
    ):
        _ = optimizer.skipped
    add(model.p, [1.5])
    optimizer.step()  # a good step ends the row
    assert (optimizer.applied, optimizer.skipped) == (1, 4)
    assert model.state_dict()["p"] == 0


@everywhere
def test_the_scale_grows_after_many_good_steps(device, weights):
    model = weights("float16", p=[1.0]).to(device)
    optimizer = SGD(model, 0.0, loss_scale=LossScale(8.0, growth_interval=3))
    scales = []
    for gradient in (1, 1, math.inf, 1, 1, 1, 1, 1, 1):
        add(model.p, [gradient])
        optimizer.step()
        scales.append(float(optimizer.scale))
    assert scales == [8, 8, 4, 4, 4, 8, 8, 8, 16]


@pytest.mark.parametrize("name", ["applied", "skipped", "last_step_applied", "grad_norm", "lr"])
def test_every_look_raises(name, weights):
    model = weights("float16", p=[1.0])
    optimizer = SGD(model, 1.0, loss_scale=LossScale(1.0, patience=1), schedule=make_schedule("linear", 4))
    add(model.p, [math.inf])
    optimizer.step()
    with pytest.raises(LossScaleError):
        getattr(optimizer, name)


def test_without_loss_scaling_there_is_no_scale(weights):
    optimizer = SGD(weights("bfloat16", p=[1.0]), 1.0)
    assert optimizer.scale is None
    assert "optimizer.loss_scale" not in optimizer.state_dict()


SMALLEST, LARGEST = 2.0**-14, 65504.0  # float16 with all its digits


@pytest.mark.parametrize(("vocab", "rows"), [(50257, 8192), (256, 32), (50257, 1), (10, 60_000)])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_first_scale_fits_into_float16(vocab, rows, reduction):
    """By arithmetic, for an untrained model: p = 1 / V in every row. The worst sum over the rows is that of a batch
    whose targets are all the same class: rows (1 / V - 1) if they are summed."""
    scale = (LossScale.for_sum(rows) if reduction == "sum" else LossScale()).initial
    weight = scale * (1 / rows if reduction == "mean" else 1)
    assert LARGEST / 4 < rows * weight <= LARGEST
    if vocab == 50257 and rows == 8192:
        assert weight == 4
        assert weight / vocab >= SMALLEST


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_first_scale_in_a_whole_loss(reduction):
    """The same with numbers: half the targets one class; dlogits and its column sums are finite and not 0."""
    rows, vocab = 512, 997
    scaling = LossScale.for_sum(rows) if reduction == "sum" else LossScale()
    logits, targets = np.zeros((rows, vocab), np.float16), np.arange(rows) * (np.arange(rows) % 2)
    scale = np.array(scaling.initial, np.float32)
    _, dlogits = cross_entropy(logits, targets, reduction=reduction, scale=scale)
    sums = dlogits.astype(np.float32).sum(axis=0).astype(np.float16)
    assert np.isfinite(sums).all()
    assert (abs(dlogits) >= SMALLEST).all()


def test_a_scale_for_sums_has_a_floor_as_low():
    scaling = LossScale.for_sum(8192)
    assert (scaling.initial, scaling.floor) == (4.0, 1 / 8192)
    assert LossScale.for_sum(5000) == scaling
    with pytest.raises(ValueError, match=r"LossScale\.for_sum: count must be at least 1, got 0"):
        LossScale.for_sum(0)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"initial": -1}, "LossScale: initial must be 0 or more, and finite, got -1"),
        ({"initial": math.inf}, "LossScale: initial must be 0 or more, and finite, got inf"),
        ({"floor": 0}, r"LossScale: floor must be above 0 and at most initial, got 0 and 32768"),
        ({"initial": 1, "floor": 2}, r"LossScale: floor must be above 0 and at most initial, got 2 and 1"),
        ({"growth_interval": 0}, "LossScale: growth_interval must be at least 1, got 0"),
        ({"patience": 0}, "LossScale: patience must be at least 1, got 0"),
    ],
)
def test_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        LossScale(**options)
