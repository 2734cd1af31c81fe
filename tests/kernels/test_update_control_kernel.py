import math

import numpy as np
import pytest
from devices import on_devices

import gpulayers as gl
from gpulayers.ops.update_control import CONTROL_SIZE, OUTCOME_SIZE, Control, update_control

LOSS_SCALE = {"growth_interval": 3, "floor": 2.0}


def state(total, clipped, count, applied, rates, loss_scale, error, loss=None):
    """The array arguments, all float64 where they are floating, in the op's order; then those that have a name."""
    totals = np.array([0.25, 0.5, 0.25]) * total
    clipped_totals = None if clipped is None else np.array([0.5, 0.5, 0]) * clipped
    arrays = (np.full(CONTROL_SIZE, 7.0), np.array([applied, 3]), np.zeros(OUTCOME_SIZE), totals, clipped_totals)
    named = {
        "loss_scale": None if loss_scale is None else np.array(loss_scale, np.float64),
        "loss": None if loss is None else np.array([loss], np.float64),
        "error": None if error is None else np.array([error, 0, 0, 0]),
    }
    return (*arrays, np.array([count], np.float64), np.array(rates, np.float64)), named


def check(
    device, total=25.0, count=1.0, applied=0, rates=(0.1,), clipped=None, loss_scale=None, error=None, loss=None, **rule
):
    """(control, counters, norm, loss_scale) of the kernel, which must be the reference's."""
    rule = rule | (LOSS_SCALE if loss_scale is not None else {})
    arrays, named = state(total, clipped, count, applied, rates, loss_scale, error, loss)
    there = [None if a is None else gl.to_device(a, device) for a in arrays]
    there[0], there[6] = there[0].astype(np.float32), there[6].astype(np.float32)
    there_named = {name: None if a is None else gl.to_device(a, device) for name, a in named.items()}
    if loss_scale is not None:
        there_named["loss_scale"] = there_named["loss_scale"].astype(np.float32)
    update_control.reference(*arrays, **named, **rule)
    update_control.cuda(*there, **there_named, **rule)
    control, counters, outcome = (a.get() for a in there[:3])
    assert control == pytest.approx(arrays[0], rel=1e-6)
    assert counters.tolist() == arrays[1].tolist()
    assert outcome == pytest.approx(arrays[2], rel=1e-14, nan_ok=True)
    scale = None if loss_scale is None else there_named["loss_scale"].get().tolist()
    assert scale is None or scale == named["loss_scale"].tolist()
    return Control(*control.tolist()), counters.tolist(), outcome[0], scale


@on_devices
@pytest.mark.parametrize("count", [2, 1, 0, 0.5])
def test_plain(device, count):
    control, counters, norm, _ = check(device, count=count)
    assert control.scale == 1 / (count or 1)
    assert control.limit == math.inf
    assert counters == [1, 3]
    assert norm == 5 / (count or 1)


@on_devices
@pytest.mark.parametrize("total", [25, 1, 0.25, 0])
@pytest.mark.parametrize("rule", [{"clip_norm": 1.0}, {"clip_value": 1.0}])
def test_clipping(device, total, rule):
    check(device, total, **rule)


@on_devices
def test_clip_value_comes_before_clip_norm(device):
    control, _, norm, _ = check(device, clipped=8.0, clip_value=2.0, clip_norm=1.0)
    assert norm == 5
    got = np.clip(np.array([3, 4]) * control.scale, -control.limit, control.limit)
    assert got == pytest.approx(np.array([2, 2]) / math.sqrt(8))


@on_devices
@pytest.mark.parametrize(("total", "count"), [(math.nan, 1), (math.inf, 1), (25, math.nan), (25, -1)])
@pytest.mark.parametrize("rule", [{}, {"clip_norm": 1.0}, {"clip_value": 1.0}])
def test_skip(device, total, count, rule):
    control, counters, _, _ = check(device, total, count, applied=4, **rule)
    assert control == Control(0, 0, 0, 0, 0, 0)
    assert counters == [4, 4]


@on_devices
@pytest.mark.parametrize("rule", [{}, {"clip_norm": 1.0}, {"clip_value": 1.0}, {"clip_norm": 11.0}])
def test_what_is_left_must_fit(device, rule):
    check(device, total=1e4, largest=10.0, **rule)


@on_devices
@pytest.mark.parametrize("applied", [0, 1, 2, 3, 999, 10**6, 1 << 24])
def test_bias_corrections_and_rates(device, applied):
    check(device, applied=applied, beta1=0.9, beta2=0.999, rates=(3, 2, 1))


@on_devices
@pytest.mark.parametrize("error", [0, 1, 2])
def test_a_bad_target_skips_the_step_and_leaves_the_loss_scale(device, error):
    """H02: the step of a pass that met a target outside the vocabulary is not applied."""
    control, counters, _, scale = check(device, error=error, loss_scale=[8, 1, 0])
    assert control.apply == (error == 0)
    assert counters == ([1, 3] if error == 0 else [0, 4])
    assert scale == ([8, 2, 0] if error == 0 else [8, 1, 0])


@on_devices
@pytest.mark.parametrize("loss", [3.5, math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_skips_the_step_and_leaves_the_loss_scale(device, loss):
    control, counters, _, scale = check(device, loss=loss, count=4, loss_scale=[8, 1, 0])
    assert control.apply == math.isfinite(loss)
    assert counters == ([1, 3] if control.apply else [0, 4])
    assert scale == [8, 1 + control.apply, 0]


@on_devices
@pytest.mark.parametrize(
    ("before", "total", "after"),
    [
        ([8, 0, 0], 1.0, [8, 1, 0]),
        ([8, 2, 0], 1.0, [16, 0, 0]),  # the third good step in a row
        ([2.0**24, 2, 0], 1.0, [2.0**24, 0, 0]),
        ([8, 2, 0], math.inf, [4, 0, 0]),
        ([3, 2, 0], math.inf, [2, 0, 0]),
        ([2, 0, 1], math.nan, [2, 0, 2]),  # at the floor
        ([2, 0, 2], 1.0, [2, 1, 0]),
    ],
)
def test_loss_scale(device, before, total, after):
    control, _, norm, scale = check(device, total, loss_scale=before, clip_norm=10.0)
    assert scale == after
    assert control.scale == (1 / before[0] if control.apply else 0)
    assert not control.apply or norm == 1 / before[0]


@on_devices
@pytest.mark.parametrize(("index", "dtype"), [(0, "float64"), (1, "int32"), (2, "float32"), (5, "float32")])
def test_refused(device, index, dtype):
    arrays, _ = state(1.0, None, 1.0, 0, (1.0,), None, None)
    there = [None if a is None else gl.to_device(a, device) for a in arrays]
    there[0], there[6] = there[0].astype(np.float32), there[6].astype(np.float32)
    there[index] = there[index].astype(dtype)
    with pytest.raises(TypeError, match=f"update_control: expected an array of .*, got {dtype}"):
        update_control.cuda(*there)


@on_devices
@pytest.mark.parametrize("applied", [0, 4, 5, 6, 10**6])
@pytest.mark.parametrize(
    "rule", [{"rectify": True}, {"rectify": True, "beta2": 0.5}, {"maximize": True, "clip_norm": 1.0}]
)
def test_other_rules(device, applied, rule):
    check(device, applied=applied, **{"beta1": 0.9, "beta2": 0.999, **rule})


@on_devices
@pytest.mark.parametrize("total", [25.0, math.nan])
def test_the_product_of_nadam(device, total):
    arrays, named = state(total, None, 1.0, 7, (0.1,), None, None)
    product, rule = np.array([0.3]), {"beta1": 0.9, "beta2": 0.999, "momentum_decay": 0.004}
    there = [None if a is None else gl.to_device(a, device) for a in arrays]
    there[0], there[6] = there[0].astype(np.float32), there[6].astype(np.float32)
    on_device = gl.to_device(product.copy(), device)
    update_control.reference(*arrays, **named, **rule, product=product)
    update_control.cuda(*there, **rule, product=on_device)
    assert there[0].get() == pytest.approx(arrays[0], rel=1e-6)
    assert on_device.get() == pytest.approx(product, rel=1e-14)


@on_devices
@pytest.mark.parametrize("total", [25.0, math.nan])
@pytest.mark.parametrize("rule", [{"rectify": True}, {"momentum_decay": 0.004}, {"clip_norm": 1.0, "maximize": True}])
def test_rows_of_groups(device, total, rule):
    """Each with its betas, momentum_decay and direction; what is the model's is the same in all rows."""
    arrays, _ = state(total, None, 2.0, 7, (0.1,), None, None)
    arrays = (np.full((3, CONTROL_SIZE), 7.0), *arrays[1:])
    groups = np.array([[0.8, 0.6, 0.1, 1.0], [0.5, 0.99, 0.0, 0.0]])
    product = np.array([0.3, 0.2, 0.1]) if "momentum_decay" in rule else None
    there = [None if a is None else gl.to_device(a, device) for a in arrays]
    there[0], there[6] = there[0].astype(np.float32), there[6].astype(np.float32)
    on_device = None if product is None else gl.to_device(product.copy(), device)
    by_hand = [np.copy(a) if isinstance(a, np.ndarray) else a for a in arrays], None if product is None else product + 0
    betas = {"beta1": 0.9, "beta2": 0.999, **rule}
    update_control.reference(*arrays, **betas, product=product, groups=groups)
    update_control.cpu(*by_hand[0], **betas, product=by_hand[1], groups=groups)
    update_control.cuda(*there, **betas, product=on_device, groups=gl.to_device(groups, device))
    for found in (there[0].get(), by_hand[0][0]):
        assert found == pytest.approx(arrays[0], rel=1e-6)
    if product is not None:
        assert on_device.get() == pytest.approx(product, rel=1e-14)
        assert by_hand[1] == pytest.approx(product, rel=1e-14)
    if math.isfinite(total):
        rows = [Control(*row) for row in arrays[0].tolist()]
        sign = -1 if rule.get("maximize") else 1
        assert [row.scale * sign for row in rows] == [
            rows[0].scale * sign,
            -abs(rows[0].scale) * sign,
            abs(rows[0].scale) * sign,
        ]
        assert len({(row.apply, row.limit, row.rate, row.t) for row in rows}) == 1
        assert rows[1].correction2 == pytest.approx(1 - 0.6**8)
