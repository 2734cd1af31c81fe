"""What holds for every optimizer beside SGD and Adam, which `test_optimizer.py` takes through all of it."""

import math
from typing import Any

import numpy as np
import pytest
from devices import on_devices, refuse_waiting
from tolerances import assert_close

import gpulayers as gl
from gpulayers.emulator.settings import record_launches
from gpulayers.optim import (
    ASGD,
    LAMB,
    OPTIMIZERS,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    Group,
    Lion,
    LossScale,
    Muon,
    NAdam,
    RAdam,
    RMSprop,
    Rprop,
    make_schedule,
)

MAKE = {
    "amsgrad": lambda model, **k: Adam(model, amsgrad=True, **k),
    "nadam": NAdam,
    "radam": lambda model, **k: RAdam(model, betas=(0.9, 0.99), decoupled_weight_decay=True, **k),
    "adamax": Adamax,
    "lion": Lion,
    "rmsprop": RMSprop,
    "rmsprop all": lambda model, **k: RMSprop(model, alpha=0.9, eps=1e-2, momentum=0.9, centered=True, **k),
    "adagrad": Adagrad,
    "adadelta": Adadelta,
    "rprop": Rprop,
    "asgd": lambda model, **k: ASGD(model, t0=2, lambd=0.1, **k),
    "adafactor": lambda model, **k: Adafactor(model, eps=(1e-4, 1e-3), **k),
    "lamb": LAMB,
    "muon": Muon,
}
KINDS = pytest.mark.parametrize("name", MAKE)


def state_bits(model, optimizer):
    state = model.state_dict() | optimizer.state_dict()
    return {name: array.tobytes() for name, array in state.items() if name != "optimizer.skipped"}


def test_every_optimizer_is_here():
    assert OPTIMIZERS.keys() - {"sgd", "adam", "adamw"} <= MAKE.keys()


@KINDS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_skipped_step_keeps_every_bit_and_state_comes_back(name, dtype, model, gradients):
    """H15, H16: a run with a bad step in it, saved and resumed in another model, is the run that never had either."""
    model.to(dtype=dtype)
    optimizer = MAKE[name](model, weight_decay=0.1, clip_norm=1.0)
    for k in range(3):
        gradients(model, np.random.default_rng(k))
        optimizer.step(2)
    before = state_bits(model, optimizer)
    gradients(model, np.random.default_rng(9))
    model.bias.grad[3] = math.nan
    optimizer.step()
    assert (optimizer.applied, optimizer.skipped) == (3, 1)
    assert state_bits(model, optimizer) == before
    other_model = type(model)(dtype, **{key: value * 0 for key, value in model.state_dict().items()})
    other_model.load_state_dict(model.state_dict())
    other = MAKE[name](other_model, weight_decay=0.1, clip_norm=1.0)
    other.load_state_dict(optimizer.state_dict())
    for k in range(3):
        for each, update in ((model, optimizer), (other_model, other)):
            gradients(each, np.random.default_rng(20 + k))
            update.step(2)
    assert state_bits(model, optimizer) == state_bits(other_model, other)
    assert not np.array_equal(model.weight.data, np.frombuffer(before["weight"], dtype).reshape(model.weight.shape))


@KINDS
def test_maximize(name, model, gradients):
    other = type(model)("float32", **model.state_dict())
    up, down = MAKE[name](model, maximize=True, weight_decay=0.1), MAKE[name](other, weight_decay=0.1)
    for k in range(2):
        gradients(model, np.random.default_rng(k))
        gradients(other, np.random.default_rng(k), -1.0)
        up.step()
        down.step()
    assert state_bits(model, up) == state_bits(other, down)


@KINDS
def test_vectors_do_not_decay_unless_a_group_says_so(name, model, gradients):
    copies = [type(model)("float32", **model.state_dict()) for _ in range(3)]
    groups = [Group("bias", weight_decay=0.5), Group("table", weight_decay=0.0)]
    for each, options in zip(
        copies, ({"weight_decay": 0.0}, {"weight_decay": 0.5}, {"weight_decay": 0.5, "groups": groups}), strict=True
    ):
        optimizer = MAKE[name](each, **options)
        for k in range(2):
            gradients(each, np.random.default_rng(k))
            optimizer.step()
    plain, decayed, grouped = (each.state_dict() for each in copies)
    changed = {key for key in plain if not np.array_equal(plain[key], decayed[key])}
    assert changed == {"weight", "table"}
    assert {key for key in plain if not np.array_equal(plain[key], grouped[key])} == {"weight", "bias"}


@KINDS
def test_a_rate_of_its_own_for_a_group(name, model, gradients):
    """The learning rate of a group is the learning rate."""
    other = type(model)("float32", **model.state_dict())
    lr = 1e-3
    here = MAKE[name](model, lr=2 * lr, weight_decay=0.1)
    there = MAKE[name](other, lr=lr, weight_decay=0.1, groups=[Group("*", lr_scale=2.0)])
    for k in range(2):
        gradients(model, np.random.default_rng(k))
        gradients(other, np.random.default_rng(k))
        here.step()
        there.step()
    for key, value in model.state_dict().items():
        assert_close(other.state_dict()[key], value, factor=5)


@KINDS
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_low_precision_moves_its_master(name, dtype, model, gradients):
    """The masters take the steps of a float32 model with the same, rounded, values and gradients."""
    model.to(dtype=dtype)
    other = type(model)("float32", **{key: value.astype(np.float32) for key, value in model.state_dict().items()})
    low, full = MAKE[name](model, weight_decay=0.1), MAKE[name](other, weight_decay=0.1)
    for k in range(3):
        given = gradients(model, np.random.default_rng(k))
        for key, parameter in other.named_parameters():
            parameter.add_grad(given[key].astype(np.float32))
        low.step()
        full.step()
    for parameter, wanted in zip(model.parameters(), other.parameters(), strict=True):
        assert parameter.values.dtype == np.float32
        assert_close(parameter.values, wanted.data, factor=5)
        assert np.array_equal(parameter.data, parameter.values.astype(parameter.data.dtype))


@on_devices
@KINDS
def test_on_a_device(name, device, model, monkeypatch):
    """The same steps as on the CPU, in the launches that the documentation says, and without waiting."""
    there = type(model)("float32", **model.state_dict()).to(device)
    options: dict[str, Any] = {"clip_norm": 1.0, "weight_decay": 0.1}
    if name != "rprop":
        options["schedule"] = make_schedule("cosine", 6, 2)
    here, on_device = MAKE[name](model, **options), MAKE[name](there, **options)
    for k in range(3):
        rng = np.random.default_rng(k)
        for (_, a), (_, b) in zip(model.named_parameters(), there.named_parameters(), strict=True):
            g = rng.normal(size=a.shape).astype(np.float32)
            a.add_grad(g)
            b.add_grad(gl.to_device(g, device))
        here.step()
        with monkeypatch.context() as patch, record_launches() as launches:
            if device == "emulated":
                refuse_waiting(patch)
            on_device.step()
    kernels = [launch.kernel for launch in launches][3:]
    if name not in ("lamb", "muon", "adafactor"):
        assert kernels == ["update_rules_model"]  # matrices, which decay, and vectors
    if name == "lamb":
        assert kernels == ["update_rules_model", *[*2 * ["sum_of_squares", "sum_of_squares_total"], "move"] * 3]
    if name == "muon":
        assert kernels == ["update_rules", "adam", "move", "move"]
    for key, value in (there.state_dict() | on_device.state_dict()).items():
        wanted = (model.state_dict() | here.state_dict())[key]
        assert_close(value, wanted, "float32", factor=50 if name == "muon" else 5)  # 15 products


@pytest.mark.parametrize("name", ["lion", "nadam", "lamb"])
def test_float16_on_a_device(name, model):
    model.to("emulated", "float16")
    optimizer = MAKE[name](model, loss_scale=LossScale(4.0))
    for parameter in model.parameters():
        parameter.add_grad(gl.to_device(np.ones(parameter.shape, np.float16), "emulated"))
    optimizer.step()
    assert optimizer.applied == 1
    for parameter in model.parameters():
        assert np.array_equal(parameter.data.get(), parameter.values.get().astype(np.float16))


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_give_the_same_bits(threads, weights, monkeypatch):
    from gpulayers.optim import optimizer as module

    monkeypatch.setattr(module, "PIECE", 100)
    monkeypatch.setattr(module, "LEAST", 100)
    found = []
    for count in (1, threads):
        model = weights("float32", p=np.linspace(-1, 1, 1200).reshape(30, 40))
        optimizer = LAMB(model, threads=count)
        model.p.add_grad(np.cos(np.arange(1200, dtype=np.float32)).reshape(30, 40))
        optimizer.step()
        found.append(model.p.data.tobytes())
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda m: NAdam(m, betas=(0.9, 1.0)), r"NAdam: betas\[1\] must be in 0..1, without 1, got 1.0"),
        (lambda m: NAdam(m, momentum_decay=-1), "NAdam: momentum_decay must be 0 or more, and finite, got -1"),
        (lambda m: RAdam(m, eps=0.0), "RAdam: eps must be at least 1.2e-38, and finite, got 0.0"),
        (lambda m: Adagrad(m, eps=1e-46), "Adagrad: eps must be at least 1.2e-38, and finite, got 1e-46"),
        (lambda m: Muon(m, adamw_eps=1e-50), "Muon: adamw_eps must be at least 1.2e-38"),
        (lambda m: Muon(m, lr=0.0, adamw_lr=0.1), "Muon: adamw_lr is kept as a multiple of lr, which must not be 0"),
        (lambda m: Lion(m, betas=(0.9,)), "Lion: betas must be two numbers, got"),
        (lambda m: RMSprop(m, alpha=1.0), "RMSprop: alpha must be in 0..1, without 1, got 1.0"),
        (lambda m: RMSprop(m, momentum=-0.1), "RMSprop: momentum must be 0 or more"),
        (lambda m: Adagrad(m, initial_accumulator_value=-1), "Adagrad: initial_accumulator_value must be"),
        (lambda m: Adadelta(m, rho=-0.1), "Adadelta: rho must be in"),
        (lambda m: Rprop(m, etas=(1.2, 0.5)), "Rprop: etas must be two numbers, one in 0..1 and one above 1"),
        (lambda m: Rprop(m, step_sizes=(1, 0.5)), "Rprop: step_sizes must be two numbers, the lower one first"),
        (lambda m: Rprop(m, schedule=make_schedule("cosine", 5)), "Rprop: it finds its own step sizes and takes no"),
        (lambda m: ASGD(m, alpha=2), "ASGD: alpha must be in 0..1, got 2"),
        (lambda m: Adafactor(m, beta2_decay=0.5), "Adafactor: beta2_decay must be 0 or less, got 0.5"),
        (lambda m: Adafactor(m, d=0.5), "Adafactor: d must be at least 1, got 0.5"),
        (lambda m: Muon(m, adjust_lr_fn="other"), "Muon: adjust_lr_fn must be None or one of original, match_rms"),
        (lambda m: Muon(m, ns_steps=0), "Muon: ns_steps must be in 1..99, got 0"),
        (lambda m: LAMB(m, lr=-1.0), "LAMB: lr must be 0 or more, and finite, got -1.0"),
    ],
)
def test_refused(make, sentence, model):
    with pytest.raises(ValueError, match=sentence):
        make(model)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_average_of_what_was_never_updated_is_the_parameter(dtype, model, gradients):
    """`swap` brings no zeros: neither before the first update, nor for what is frozen."""
    model.to(dtype=dtype)
    before, optimizer = model.state_dict(), ASGD(model, lr=0.1)
    optimizer.swap()
    assert all(np.array_equal(value, before[name]) for name, value in model.state_dict().items())
    optimizer.swap()
    model.weight.trainable = False
    gradients(model, np.random.default_rng(0))
    optimizer.step()
    optimizer.swap()
    assert np.array_equal(model.state_dict()["weight"], before["weight"])
    assert not np.array_equal(model.state_dict()["bias"], before["bias"])
    for refused in (optimizer.state_dict, lambda: optimizer.load_state_dict({})):
        with pytest.raises(RuntimeError, match=r"ASGD: .* swap back before the state is saved or loaded"):
            refused()
    with pytest.raises(RuntimeError, match="ASGD: the model holds the average now; swap back before the next step"):
        optimizer.step()


def test_muon_at_rate_0_stands_still(model, gradients):
    before, optimizer = model.state_dict(), Muon(model, lr=0.0)
    gradients(model, np.random.default_rng(0))
    optimizer.step()
    assert optimizer.applied == 1
    assert all(np.array_equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_adafactor_takes_the_papers_epsilon(dtype, model):
    """1e-30, whose square float32 does not have: no gradient, no step, and no NaN."""
    model.to(dtype=dtype)
    before, optimizer = model.state_dict(), Adafactor(model, eps=(1e-30, 1e-3))
    for parameter in model.parameters():
        parameter.add_grad(np.zeros(parameter.shape, dtype))
    optimizer.step()
    assert all(np.array_equal(value, before[name]) for name, value in model.state_dict().items())
