"""Groups with settings of their own: what they take, what they refuse, freezing among them, one launch for all.

That the settings are right is held to PyTorch in `test_vectors_optimizers.py`.
"""

import math

import numpy as np
import pytest
from devices import on_devices, refuse_waiting
from tolerances import assert_close

import gpulayers as gl
from gpulayers.emulator.settings import record_launches
from gpulayers.optim import (
    ASGD,
    LAMB,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Group,
    Lion,
    LossScale,
    Muon,
    NAdam,
    RMSprop,
    make_schedule,
)

MAKE = {
    "sgd": lambda m: SGD(m, 0.1, groups=[Group("bias", momentum=0.9), Group("table", lr=0.3)]),
    "adam": lambda m: Adam(m, 0.01, groups=[Group("bias", betas=(0.8, 0.9)), Group("table", eps=1e-2, maximize=True)]),
    "nadam": lambda m: NAdam(m, groups=[Group("bias", momentum_decay=0.1), Group("table", betas=(0.5, 0.9))]),
    "lion": lambda m: Lion(m, groups=[Group("bias", betas=(0.5, 0.9), lr=1e-2)]),
    "lamb": lambda m: LAMB(m, groups=[Group("bias", betas=(0.5, 0.9), weight_decay=0.3), Group("table", eps=1e-2)]),
    "muon": lambda m: Muon(m, groups=[Group("bias", adamw_betas=(0.5, 0.9)), Group("table", momentum=0.5, lr=0.1)]),
}
KINDS = pytest.mark.parametrize("name", MAKE)


def give(model, k: int) -> None:
    rng = np.random.default_rng(k)
    for parameter in model.parameters():
        g = rng.normal(size=parameter.shape).astype(np.float32)
        parameter.add_grad(gl.to_device(g, gl.device_of(parameter.data)).astype(parameter.dtype))


def state(model, optimizer) -> dict[str, np.ndarray]:
    return model.state_dict() | optimizer.state_dict()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lion", {"betas": (0.5, 0.9)}),
        ("lamb", {"betas": (0.5, 0.9), "eps": 1e-3}),
        ("muon", {"momentum": 0.5, "adamw_betas": (0.5, 0.9)}),
    ],
)
def test_a_group_of_all_is_an_optimizer_with_its_settings(name, options, model):
    """The rules that PyTorch does not have, or not so."""
    kind = {"lion": Lion, "lamb": LAMB, "muon": Muon}[name]
    other = type(model)("float32", **model.state_dict())
    here, there = kind(model, **options), kind(other, groups=[Group("*", **options)])
    for k in range(3):
        for each, optimizer in ((model, here), (other, there)):
            give(each, k)
            optimizer.step()
    for key, value in state(model, here).items():
        assert np.array_equal(value, state(other, there)[key]), key


@on_devices
@KINDS
def test_on_a_device_a_frozen_part_and_a_skipped_step(name, device, model, monkeypatch):
    """The table is cut anew when a parameter is frozen; a skipped step changes no bit, NAdam's products among them."""
    there = type(model)("float32", **model.state_dict()).to(device)
    here, on_device = MAKE[name](model), MAKE[name](there)
    for k in range(3):
        for each, optimizer in ((model, here), (there, on_device)):
            each.unfreeze().freeze(["weight", "table", "bias"][k])  # the first in memory, one between, the last
            give(each, k)
            if k == 2:
                before = {key: value.tobytes() for key, value in state(each, optimizer).items()}
                each.weight.grad[3] = math.nan
            frozen = {n: gl.to_numpy(p.data).copy() for n, p in each.named_parameters() if not p.trainable}
            if each is there and device == "emulated":
                with monkeypatch.context() as patch, record_launches() as launches:
                    refuse_waiting(patch)
                    optimizer.step()
            else:
                optimizer.step()
            for key, value in frozen.items():
                assert np.array_equal(each.state_dict()[key], value)
            if k == 2:
                after = {key: value.tobytes() for key, value in state(each, optimizer).items()}
                del before["optimizer.skipped"], after["optimizer.skipped"]
                assert before == after
    assert (here.applied, here.skipped) == (on_device.applied, on_device.skipped) == (2, 1)
    if device == "emulated" and name not in ("lamb", "muon"):
        assert len([launch.kernel for launch in launches]) == 4  # the norm's two, control, and one update of all
    for key, value in state(there, on_device).items():
        assert_close(value, state(model, here)[key], "float32", factor=50 if name == "muon" else 5)


@KINDS
def test_resume_bit_for_bit(name, model):
    optimizer = MAKE[name](model)
    for k in range(3):
        give(model, k)
        optimizer.step()
    other = type(model)("float32", **model.state_dict())
    again = MAKE[name](other)
    again.load_state_dict(optimizer.state_dict())
    for k in range(3, 5):
        for each, update in ((model, optimizer), (other, again)):
            give(each, k)
            update.step()
    for key, value in state(model, optimizer).items():
        assert np.array_equal(value, state(other, again)[key]), key


@pytest.mark.parametrize(("name", "dtype"), [("sgd", "float16"), ("adam", "bfloat16"), ("nadam", "bfloat16")])
def test_in_16_bits_on_a_device(name, dtype, model):
    """Masters, copies and the table: as on the CPU, and the copy is the rounded master."""
    model.to(dtype=dtype)
    there = type(model)("float32", **model.state_dict()).to("emulated", dtype)
    here, on_device = MAKE[name](model), MAKE[name](there)
    for k in range(2):
        for each, optimizer in ((model, here), (there, on_device)):
            give(each, k)
            optimizer.step()
    for key, value in state(there, on_device).items():
        assert_close(value, state(model, here)[key], "float32", factor=5)
    for parameter in there.parameters():
        assert np.array_equal(parameter.data.get(), parameter.values.get().astype(dtype))


def test_lr_is_a_rate_and_follows_the_schedule(weights):
    model = weights(p=[[1.0]], q=[[1.0]])
    optimizer = SGD(model, 0.1, groups=[Group("q", lr=0.5)], schedule=make_schedule("step", 4, step_size=1, gamma=0.5))
    for k in range(2):
        model.p.add_grad(np.ones((1, 1)))
        model.q.add_grad(np.ones((1, 1)))
        optimizer.step()
        assert (float(model.p.data[0, 0]), float(model.q.data[0, 0])) == pytest.approx(
            (1 - 0.1 * (2 - 0.5**k), 1 - 0.5 * (2 - 0.5**k))
        )


def test_muon_takes_a_groups_rate_for_what_it_is(weights):
    """adamw_lr is the rate of the rest; a group's lr is not multiplied by it."""
    vectors = {"p": np.ones((2, 2)), "a": [1.0], "b": [1.0]}
    model = weights(**vectors)
    optimizer = Muon(model, lr=0.1, adamw_lr=0.01, groups=[Group("b", lr=0.5)], weight_decay=0)
    model.a.add_grad(np.ones(1))
    model.b.add_grad(np.ones(1))
    optimizer.step()
    assert (float(model.a.data[0]), float(model.b.data[0])) == pytest.approx((0.99, 0.5))


def test_what_a_group_starts_from(weights):
    model = weights(p=[[1.0]], q=[[1.0]])
    optimizer = Adagrad(model, groups=[Group("q", initial_accumulator_value=4.0)])
    assert (optimizer.state_dict()["v.p"][0, 0], optimizer.state_dict()["v.q"][0, 0]) == (0, 4)


def test_decay_that_is_decoupled_for_a_group_is_no_penalty(weights):
    model = weights(p=[[2.0]], q=[[3.0]])
    optimizer = Adam(model, weight_decay=0.5, groups=[Group("q", decoupled_weight_decay=True)])
    assert optimizer.penalty() == pytest.approx(0.5 / 2 * 4)


def test_loss_scale_and_clipping_are_the_models(model):
    model.to("emulated", "float16")
    optimizer = AdamW(model, loss_scale=LossScale(4.0), clip_norm=1.0, groups=[Group("bias", betas=(0.5, 0.9))])
    give(model, 0)
    optimizer.step()
    controls = optimizer._controls.get()
    assert controls.shape == (2, 8)
    assert np.array_equal(controls[0, :4], controls[1, :4])
    assert controls[:, 4] == pytest.approx([0.1, 0.5])
    assert controls[:, 5] == pytest.approx([0.001, 0.1], rel=1e-6)


def own(kind, settings, **options):
    """An optimizer with one group."""
    return lambda model: kind(model, **options, groups=[Group("bias", **settings)])


@pytest.mark.parametrize(
    ("make", "kind", "sentence"),
    [
        (own(Adam, {"betas": (0.9, 1.0)}), ValueError, r"Adam: betas\[1\] must be in 0..1, .*, in Group\('bias'\)"),
        (
            own(Adam, {"momentum": 0.9}),
            TypeError,
            r"Adam: Group\('bias'\) has no option momentum; a group takes lr, lr_",
        ),
        (own(SGD, {"nesterov": True}), ValueError, "SGD: nesterov needs a momentum above 0, in Group"),
        (own(SGD, {"lr": 0.1}, lr=0.0), ValueError, "keeps its lr as a multiple of the optimizer's"),
        (own(SGD, {"lr": 0.1, "lr_scale": 2}), ValueError, "has lr or lr_scale, got lr=0.1 and lr_scale=2"),
        (own(SGD, {"lr": -1}), ValueError, r"Group\('bias'\): lr must be 0 or more"),
        (own(RMSprop, {"alpha": 1.0}), ValueError, "RMSprop: alpha must be in"),
        (own(ASGD, {"alpha": 2.0}), ValueError, "ASGD: alpha must be in 0..1, got 2.0, in Group"),
        (own(Muon, {"adamw_eps": 0.0}), ValueError, "Muon: adamw_eps must be"),
        (lambda m: SGD(m, momentum=0.9, nesterov=True, dampening=0.1), ValueError, "SGD: nesterov goes without damp"),
    ],
)
def test_refused(make, kind, sentence, model):
    with pytest.raises(kind, match=sentence):
        make(model)
