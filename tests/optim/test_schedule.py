import itertools
import math

import pytest

from gpulayers.optim import SCHEDULES, SGD, Plateau, chained, make_schedule, sequence

NAMES = pytest.mark.parametrize("name", SCHEDULES)
FALLING = pytest.mark.parametrize("name", sorted(SCHEDULES.keys() - {"cosine_restarts", "cyclic", "one_cycle"}))


@FALLING
@pytest.mark.parametrize("warmup", [0, 1])
def test_first_update_is_full(name, warmup):
    assert make_schedule(name, 10, warmup)(0) == 1


@NAMES
@pytest.mark.parametrize("warmup", [2, 5, 10])
def test_warmup_is_linear(name, warmup):
    schedule = make_schedule(name, 10, warmup)
    expected = [schedule.peak * (k + 1) / warmup for k in range(warmup)]
    assert [schedule(k) for k in range(warmup)] == pytest.approx(expected)
    peak = {"cyclic": 0.1, "one_cycle": 0.04}.get(name, 1.0)
    assert schedule.peak == pytest.approx(peak) or warmup == 10


@FALLING
@pytest.mark.parametrize("warmup", [0, 1, 5, 10])
@pytest.mark.parametrize("steps", [10, 11])
def test_falls_after_the_warmup_and_is_held_at_the_end(name, warmup, steps):
    schedule = make_schedule(name, steps, warmup)
    factors = [schedule(k) for k in range(max(0, warmup - 1), steps + 1)]
    assert factors[0] == 1
    assert all(a >= b >= 0 for a, b in itertools.pairwise(factors))
    assert schedule(steps) == schedule(steps + 1) == schedule(10**9)


@NAMES
@pytest.mark.parametrize("warmup", [0, 1, 5, 10])
def test_stays_at_the_end_and_within_0_and_1(name, warmup):
    schedule = make_schedule(name, 10, warmup)
    assert all(0 <= schedule(k) <= 1 for k in range(12))
    assert schedule(10) == schedule(11) == schedule(10**9)


@FALLING
def test_one_step(name):
    for warmup in (0, 1):
        assert make_schedule(name, 1, warmup)(0) == 1


@NAMES
def test_pure(name):
    schedule = make_schedule(name, 10, 3)
    assert [schedule(k) for k in (7, 2, 7, 2)] == [schedule(7), schedule(2)] * 2


@pytest.mark.parametrize("name", ["linear", "cosine"])
@pytest.mark.parametrize("final", [0.0, 0.1, 1.0])
def test_final(name, final):
    schedule = make_schedule(name, 12, 2, final=final)
    assert schedule(2) == 1
    assert schedule(7) == pytest.approx((1 + final) / 2)  # half way
    assert schedule(12) == pytest.approx(final, abs=1e-15)
    assert schedule(100) == schedule(12)


def test_cosine_value():
    assert make_schedule("cosine", 8)(2) == pytest.approx((1 + math.cos(math.pi / 4)) / 2)


def test_step():
    schedule = make_schedule("step", 10, 1, step_size=2, gamma=0.5)
    assert [schedule(k) for k in range(8)] == [1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.125]
    assert [make_schedule("step", 9)(k) for k in range(9)] == pytest.approx([1] * 3 + [0.1] * 3 + [0.01] * 3)


def test_inverse_square_root():
    schedule = make_schedule("inverse_square_root", 100, 4)
    for k in range(100):  # Vaswani et al., equation 3, with d = warmup so that the peak is 1
        assert schedule(k) == pytest.approx(4**0.5 * min((k + 1) ** -0.5, (k + 1) * 4**-1.5))


def test_constant_needs_no_horizon():
    schedule = make_schedule("constant", 1)
    assert [schedule(k) for k in (0, 1, 100)] == [1, 1, 1]
    assert make_schedule("constant", 10**12, 3).steps == 3  # so that its table of rates is short


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("exponent", {}, "unknown schedule 'exponent'; there are constant, linear, cosine, step"),
        ("cosine", {"gamma": 0.5}, "the cosine schedule has no option gamma; it takes steps, warmup, final"),
        ("cosine", {"steps": 0}, "cosine schedule: steps must be at least 1, got 0"),
        ("cosine", {"steps": 10**9}, "cosine schedule: steps must be at most 10000000, got 1000000000"),
        ("linear", {"warmup": 11}, "linear schedule: warmup must be in 0..steps = 10, got 11"),
        ("linear", {"warmup": -1}, "linear schedule: warmup must be in"),
        ("linear", {"final": 1.5}, "linear schedule: final must be in 0..1"),
        ("step", {"step_size": 0}, "step schedule: step_size must be at least 1, got 0"),
        ("step", {"gamma": 0.0}, "step schedule: gamma must be above 0 and at most 1, got 0.0"),
        ("polynomial", {"power": 0}, "polynomial schedule: power must be above 0, got 0"),
        ("exponential", {"final": 0.0}, "exponential schedule: final must be above 0, for it never gets there"),
        ("exponential", {"gamma": 1.5}, "exponential schedule: gamma must be above 0 and at most 1, got 1.5"),
        ("multi_step", {"milestones": [-1]}, r"multi_step schedule: milestones must be 0 or more, got \[-1\]"),
        ("cosine_restarts", {"period": 0}, "cosine_restarts schedule: period must be a whole number of at least 1"),
        ("cosine_restarts", {"multiplier": 1.5}, "cosine_restarts schedule: multiplier must be a whole number"),
        ("cyclic", {"base": 2}, "cyclic schedule: base must be in 0..1, a part of the full rate, got 2"),
        ("cyclic", {"mode": "square"}, "cyclic schedule: mode must be one of triangular, triangular2, exp_range"),
        ("cyclic", {"step_size_up": 0}, "cyclic schedule: step_size_up and step_size_down must be at least 1"),
        ("one_cycle", {"pct_start": 2}, r"one_cycle schedule: pct_start must be in 0..1 \(0..0.5 with three"),
        ("one_cycle", {"anneal_strategy": "sine"}, "one_cycle schedule: anneal_strategy must be cos or linear"),
        ("one_cycle", {"div_factor": 0.5}, "one_cycle schedule: div_factor and final_div_factor must be at least 1"),
    ],
)
def test_refused(name, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        make_schedule(name, **{"steps": 10, **options})


@pytest.mark.parametrize("combine", [lambda s: sequence(s, [5]), chained])
def test_a_plateau_has_no_place_in_a_row_of_schedules(combine):
    with pytest.raises(TypeError, match=r"schedules\[1\] must be a Schedule, got Plateau"):
        combine([make_schedule("cosine", 10), Plateau()])


def test_exponential_ends_where_it_should():
    schedule = make_schedule("exponential", 12, 2, final=0.01)
    assert [schedule(k) for k in (2, 7, 12)] == pytest.approx([1, 0.1, 0.01])


def test_multi_step_by_default():
    schedule = make_schedule("multi_step", 9, 1)
    assert [schedule(k) for k in range(10)] == pytest.approx([1] * 5 + [0.1] * 2 + [0.01] * 3)


def test_restarts_grow():
    schedule = make_schedule("cosine_restarts", 20, period=2, multiplier=3)
    assert [k for k in range(20) if schedule(k) == 1] == [0, 2, 8]


def test_sequence_and_chained():
    rise, fall = make_schedule("constant", 4, 4), make_schedule("linear", 5)
    both = sequence([rise, fall], [4])
    assert [both(k) for k in range(12)] == pytest.approx([0.25, 0.5, 0.75, 1, 1, 0.8, 0.6, 0.4, 0.2, 0, 0, 0])
    assert (both.steps, chained([rise, fall]).steps) == (9, 5)
    assert chained([fall, fall])(2) == pytest.approx(0.36)
    with pytest.raises(ValueError, match="sequence: 2 schedules take one milestone less, got 2"):
        sequence([rise, fall], [4, 5])
    with pytest.raises(ValueError, match=r"sequence: milestones must rise from 0 or more, got \[5, 4\]"):
        sequence([rise, fall, fall], [5, 4])
    with pytest.raises(ValueError, match="chained: there must be at least one schedule"):
        chained([])


def test_plateau_goes_with_the_optimizers_state(model):
    """A resumed run falls where the run that never stopped does."""
    plateau = Plateau(patience=1, factor=0.5, warmup=2)
    optimizer = SGD(model, 1.0, schedule=plateau)
    assert optimizer.lr == 0.5
    for _ in range(3):
        optimizer.step()
    for metric in (3.0, 2.0, 2.5, math.nan):
        plateau.update(metric)
    assert optimizer.lr == 0.5
    plateau.update(2.5)
    again = Plateau(patience=1, factor=0.5, warmup=2)
    SGD(type(model)("float32", **model.state_dict()), 1.0, schedule=again).load_state_dict(optimizer.state_dict())
    assert again.state.tolist() == plateau.state.tolist() == [0.5, 2.0, 1.0, 0.0]
    again.update(2.5)
    assert again(5) == 0.25


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"mode": "least"}, "Plateau: mode is min or max, threshold_mode rel or abs, got 'least', 'rel'"),
        ({"factor": 1.0}, "Plateau: factor must be above 0 and below 1, got 1.0"),
        ({"min_factor": 2.0}, r"Plateau: min_factor must be in 0\.\.1, a part of the full rate, got 2.0"),
        ({"patience": -1}, "Plateau: patience must be 0 or more, and finite, got -1"),
    ],
)
def test_plateau_refuses(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        Plateau(**options)
