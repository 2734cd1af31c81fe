import math
import warnings

import numpy as np
import pytest

from gpulayers.layers.layer import Layer
from gpulayers.optim import SGD, Adam, AdamW, Group, make_optimizer, make_schedule
from gpulayers.optim import optimizer as optimizer_module
from gpulayers.optim.group import Settings, Stretch
from gpulayers.parameter import Parameter, pack

KINDS = pytest.mark.parametrize(
    "make",
    [
        lambda model, **k: SGD(model, 0.1, **k),
        lambda model, **k: SGD(model, 0.1, 0.9, True, **k),
        lambda model, **k: Adam(model, **k),
        lambda model, **k: AdamW(model, **k),
    ],
    ids=["sgd", "nesterov", "adam", "adamw"],
)


@KINDS
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "options", [{}, {"clip_norm": 1.0}, {"clip_value": 0.5}, {"clip_norm": 1.0, "clip_value": 0.5}]
)
def test_bad_gradient_changes_no_bit(make, bad, dtype, options, model, gradients, bits, rng):
    """H16 (pytorch#46849): an infinite norm wiped the update or made every weight NaN, silently."""
    model.to(dtype=dtype)
    optimizer = make(model, **options)
    gradients(model, rng)
    optimizer.step()
    before = bits(optimizer)
    gradients(model, rng)
    model.bias.grad[3] = bad
    optimizer.step()
    assert bits(optimizer) == before
    assert (optimizer.applied, optimizer.skipped, optimizer.last_step_applied) == (1, 1, False)
    assert not math.isfinite(optimizer.grad_norm)
    assert not model.weight.grad.any()
    assert not model.bias.grad.any()
    gradients(model, rng)
    optimizer.step()
    assert (optimizer.applied, optimizer.skipped, optimizer.last_step_applied) == (2, 1, True)
    assert bits(optimizer) != before


@KINDS
def test_skipped_step_leaves_no_trace(make, model, gradients, bits, rng):
    """The run with a bad step in it goes on like the run without."""
    gradients(model, rng)
    optimizer = make(model)
    other_model = type(model)("float32", **model.state_dict())
    other = make(other_model)
    for k in range(4):
        seed = np.random.default_rng(k)
        gradients(model, seed)
        gradients(other_model, np.random.default_rng(k))
        if k == 2:
            model.zero_grad()
            model.bias.grad[0] = np.nan
            optimizer.step()
            gradients(model, np.random.default_rng(k))
        if k == 0:
            model.zero_grad()
            gradients(model, np.random.default_rng(k))
        optimizer.step()
        other.step()
    assert bits(optimizer) == bits(other)


@pytest.mark.parametrize(
    ("gradient", "expected"),
    [([3.0, 4.0], [0.6, 0.8]), ([0.3, 0.4], [0.3, 0.4]), ([1e20, 1e20], [0.70710678, 0.70710678]), ([0, 0], [0, 0])],
)
def test_clip_norm(gradient, expected, weights):
    model = weights("float32", p=[0.0, 0.0])
    optimizer = SGD(model, 1.0, clip_norm=1.0)
    model.p.add_grad(np.array(gradient, np.float32))
    optimizer.step()
    assert model.p.data == pytest.approx(-np.array(expected), rel=1e-6)
    assert optimizer.grad_norm == pytest.approx(math.hypot(*gradient), rel=1e-6)


def test_clip_by_value_then_by_norm(weights):
    model = weights(p=[[0.0, 0.0]], q=[0.0])
    optimizer = SGD(model, 1.0, clip_value=2.0, clip_norm=1.0)
    model.p.add_grad(np.array([[6.0, -8.0]]))
    model.q.add_grad(np.array([2.0]))
    optimizer.step(count=2)  # the mean gradient is [3, -4], [1]; limited [2, -2], [1], of norm 3
    assert model.p.data == pytest.approx(np.array([[-2 / 3, 2 / 3]]))
    assert model.q.data == pytest.approx(np.array([-1 / 3]))
    assert optimizer.grad_norm == pytest.approx(math.sqrt(26))


def test_clipping_does_not_see_the_decay(weights):
    model = weights(p=[[10.0]])
    optimizer = SGD(model, 1.0, weight_decay=0.5, clip_norm=1.0)
    model.p.add_grad(np.array([[4.0]]))
    optimizer.step()
    assert model.p.data[0, 0] == pytest.approx(10 - (1 + 5))


@pytest.mark.parametrize(
    ("count", "divisor"), [(None, 1), (0, 1), (4, 4), (np.int64(4), 4), (np.array(4), 4), (np.array([0]), 1)]
)
def test_count(count, divisor, weights):
    model = weights(p=[0.0])
    model.p.add_grad(np.array([8.0]))
    SGD(model, 1.0).step(count)
    assert model.p.data[0] == -8 / divisor


@pytest.mark.parametrize("count", [-1, math.nan, math.inf])
def test_refused_count(count, weights):
    with pytest.raises(ValueError, match=r"SGD\.step: count must be 0 or more, and finite, got"):
        SGD(weights(p=[0.0]), 1.0).step(count)


@KINDS
def test_rate_zero(make, model, gradients, bits, rng):
    optimizer = make(model, schedule=lambda k: 0.0)
    gradients(model, rng)
    before = bits(optimizer)
    optimizer.step()
    after = bits(optimizer)
    assert before.pop("data") == after.pop("data")
    assert optimizer.applied == 1
    assert all(before[name] != after[name] for name in after)


@KINDS
def test_gradient_is_kept_for_a_later_reader_and_then_zero(make, model, gradients, rng):
    optimizer = make(model)
    given = gradients(model, rng)
    memory = model.weight.grad
    optimizer.step()
    assert np.array_equal(memory, given["weight"])  # only marked as zero, not written
    assert not model.weight.grad.any()


@KINDS
def test_frozen_parameter_stays(make, model, gradients, bits, rng):
    model.table.trainable = False
    optimizer = make(model, l1=0.1, weight_decay=0.1)
    before = model.table.data.copy()
    for _ in range(3):
        given = gradients(model, rng)
        optimizer.step()
    assert np.array_equal(model.table.data, before)
    own = math.sqrt(sum((given[name].astype(np.float64) ** 2).sum() for name in ("weight", "bias")))
    assert optimizer.grad_norm == pytest.approx(own)
    model.table.trainable = True
    gradients(model, rng)
    optimizer.step()
    assert not np.array_equal(model.table.data, before)


def test_everything_frozen(model, bits):
    for parameter in model.parameters():
        parameter.trainable = False
    optimizer = Adam(model)
    before = bits(optimizer)
    optimizer.step()
    assert bits(optimizer) == before
    assert optimizer.grad_norm == 0


def test_nothing_but_an_empty_parameter(weights):
    """H13."""
    optimizer = Adam(weights("float32", p=np.zeros((0, 4))))
    optimizer.step()
    assert (optimizer.applied, optimizer.grad_norm) == (1, 0)
    assert optimizer.state_dict()["m.p"].shape == (0, 4)


def test_vectors_are_not_decayed(weights):
    model = weights(matrix=[[1.0]], vector=[1.0])
    optimizer = SGD(model, 1.0, weight_decay=0.25, l1=0.125)
    optimizer.step()
    assert model.matrix.data[0, 0] == 1 - 0.25 - 0.125
    assert model.vector.data[0] == 1
    assert optimizer.penalty() == pytest.approx(0.125 * 0.625 + 0.125 * 0.625**2)


def test_groups(weights):
    model = weights(a=[[1.0]], b=[[1.0]], c=[1.0], d=[1.0])
    groups = [
        Group("a", lr_scale=2.0),
        Group(lambda name, parameter: name == "b", weight_decay=0.0),
        Group("[cx]", weight_decay=0.125, l1=0.0625),
    ]
    SGD(model, 1.0, weight_decay=0.25, groups=groups).step()
    assert [p.data.item() for p in model.parameters()] == [1 - 2 * 0.25, 1, 1 - 0.125 - 0.0625, 1]


def test_penalty_is_what_a_step_goes_down(weights, rng):
    """The decay's part of the gradient is the derivative of penalty()."""
    values = rng.normal(size=(3, 4))
    model = weights(p=values)
    optimizer = SGD(model, 1.0, weight_decay=0.3, l1=0.2)
    optimizer.step()
    gradient = values - model.p.data
    h, u = 1e-6, rng.normal(size=(3, 4))
    penalties = []
    for sign in (1, -1):
        model.p.data[...] = values + sign * h * u
        penalties.append(optimizer.penalty())
    assert (penalties[0] - penalties[1]) / (2 * h) == pytest.approx((gradient * u).sum(), rel=1e-6)


class Tied(Layer):
    """logits = table h with h = table[0]: an embedding and a head that are one parameter."""

    def __init__(self) -> None:
        self.table = Parameter(np.array([[1.0], [2.0]]))
        self.head = self.table

    def backward_for(self, label: int) -> None:
        h = self.table.data[0]
        logits = self.head.data @ h
        dlogits = np.exp(logits) / np.exp(logits).sum()
        dlogits[label] -= 1
        self.head.add_grad(np.outer(dlogits, h))
        self.table.grad[0] += dlogits @ self.head.data


def test_tied_parameter_is_one(bits):
    """H19 (paiml/entrenar#314): two copies with two optimizer states."""
    model = Tied()
    model.backward_for(label=1)
    assert model.table.grad[:, 0] == pytest.approx([0, -0.2689414], abs=1e-7)
    optimizer = SGD(model, 1.0, 0.9, weight_decay=0.5)
    optimizer.step()
    assert model.table is model.head
    assert model.parameter_count() == 2
    assert model.table.data[:, 0] == pytest.approx([1 - 0.5, 2 + 0.2689414 - 1.0], abs=1e-7)  # decayed once
    assert set(optimizer.state_dict()) == {"m.table", "optimizer.applied", "optimizer.skipped"}


@KINDS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_resume_bit_for_bit(make, dtype, model, gradients, bits, rng):
    model.to(dtype=dtype)
    options = {"schedule": make_schedule("cosine", 6, 2), "clip_norm": 1.0}
    optimizer = make(model, **options)
    for k in range(3):
        gradients(model, np.random.default_rng(k))
        optimizer.step(k)
    model.bias.grad[0] = np.nan
    optimizer.step()
    other_model = type(model)(dtype, **{name: value * 0 for name, value in model.state_dict().items()})
    other_model.load_state_dict(model.state_dict())
    other = make(other_model, **options)
    other.load_state_dict(optimizer.state_dict())
    assert (other.applied, other.skipped, other.lr) == (3, 1, optimizer.lr)
    for k in range(5):
        gradients(model, np.random.default_rng(k))
        gradients(other_model, np.random.default_rng(k))
        optimizer.step()
        other.step()
        assert bits(optimizer) == bits(other)


def test_state_names_and_types(model):
    state = Adam(model).state_dict()
    expected = {f"{moment}.{name}" for moment in "mv" for name in ("weight", "bias", "empty", "table")}
    assert set(state) == expected | {"optimizer.applied", "optimizer.skipped"}
    for name in ("optimizer.applied", "optimizer.skipped"):
        assert (state[name].dtype, state[name].shape) == (np.int64, ())
    assert state["m.table"].shape == (3, 4)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda s: s.pop("m.bias"), r"Adam: missing \['m.bias'\], unexpected none"),
        (lambda s: s.update({"m.other": s["m.bias"]}), r"Adam: missing none, unexpected \['m.other'\]"),
        (lambda s: s.update({"v.table": s["m.bias"]}), r"Adam: v.table has shape \(9,\), this model takes \(3, 4\)"),
        (lambda s: s.update({"optimizer.applied": np.zeros(1, np.int64)}), r"optimizer.applied has shape \(1,\)"),
        (lambda s: s.update({"optimizer.applied": np.array(1.5)}), "optimizer.applied has dtype float64"),
        (lambda s: s.update({"v.table": s["v.table"].astype(str)}), "v.table has dtype"),
        (lambda s: s.update({"optimizer.applied": np.array(-1)}), "optimizer.applied counts, and is below 0"),
    ],
)
def test_refused_state_changes_nothing(change, sentence, model, gradients, bits, rng):
    optimizer = Adam(model)
    gradients(model, rng)
    optimizer.step()
    before, state = bits(optimizer), optimizer.state_dict()
    for value in state.values():
        value[...] += 1
    change(state)
    with pytest.raises(ValueError, match=sentence):
        optimizer.load_state_dict(state)
    assert bits(optimizer) == before
    assert optimizer.applied == 1


@KINDS
def test_threads_change_no_bit(make, monkeypatch, gradients, weights, bits, rng):
    monkeypatch.setattr(optimizer_module, "PIECE", 1000)
    monkeypatch.setattr(optimizer_module, "LEAST", 300)
    values = {"matrix": rng.normal(size=(61, 97)), "vector": rng.normal(size=2500)}
    found = []
    for threads in (1, 2, 3):
        model = weights("float32", **values)
        optimizer = make(model, threads=threads, clip_norm=1.0, weight_decay=0.1, l1=0.01)
        for k in range(3):
            gradients(model, np.random.default_rng(k))
            optimizer.step()
        assert len(optimizer._todo()) >= 3 * threads  # which the last step was cut into: about four for each
        found.append((bits(optimizer), optimizer.penalty()))
    assert found[0] == found[1] == found[2]


def test_who_is_woken(monkeypatch, weights):
    """A thread has LEAST elements or more."""
    optimizer = AdamW(weights("float32", p=np.zeros((3, 100))), threads=3)
    todo = [Stretch(at, at + 100, Settings(1, 0, 0)) for at in (0, 100, 200)]
    woken = []
    submit = optimizer._threads.submit
    monkeypatch.setattr(optimizer._threads, "submit", lambda *a: woken.append(1) or submit(*a))
    for least, helpers in ((151, 0), (150, 1), (101, 1), (100, 2), (10, 2)):
        monkeypatch.setattr(optimizer_module, "LEAST", least)
        woken.clear()
        optimizer._each(todo, lambda i, piece: None)
        assert len(woken) == helpers, least


def test_gradient_from_before_the_optimizer_counts(weights):
    model = weights(p=[0.0], q=[0.0])
    model.p.add_grad(np.array([3.0]))
    SGD(model, 1.0).step()
    assert [p.data.item() for p in model.parameters()] == [-3, 0]


def test_neighbours_are_one_stretch(model):
    optimizer = AdamW(model)
    assert len(optimizer._todo()) == 2  # matrices, vectors
    assert len(Adam(pack(model))._todo()) == 1
    model.weight.trainable = False
    assert len(optimizer._todo()) == 2


@KINDS
def test_padding_stays_zero(make, model, gradients, rng):
    optimizer = make(model, l1=0.1, weight_decay=0.1)
    for _ in range(3):
        gradients(model, rng)
        optimizer.step()
    used = np.zeros(optimizer.flat.size, bool)
    for segment in optimizer.flat.segments:
        used[segment.start : segment.stop] = True
    for buffer in (optimizer.flat.data, *optimizer._moments.values()):
        assert not buffer[~used].any()


def test_schedule_follows_applied_updates(weights):
    """H17: a skipped step must not advance the schedule."""
    model = weights(p=[0.0])
    optimizer = SGD(model, 1.0, schedule=make_schedule("linear", 4))
    assert optimizer.lr == 1
    moves = []
    for gradient in (1.0, math.nan, 1.0, 1.0, 1.0, 1.0, 1.0):
        before, rate = model.p.data[0], optimizer.lr
        model.p.add_grad(np.array([gradient]))
        optimizer.step()
        moves.append(before - model.p.data[0])
        assert moves[-1] == pytest.approx(rate if optimizer.last_step_applied else 0)
    assert moves == pytest.approx([1, 0, 0.75, 0.5, 0.25, 0, 0])


def test_schedule_may_be_any_function(weights):
    model = weights(p=[0.0])
    optimizer = SGD(model, 2.0, schedule=lambda k: 0.5**k)
    for _ in range(3):
        model.p.add_grad(np.array([1.0]))
        optimizer.step()
    assert model.p.data[0] == -(2 + 1 + 0.5)
    assert optimizer.lr == 0.25


def test_moved_model_is_refused(model):
    optimizer = Adam(model)
    model.to(dtype="float32").to("numpy")  # where it is already
    optimizer.step()
    model.to(dtype="float64")
    with pytest.raises(
        RuntimeError,
        match=r"the model was float32 on numpy and is float64 on numpy now; make the optimizer after model\.to",
    ):
        optimizer.step()


def test_float32_step_gives_no_warning_at_the_edges(weights):
    model = weights("float32", p=np.full((2, 2), 1e-38))
    optimizer = AdamW(model, clip_norm=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for gradient in (3e38, 1e-45, 0.0, -3e38):
            model.p.add_grad(np.full((2, 2), gradient, np.float32))
            optimizer.step()
    assert np.isfinite(model.p.data).all()
    assert optimizer.applied == 4


def test_make_optimizer(model):
    assert isinstance(make_optimizer("sgd", model, lr=0.1, momentum=0.9), SGD)
    assert isinstance(make_optimizer("adamw", model, clip_norm=1.0), AdamW)
    with pytest.raises(ValueError, match="unknown optimizer 'linoleum'; there are sgd, adam, adamw"):
        make_optimizer("linoleum", model)
    with pytest.raises(ValueError, match="sgd has no option betas; it takes"):
        make_optimizer("sgd", model, lr=0.1, betas=(0.9, 0.9))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 1e35])
@pytest.mark.parametrize("table", [False, True])
def test_a_learning_rate_that_no_step_can_take(bad, table, model, gradients, bits, rng):
    def schedule(k):
        return bad if k else 1.0

    if table:
        schedule.steps = 3
        with pytest.raises(ValueError, match=r"SGD: the learning rate of update 1 must be in 0..1e\+30, got"):
            SGD(model, 1.0, schedule=schedule)
        return
    optimizer = SGD(model, 1.0, schedule=schedule)
    gradients(model, rng)
    optimizer.step()
    gradients(model, rng)
    before = bits(optimizer)
    with pytest.raises(ValueError, match=r"SGD: the learning rate of update 1 must be in 0..1e\+30, got"):
        optimizer.step()
    assert bits(optimizer) == before


def test_a_learning_rate_beyond_float32(model):
    with pytest.raises(ValueError, match="the learning rate of update 0 must be in"):
        SGD(model, 1e300)


@KINDS
@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.5, "clip_value": 0.3}])
def test_maximize_is_the_way_down_the_negative_gradient(make, options, model, gradients, bits):
    other = type(model)("float32", **model.state_dict())
    up, down = make(model, maximize=True, weight_decay=0.1, **options), make(other, weight_decay=0.1, **options)
    for k in range(3):
        gradients(model, np.random.default_rng(k))
        gradients(other, np.random.default_rng(k), -1.0)
        up.step(2)
        down.step(2)
    assert bits(up) == bits(down)
    assert up.grad_norm == down.grad_norm
