import itertools
import math

import pytest

from gpulayers.optim import SCHEDULES, make_schedule

NAMES = pytest.mark.parametrize("name", SCHEDULES)


@NAMES
@pytest.mark.parametrize("warmup", [0, 1])
def test_first_update_is_full(name, warmup):
    assert make_schedule(name, 10, warmup)(0) == 1


@NAMES
@pytest.mark.parametrize("warmup", [2, 5, 10])
def test_warmup_is_linear(name, warmup):
    schedule = make_schedule(name, 10, warmup)
    assert [schedule(k) for k in range(warmup)] == pytest.approx([(k + 1) / warmup for k in range(warmup)])


@NAMES
@pytest.mark.parametrize("warmup", [0, 1, 5, 10])
@pytest.mark.parametrize("steps", [10, 11])
def test_falls_after_the_warmup_and_is_held_at_the_end(name, warmup, steps):
    schedule = make_schedule(name, steps, warmup)
    factors = [schedule(k) for k in range(max(0, warmup - 1), steps + 1)]
    assert factors[0] == 1
    assert all(a >= b >= 0 for a, b in itertools.pairwise(factors))
    assert schedule(steps) == schedule(steps + 1) == schedule(10**9)


@NAMES
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
        ("exponential", {}, "unknown schedule 'exponential'; there are constant, linear, cosine, step"),
        ("cosine", {"gamma": 0.5}, "the cosine schedule has no option gamma; it takes steps, warmup, final"),
        ("cosine", {"steps": 0}, "cosine schedule: steps must be at least 1, got 0"),
        ("cosine", {"steps": 10**9}, "cosine schedule: steps must be at most 10000000, got 1000000000"),
        ("linear", {"warmup": 11}, "linear schedule: warmup must be in 0..steps = 10, got 11"),
        ("linear", {"warmup": -1}, "linear schedule: warmup must be in"),
        ("linear", {"final": 1.5}, "linear schedule: final must be in 0..1"),
        ("step", {"step_size": 0}, "step schedule: step_size must be at least 1, got 0"),
        ("step", {"gamma": 0.0}, "step schedule: gamma must be above 0 and at most 1, got 0.0"),
    ],
)
def test_refused(name, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        make_schedule(name, **{"steps": 10, **options})
