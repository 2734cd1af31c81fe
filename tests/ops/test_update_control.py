import math

import numpy as np
import pytest
from contract import check_signatures

from gpulayers.ops.update_control import CONTROL_SIZE, OUTCOME_SIZE, Control, Outcome, update_control


def run(body, total=25.0, count=1.0, applied=0, rates=(0.1,), clipped=None, dtype="float32", **options):
    """(control, counters, norm) after one call."""
    control, counters, outcome = np.full(CONTROL_SIZE, 7, dtype), np.array([applied, 3]), np.zeros(OUTCOME_SIZE)
    totals = np.array([total * 0.25, total * 0.75])
    clipped_totals = None if clipped is None else np.array([clipped])
    body(control, counters, outcome, totals, clipped_totals, np.array([count]), np.array(rates, dtype), **options)
    told = Outcome(*outcome.tolist())
    assert told[2:5] == (control[0], *counters)
    return Control(*control.tolist()), counters.tolist(), told.norm


BODIES = pytest.mark.parametrize("body", [update_control.reference, update_control.cpu], ids=["reference", "cpu"])


def test_signatures():
    check_signatures(update_control)


@BODIES
def test_plain(body):
    control, counters, norm = run(body)
    assert control == Control(1, 1, math.inf, np.float32(0.1), 1, 1, t=1)
    assert counters == [1, 3]
    assert norm == 5


@BODIES
@pytest.mark.parametrize(("count", "divisor"), [(2, 2), (1, 1), (0, 1), (0.5, 0.5)])
def test_count_divides(body, count, divisor):
    control, _, norm = run(body, count=count)
    assert control.scale == 1 / divisor
    assert norm == 5 / divisor


@BODIES
@pytest.mark.parametrize(("total", "scale"), [(25, 0.2), (1, 1), (0.25, 1), (0, 1)])
def test_clip_norm(body, total, scale):
    assert run(body, total, clip_norm=1.0)[0].scale == pytest.approx(scale)


@BODIES
@pytest.mark.parametrize("total", [25, 0])
def test_infinite_limits_change_nothing(body, total):
    """inf / inf is NaN, and NaN beside a gradient of 0 too."""
    assert run(body, total, clip_norm=math.inf, clip_value=math.inf) == run(body, total)


@BODIES
def test_clip_value_comes_before_clip_norm(body):
    # gradient [3, 4] limited to 2 is [2, 2], norm sqrt(8); the update computes clip(scale g, -limit, limit)
    control, _, norm = run(body, clipped=8.0, clip_value=2.0, clip_norm=1.0)
    assert norm == 5
    got = np.clip(np.array([3, 4]) * control.scale, -control.limit, control.limit)
    assert got == pytest.approx(np.array([2, 2]) / math.sqrt(8))


@BODIES
@pytest.mark.parametrize(("total", "count"), [(math.nan, 1), (math.inf, 1), (25, math.nan), (25, -1)])
@pytest.mark.parametrize("options", [{}, {"clip_norm": 1.0}, {"clip_value": 1.0}])
def test_skip(body, total, count, options):
    control, counters, norm = run(body, total, count, applied=4, **options)
    assert control == Control(0, 0, 0, 0, 0, 0)
    assert counters == [4, 4]
    assert not 0 <= norm < math.inf


@BODIES
@pytest.mark.parametrize(
    ("options", "applied"),
    [({}, 0), ({"clip_norm": 1.0}, 1), ({"clip_value": 1.0}, 1), ({"clip_norm": 11.0}, 0), ({"clip_value": 11.0}, 0)],
)
def test_what_is_left_must_fit(body, options, applied):
    assert run(body, total=1e4, largest=10.0, **options)[0].apply == applied


@BODIES
def test_rates_beyond_the_end_are_the_last(body):
    found = [run(body, applied=k, rates=(3, 2, 1))[0].rate for k in range(5)]
    assert found == [3, 2, 1, 1, 1]


@BODIES
def test_bias_corrections(body):
    for applied in (0, 1, 999, 10**6):
        control = run(body, applied=applied, beta1=0.9, beta2=0.999, dtype="float64")[0]
        assert control.correction1 == pytest.approx(1 - 0.9 ** (applied + 1), rel=1e-14)
        assert control.correction2 == pytest.approx(1 - 0.999 ** (applied + 1), rel=1e-14)


def test_many_updates_do_not_lose_the_count():
    """A float32 counter would stop at 2^24."""
    _, counters, _ = run(update_control, applied=1 << 24)
    assert counters[0] == (1 << 24) + 1


def told(body, loss=None, **options):
    """The outcome of a step, where a gradient of norm 5 was summed over 2 targets."""
    outcome = np.zeros(OUTCOME_SIZE)
    arrays = np.zeros(CONTROL_SIZE), np.array([7, 2]), outcome, np.array([25.0]), None, np.array([2.0]), np.array([0.1])
    loss = None if loss is None else np.array([loss])
    body(*arrays, loss=loss, **options)
    return Outcome(*outcome.tolist())


@BODIES
def test_what_the_host_is_told(body):
    assert told(body, loss=3.0) == Outcome(2.5, 1.5, 1, 8, 2, 1, 0, 0)
    assert math.isnan(told(body).loss)
    assert told(body, loss=3.0, error=np.array([1, 0, 0, 0])) == Outcome(2.5, 1.5, 0, 7, 3, 1, 0, 1)
    scale = np.array([4.0, 0.0, 1.0], np.float32)
    assert told(body, loss=3.0, loss_scale=scale, growth_interval=1) == Outcome(0.625, 1.5, 1, 8, 2, 8, 0, 0)


@BODIES
@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_skips_the_step_and_leaves_the_loss_scale(body, loss):
    scale = np.array([8.0, 1.0, 0.0], np.float32)
    found = told(body, loss=loss, loss_scale=scale)
    assert (found.apply, found.applied, found.skipped) == (0, 7, 3)
    assert scale.tolist() == [8, 1, 0]
    assert not math.isfinite(found.loss)


@BODIES
def test_maximize_turns_the_sign_of_the_scale(body):
    control, _, norm = run(body, total=25.0, clip_norm=1.0, maximize=True)
    assert (control.scale, norm, control.limit) == (np.float32(-0.2), 5, math.inf)


@BODIES
def test_the_product_of_nadam_moves_with_applied_steps_only(body):
    mu = [0.9 * (1 - 0.5 * 0.96 ** (t * 0.004)) for t in (1, 2, 3, 4)]
    product = np.array([mu[0] * mu[1]])
    options = {"beta1": 0.9, "momentum_decay": 0.004, "product": product}
    run(body, total=math.nan, applied=2, **options)
    assert product[0] == mu[0] * mu[1]
    control, _, _ = run(body, applied=2, dtype="float64", **options)
    assert product[0] == pytest.approx(math.prod(mu[:3]), rel=1e-15)
    assert control.correction1 == pytest.approx((1 - math.prod(mu[:3])) / (1 - mu[2]), rel=1e-14)
    assert control.extra == pytest.approx(mu[3] / (1 - math.prod(mu)), rel=1e-14)


@BODIES
@pytest.mark.parametrize(
    ("t", "beta2", "expected"), [(5, 0.999, 0), (6, 0.999, 0.0258211128), (10**6, 0.999, 1), (9, 0.5, 0)]
)
def test_rectification(body, t, beta2, expected):
    """Liu et al., 2020, algorithm 2; with beta2 = 0.999 the sixth update is the first rectified."""
    control, _, _ = run(body, applied=t - 1, beta1=0.9, beta2=beta2, rectify=True, dtype="float64")
    assert control.extra == pytest.approx(expected, rel=1e-8)  # of the sixth: in fractions
    assert control.t == t
