"""The rules of `first_sick`, on rows made up and on networks made sick on purpose."""

import json
import math

import numpy as np
import pytest

import gpulayers as gl
from gpulayers.ops.cross_entropy import cross_entropy
from gpulayers.training.health import Row, as_record, first_sick, rows_of
from gpulayers.training.health_plot import plot_health
from gpulayers.training.ledger import Ledger
from gpulayers.training.metrics import plain

WELL = Row(gradient=0.3, activation=0.8, dead=0.1, saturated=0.1, update=1e-3)


def rows(**changes):
    """Four layers, some of them changed."""
    return {name: WELL._replace(**changes.get(name, {})) for name in ("a", "b", "c", "d")}


def test_well():
    assert first_sick(rows()) is None
    assert first_sick({}) is None
    assert first_sick({"a": Row()}) is None


@pytest.mark.parametrize(
    ("changes", "layer", "sentence"),
    [
        ({"c": {"activation": math.nan}, "b": {"activation": math.inf}}, "b", "not finite from b on: an activation is"),
        ({"a": {"gradient": math.inf}, "b": {"gradient": math.nan}}, "b", "not finite from b on: a gradient is NaN"),
        ({"b": {"update": math.nan}}, "b", "not finite from b on: an update is NaN"),
        ({"b": {"activation": 1.2e3}, "c": {"activation": 2e9}}, "b", "square of the activation 1.2e+03, above 1e+03"),
        ({"a": {"gradient": 5e4}, "b": {"gradient": 2e3}}, "b", "exploding from b on: norm of the gradient 2.0e+03"),
        ({"b": {"dead": 0.95}, "c": {"dead": 1.0}}, "b", "dead from b on: 95 % of the units are dead"),
        ({"a": {"saturated": 0.74, "dead": 1.0}}, "a", "saturated from a on: 74 % of the values are bent flat"),
        ({"c": {"activation": 3e-5}, "d": {"activation": 1e-6}}, "c", "vanishing from c on: root mean square of the"),
        (
            {"a": {"gradient": 1e-9}, "b": {"gradient": 1.2e-4}, "d": {"gradient": 0.6}},
            "b",
            "vanishing from b on: norm of the gradient 1.2e-04, 2e-04 of the last layer's",
        ),
        ({"a": {"gradient": 0.0}}, "a", "vanishing from a on: norm of the gradient 0.0e+00, 0e+00 of the last"),
    ],
)
def test_one_rule(changes, layer, sentence):
    sick = first_sick(rows(**changes))
    assert sick is not None
    assert sick.layer == layer
    assert sentence in str(sick)
    assert "\n" not in str(sick)


@pytest.mark.parametrize(
    "changes",
    [
        {"a": {"activation": 1e3, "gradient": 1e3}},
        {"a": {"dead": 0.9, "saturated": 0.5}},
        {"a": {"activation": 1e-4}},
        {"a": {"gradient": 0.0011}, "d": {"gradient": 1.0}},
        {name: {"gradient": 0.0} for name in "abcd"},  # no target counted: nothing can be said
    ],
)
def test_just_well(changes):
    assert first_sick(rows(**changes)) is None


def test_the_last_layer_is_the_last_with_a_gradient():
    """A tied head has none of its own."""
    tied = rows(a={"gradient": 1e-5}, d={"gradient": None})
    assert first_sick(tied) == first_sick(rows(a={"gradient": 1e-5}))


def test_a_record_survives_json():
    before = rows(b={"activation": math.inf, "dead": None}, c={"gradient": math.nan})
    record = json.loads(json.dumps(plain(as_record(7, before)), allow_nan=False))
    assert record["step"] == 7
    assert record["sick"] == {"layer": "b", "kind": "not finite", "why": "an activation is NaN or infinite"}
    after = rows_of(record)
    assert list(after) == list(before)
    assert math.isnan(after["b"].activation)
    assert after["b"].dead is None
    assert after["a"] == before["a"]
    assert first_sick(after) == first_sick(before)


# ------------------------------------------------------------------------------------------------ planted


def sick_after(change, steps=1, **config):
    """The first sick layer of a network with eight hidden layers after `change` has been done to it."""
    model = gl.FeedForwardNet(gl.FeedForwardConfig(20, 4, 8, (32,) * 8, **config), seed=0)
    change(model)
    optimizer = gl.SGD(model, lr=0.1)
    ledger, rng = Ledger(model, optimizer), np.random.default_rng(0)
    for k in range(steps):
        ids = rng.integers(0, 20, (64, 4))
        with ledger.watch(), np.errstate(over="ignore", invalid="ignore"):
            logits, saved = model.forward(ids, gl.Train(step=k))
            _, dlogits = cross_entropy(logits, ids[:, -1])
            model.backward(dlogits, saved)
            optimizer.step()
    return first_sick(ledger.rows)


def scale_weights(factor, first=9, last=1):
    def change(model):
        for k in range(first, last - 1, -1):
            layer = model.W[k] if k == 1 else model.W[k].linear
            layer.weight.data *= factor

    return change


def nothing(model):
    pass


@pytest.mark.parametrize("activation", ["tanh", "relu", "leaky_relu", "prelu", "gelu"])
@pytest.mark.parametrize("around", ["plain", "batchnorm", "layernorm"])
def test_he_and_xavier_are_well(activation, around):
    init = "xavier" if activation == "tanh" else "he"
    assert sick_after(nothing, steps=10, activation=activation, init=init, around=around) is None


def test_naive_tanh_is_saturated_from_its_first_layer():
    sick = sick_after(nothing, activation="tanh", init="naive")
    assert (sick.layer, sick.kind) == ("W.9", "saturated")


def test_naive_relu_explodes_where_the_activation_has_grown_a_thousandfold():
    """Each layer of 32 multiplies the root mean square by sqrt(32 / 2) = 4: 4^5 = 1024 after the fifth."""
    sick = sick_after(nothing, activation="relu", init="naive")
    assert sick.kind == "exploding"
    assert sick.layer in ("W.5", "W.4")


def test_large_weights_late_are_named_late():
    sick = sick_after(scale_weights(30, first=4, last=3), activation="tanh", init="xavier")
    assert (sick.layer, sick.kind) == ("W.4", "saturated")


def test_tiny_weights_let_the_signal_vanish():
    """A twentieth of what Xavier keeps: 20^-3 is above 1e-4, 20^-4 below."""
    sick = sick_after(scale_weights(0.05), activation="tanh", init="xavier")
    assert (sick.layer, sick.kind) == ("W.6", "vanishing")


def test_one_narrow_gate_lets_the_gradient_vanish():
    """W.4 passes a ten thousandth of the gradient back; its own is still large, W.5 is the first that gets little."""

    def change(model):
        scale_weights(1e-4, first=4, last=4)(model)
        model.W[4].linear.bias.data[:] = 0.5

    sick = sick_after(change, activation="tanh", init="xavier")
    assert (sick.layer, sick.kind) == ("W.5", "vanishing")


def test_a_bias_of_minus_ten_kills_relu():
    sick = sick_after(lambda model: model.W[6].linear.bias.data.fill(-10), activation="relu", init="he")
    assert (sick.layer, sick.kind) == ("W.6", "dead")


def test_nan_is_found_where_it_starts():
    def change(model):
        model.W[3].linear.weight.data[0, 0] = np.nan

    sick = sick_after(change, activation="gelu", init="he")
    assert (sick.layer, sick.kind) == ("W.3", "not finite")


# ------------------------------------------------------------------------------------------------ the picture


@pytest.mark.parametrize("count", [0, 1, 30])
def test_picture(count, tmp_path):
    records = [plain(as_record(k + 1, rows(b={"gradient": math.inf, "activation": 0.0}))) for k in range(count)]
    plot_health(records, tmp_path / "health.png", "a run")
    assert (tmp_path / "health.png").read_bytes().startswith(b"\x89PNG")
