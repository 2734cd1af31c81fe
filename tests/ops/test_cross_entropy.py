"""Cross-entropy: every option, both bodies, worked numbers and reported faults."""

import numpy as np
import pytest
from contract import check_op, check_signatures
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayers.gradcheck import gradcheck
from gpulayers.ops.cross_entropy import count_targets, cross_entropy, cross_entropy_inplace
from gpulayers.ops.cross_entropy_rows import cross_entropy_rows

IGNORE = -100
float32 = np.float32


def batch(rng, rows, cols, ignored=0.3, spread=3.0):
    logits = rng.normal(0, spread, (rows, cols)).astype(float32)
    targets = rng.integers(0, cols, rows)
    targets[rng.random(rows) < ignored] = IGNORE
    return logits, targets


# ------------------------------------------------------------------------------------------- bodies and gradients


@pytest.mark.parametrize("vocabulary", [2, 3, 5, 7, 31, 33, 127, 129, 1023, 1025, 50257])
@pytest.mark.parametrize("options", [(None, 0.0, 0.0), ("weight", 0.1, 1e-2)])
def test_bodies_agree(vocabulary, options, rng):
    """Also H12 (verl #2899): a vocabulary that is no multiple of any tile."""
    logits, targets = batch(rng, 13, vocabulary)
    weight = rng.uniform(0.5, 2, vocabulary).astype(float32) if options[0] else None
    for offset in (0, -200, 50):  # all negative and all large rows too
        check_op(
            cross_entropy_rows,
            logits + float32(offset),
            targets,
            weight,
            np.array(0.25, float32),
            IGNORE,
            *options[1:],
            False,
        )


def test_one_class(rng):
    """The only class is certain: loss and gradient are 0 but for rounding."""
    losses, gradient = cross_entropy(rng.normal(0, 30, (50, 1)).astype(float32), np.zeros(50, int), reduction="none")
    assert np.abs(losses).max() < 2e-7
    assert np.abs(gradient).max() < 2e-7


def test_signatures():
    check_signatures(cross_entropy_rows)


def test_many_blocks(rng):
    """More rows than one block holds, some blocks ignored altogether, some that need the maximum subtracted."""
    logits, targets = batch(rng, 2000, 1023)
    logits[700:] -= 300
    targets[300:900] = IGNORE
    check_op(cross_entropy_rows, logits, targets, None, None, IGNORE, 0.0, 0.0, False)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("z_loss", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradient(reduction, label_smoothing, z_loss, weighted, rng):
    targets = np.array([[0, IGNORE, 4], [3, 3, 1]])
    weight = rng.uniform(0.2, 2, 5) if weighted else None  # an option: constant, so it has no gradient

    def loss(logits):
        return cross_entropy(
            logits, targets, weight=weight, label_smoothing=label_smoothing, z_loss=z_loss, reduction=reduction
        )

    gradcheck(loss, rng.normal(0, 2, (2, 3, 5)))


dtypes = st.sampled_from(["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])


@settings(deadline=None, max_examples=80)
@given(
    rows=st.integers(0, 9),
    cols=st.sampled_from([1, 2, 7, 33, 100]),
    dtype=dtypes,
    layout=st.sampled_from(["plain", "transposed", "every other", "reversed"]),
    ignored=st.sampled_from([0.0, 0.5, 1.0]),
    smoothing=st.sampled_from([0.0, 0.2, 1.0]),
    z_loss=st.sampled_from([0.0, 0.3]),
    weighted=st.booleans(),
    reduction=st.sampled_from(["mean", "sum", "none"]),
    inplace=st.booleans(),
    seed=st.integers(0, 1 << 32),
)
def test_any_call(rows, cols, dtype, layout, ignored, smoothing, z_loss, weighted, reduction, inplace, seed):
    """The float32 call is the float64 call on the same numbers, whatever the layout; nothing else is written."""
    rng = np.random.default_rng(seed)
    ignore_index = 101 if np.dtype(dtype).kind == "u" else -100
    logits = rng.normal(rng.normal(0, 20), rng.choice([0.1, 3, 30]), (rows, cols)).astype(float32)
    logits = {
        "plain": logits,
        "transposed": np.ascontiguousarray(logits.T).T,
        "every other": np.repeat(logits, 2, axis=1)[:, ::2],
        "reversed": logits[::-1, ::-1].copy()[::-1, ::-1],
    }[layout]
    targets = rng.integers(0, cols, rows).astype(dtype)
    targets[rng.random(rows) < ignored] = ignore_index
    weight = rng.choice([0, 0.5, 2], cols).astype(float32) if weighted else None
    options = {
        "ignore_index": ignore_index, "label_smoothing": smoothing, "z_loss": z_loss, "reduction": reduction
    }  # fmt: skip
    wide = None if weight is None else weight.astype(np.float64)
    loss64, gradient64 = cross_entropy(logits.astype(np.float64), targets, weight=wide, **options)
    before = logits.copy()
    if inplace:
        memory = np.ascontiguousarray(logits)
        loss, gradient = cross_entropy_inplace(memory := memory.copy(), targets, weight=weight, **options)
        assert np.shares_memory(gradient, memory) or memory.size == 0
    else:
        loss, gradient = cross_entropy(logits, targets, weight=weight, **options)
    assert np.array_equal(logits, before)
    assert loss.dtype == gradient.dtype == float32
    # The scale of a gradient is its probability, of a loss its larger part: both may cancel to nothing (one class).
    assert np.allclose(loss, loss64, rtol=2e-6, atol=1e-6)
    assert np.allclose(gradient, gradient64, rtol=2e-6, atol=1e-6 * max(1, np.abs(gradient64).max(initial=0)))


@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_inplace_writes_the_same_gradient(body, rng):
    logits, targets = batch(rng, 300, 1023)
    run = cross_entropy_rows.bodies[body]
    losses, gradient = run(logits, targets, None, None, IGNORE, 0.1, 0.1, False)
    memory = logits.copy()
    losses2, gradient2 = run(memory, targets, None, None, IGNORE, 0.1, 0.1, True)
    assert gradient2 is memory
    assert np.array_equal(losses, losses2)
    assert np.array_equal(gradient, gradient2)


# ------------------------------------------------------------------------------------------------- values


def test_worked_numbers():
    """Probabilities with targets 1 and 2: losses, their mean, and each row's gradient before the division."""
    probabilities = np.array([[0.320, 0.333, 0.347], [0.301, 0.332, 0.367]])
    targets = np.array([1, 2])
    losses, gradient = cross_entropy(np.log(probabilities), targets, reduction="none")
    assert np.allclose(losses, [1.0996, 1.0024], atol=5e-5)
    assert np.allclose(gradient, [[0.320, -0.667, 0.347], [0.301, 0.332, -0.633]], atol=1e-9)
    loss, mean_gradient = cross_entropy(np.log(probabilities), targets)
    assert np.isclose(loss, 1.0510, atol=5e-5)
    assert np.allclose(mean_gradient, gradient / 2)


def test_against_pytorch():
    """Values of torch.nn.functional.cross_entropy (2.13, float64) with weights, smoothing and an ignored row."""
    logits = np.array([[1.0, -2.0, 0.5, 3.0], [0.0, 0.25, -1.0, 2.0], [2.0, 2.0, 2.0, -5.0]])
    targets, weight = np.array([3, IGNORE, 1]), np.array([1.0, 2.0, 0.5, 0.25])
    loss, gradient = cross_entropy(logits, targets, weight=weight, label_smoothing=0.2)
    assert np.allclose([loss, *gradient[0]], PYTORCH, rtol=1e-12)


PYTORCH = [
    1.2411937440366427,
    -0.0031824096599226896,
    -0.04349650799469393,
    0.00043711896310531036,
    0.046241798691511314,
]


def test_z_loss_is_the_square_of_the_log_sum(rng):
    logits = rng.normal(size=(4, 6))
    targets = np.array([0, IGNORE, 2, 5])
    lse = np.log(np.exp(logits).sum(axis=1))[targets != IGNORE]
    plain, _ = cross_entropy(logits, targets)
    loss, _ = cross_entropy(logits, targets, z_loss=0.01)
    assert np.isclose(loss - plain, 0.01 * (lse**2).sum() / 3)


def test_h01_every_target_ignored():
    """pytorch #70348: the mean over no target is 0, with gradient 0, not NaN."""
    logits, targets = np.array([[1, 2, 3], [0, 0, 0]], float32), np.array([-100, -100])
    for reduction in ("mean", "sum", "none"):
        loss, gradient = cross_entropy(logits, targets, reduction=reduction)
        assert not np.any(loss)
        assert not gradient.any()
    assert count_targets(targets) == 0


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_ignored_row_is_zero_whatever_it_holds(poison):
    for dtype in (np.float32, np.float64):
        logits = np.array([[poison] * 3, [1, 2, 3]], dtype)
        loss, gradient = cross_entropy(logits, np.array([IGNORE, 0]), label_smoothing=0.1, z_loss=0.1)
        assert np.isfinite(loss)
        assert not gradient[0].any()
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_bad_row_stays_alone(poison):
    for dtype in (np.float32, np.float64):
        logits = np.array([[poison, 2, 3], [1, 2, 3]], dtype)
        losses, gradient = cross_entropy(logits, np.array([1, 0]), reduction="none")
        assert np.isnan(losses[0])
        assert np.isclose(losses[1], 2.407606)
        assert np.isnan(gradient[0]).any()
        assert np.isfinite(gradient[1]).all()


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(("targets", "value", "row"), [([3, 0], 3, "0"), ([0, -1], -1, "1"), ([0, 3], 3, "1")])
def test_h02_target_out_of_range(inplace, targets, value, row):
    """tensorflow #3739, chainer #4648: named, before anything is written."""
    logits = np.array([[0.1, 0.2, 0.3], [1, 2, 3]], float32)
    before = logits.copy()
    call = cross_entropy_inplace if inplace else cross_entropy
    with pytest.raises(ValueError, match=rf"target {value} in row {row} is outside 0\.\.2 .*-100"):
        call(logits, np.array(targets))
    assert np.array_equal(logits, before)


def test_h02_unsigned_and_batched_targets():
    logits = np.zeros((2, 2, 300), float32)
    targets = np.array([[0, 1], [2, 300]], np.uint16)
    with pytest.raises(ValueError, match=r"target 300 in row \(1, 1\) is outside 0\.\.299"):
        cross_entropy(logits, targets)
    huge = np.array([[0, 1], [2, 2**64 - 100]], np.uint64)  # not -100, though it has the same bits
    with pytest.raises(ValueError, match=r"target 18446744073709551516 in row \(1, 1\)"):
        cross_entropy(logits, huge)


@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_h02_bodies_never_read_elsewhere(body):
    """Where nobody looked before (a GPU), the loss of a bad row is NaN and its gradient 0; the others do not notice."""
    logits = np.array([[0.1, 0.2, 0.3], [1, 2, 3]], float32)
    for bad in (3, -1, 1 << 40):
        losses, gradient = cross_entropy_rows.bodies[body](
            logits, np.array([bad, 0]), None, None, IGNORE, 0.0, 0.0, False
        )
        assert np.isnan(losses[0])
        assert not gradient[0].any()
        assert np.isclose(losses[1], 2.407606)
        assert np.isfinite(gradient[1]).all()


@pytest.mark.parametrize(
    ("logits", "target", "loss", "gradient"),
    [
        ([1000, 0, -1000], 1, 1000, [1, -1, 0]),
        ([89, 0], 1, 89, [1, -1]),
        ([89, 0], 0, 0, [0, 0]),
        ([1e38, -1e38], 0, 0, [0, 0]),
        ([-1e4, -1e4], 0, np.log(2), [-0.5, 0.5]),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_h03_extremes(logits, target, loss, gradient, dtype):
    """No overflow, and no log of a probability that has rounded to zero."""
    found, dlogits = cross_entropy(np.array([logits], dtype), np.array([target]))
    assert np.isclose(found, loss, rtol=1e-6)
    assert np.allclose(dlogits, [gradient], atol=1e-30)


def test_h03_float16():
    logits = np.array([[12, 0]], np.float16)
    loss, gradient = cross_entropy(logits, np.array([1]))
    assert loss.dtype == float32
    assert gradient.dtype == np.float16
    assert np.isclose(loss, 12.000006)
    assert gradient.tolist() == [[1, -1]]


def test_small_losses_keep_their_digits():
    """A confident row: log(1 + 2e-6), which lse - z would give as a multiple of 1e-6."""
    logits = np.array([[14.5, 1.4, 1.3]], float32)
    exact, _ = cross_entropy(logits.astype(np.float64), np.array([0]))
    found, _ = cross_entropy(logits, np.array([0]))
    assert found >= 0
    assert abs(found - exact) < 1.3e-7


def test_impossible_class():
    """A logit of -inf is probability 0: no gradient; as the target it costs infinity, unless its weight is 0."""
    for dtype in (np.float32, np.float64):
        logits = np.array([[0, -np.inf, 0]], dtype)
        loss, gradient = cross_entropy(logits, np.array([0]))
        assert np.isclose(loss, np.log(2))
        assert np.allclose(gradient, [[-0.5, 0, 0.5]])
        loss, gradient = cross_entropy(logits, np.array([1]))
        assert loss == np.inf
        assert np.allclose(gradient, [[0.5, -1, 0.5]])
        weight = np.array([1, 0, 1], dtype)
        loss, gradient = cross_entropy(logits, np.array([0]), weight=weight, label_smoothing=0.3)
        assert np.isclose(loss, (0.7 + 0.2) * np.log(2))
        assert np.isfinite(gradient).all()


def test_h09_strides():
    """cupy #9233: a transposed view is read by its strides, in any layout."""
    logits = np.array([[1, 4], [2, 5], [3, 6]], float32).T
    losses, _ = cross_entropy(logits, np.array([0, 2]), reduction="none")
    assert np.allclose(losses, [2.407606, 0.407606])
    assert np.isclose(cross_entropy(logits, np.array([0, 9, 2, 9])[::2])[0], 1.407606)


def test_h09_swapped_axes(rng):
    logits = rng.normal(size=(4, 3, 5)).astype(float32)
    targets = rng.integers(0, 5, (4, 3))
    loss, gradient = cross_entropy(logits, targets)
    loss2, gradient2 = cross_entropy(logits.transpose(1, 0, 2), targets.T)
    assert np.isclose(loss, loss2)
    assert np.allclose(gradient.transpose(1, 0, 2), gradient2)


def test_h12_phantom_logits():
    """verl #2899: padding up to a tile must not count as exp(0)."""
    loss, gradient = cross_entropy(np.array([[-3, -4, -5, -6, -7]], float32), np.array([0]))
    assert np.isclose(loss, 0.4519144)
    assert np.allclose(gradient, [[-0.3635914, 0.2341217, 0.0861285, 0.0316849, 0.0116562]], atol=1e-7)


@pytest.mark.parametrize("shape", [(0, 5), (2, 0, 5), (0, 0)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_h13_empty_batch(shape, reduction):
    for call in (cross_entropy, cross_entropy_inplace):
        loss, gradient = call(np.zeros(shape, float32), np.zeros(shape[:-1], int), reduction=reduction)
        assert gradient.shape == shape
        assert np.shape(loss) == (shape[:-1] if reduction == "none" else ())
        assert not np.any(loss)


def test_no_classes():
    loss, gradient = cross_entropy(np.zeros((2, 0), float32), np.array([IGNORE, IGNORE]))
    assert loss == 0
    assert gradient.shape == (2, 0)
    with pytest.raises(ValueError, match="target 0 in row 1"):
        cross_entropy(np.zeros((2, 0), float32), np.array([IGNORE, 0]))


def test_one_row_without_batch():
    loss, gradient = cross_entropy(np.array([1, 2, 3], float32), np.array(0))
    assert np.isclose(loss, 2.407606)
    assert gradient.shape == (3,)


@pytest.mark.parametrize("split", [[4], [1, 3], [2, 2], [1, 1, 1, 1]])
def test_h23_micro_batches(split):
    """transformers #34191: sums and counts add up, averages of averages do not."""
    logits = np.array([[0, 0], [0, 3], [0, 3], [0, 3]], float32)
    targets = np.array([0, 1, 1, 1])
    total = count = 0.0
    gradients = []
    for rows in np.split(np.arange(4), np.cumsum(split)[:-1]):
        loss, gradient = cross_entropy(logits[rows], targets[rows], reduction="sum")
        total, count = total + loss, count + count_targets(targets[rows])
        gradients.append(gradient)
    assert np.isclose(total / count, 0.2097273)
    right = [[-0.125, 0.125], *[[0.0118565, -0.0118565]] * 3]
    assert np.allclose(np.concatenate(gradients) / count, right, atol=1e-7)


def test_count_targets():
    targets = np.array([[0, 2], [IGNORE, 1]], np.int16)
    weight = np.array([1, 2, 0.5], float32)
    assert count_targets(targets) == 3
    assert count_targets(targets, ignore_index=2) == 3
    assert count_targets(targets, weight=weight) == 3.5
    assert count_targets(targets).dtype == count_targets(targets, weight=weight).dtype == float32
    with pytest.raises(ValueError, match=r"target 2 in row \(0, 1\) is outside 0\.\.1"):
        count_targets(targets, weight=weight[:2])


def test_all_weights_zero():
    """The sum of weights is 0 though targets count: 0, as for no target at all."""
    loss, gradient = cross_entropy(np.ones((2, 3), float32), np.array([0, 1]), weight=np.zeros(3, float32))
    assert loss == 0
    assert not gradient.any()


def test_loss_is_a_scalar_of_the_module():
    loss, _ = cross_entropy(np.zeros((2, 3), float32), np.array([0, 1]))
    assert type(loss) is np.float32
    loss, _ = cross_entropy(np.zeros((2, 3)), np.array([0, 1]))
    assert type(loss) is np.float64


def test_double_weights_do_not_widen_a_float32_step():
    loss, gradient = cross_entropy(
        np.zeros((2, 3), float32), np.array([0, 1]), weight=np.array([1.0, 2.0, 3.0]), label_smoothing=0.1, z_loss=0.1
    )
    assert loss.dtype == gradient.dtype == float32


# ------------------------------------------------------------------------------------------------- refusals

ROWS, IDS = np.zeros((2, 3), float32), np.array([0, 1])


@pytest.mark.parametrize(
    ("logits", "targets", "options", "error", "message"),
    [
        (ROWS.astype(int), IDS, {}, TypeError, "takes floating logits of shape .* got int64"),
        (np.array(1.0), np.array(0), {}, TypeError, "takes floating logits"),
        (ROWS, IDS.astype(float32), {}, TypeError, "takes integer targets, got float32"),
        (ROWS, IDS.astype(bool), {}, TypeError, "takes integer targets, got bool"),
        (ROWS, IDS[:1], {}, ValueError, r"logits \(2, 3\) need targets \(2,\), got \(1,\)"),
        (ROWS, IDS, {"weight": np.ones(4, float32)}, ValueError, r"weight \(3,\), got float32 \(4,\)"),
        (ROWS, IDS, {"weight": np.ones(3, int)}, ValueError, r"a floating weight \(3,\), got int64"),
        (ROWS, IDS, {"label_smoothing": 1.5}, ValueError, r"label_smoothing must be in 0\.\.1, got 1\.5"),
        (ROWS, IDS, {"z_loss": -1}, ValueError, "z_loss must be 0 or more, got -1"),
        (ROWS, IDS, {"reduction": "avg"}, ValueError, "one of mean, sum, none, got 'avg'"),
        ([[1.0]], IDS, {}, TypeError, "expected an array"),
    ],
)
@pytest.mark.parametrize("call", [cross_entropy, cross_entropy_inplace])
def test_refusals(logits, targets, options, error, message, call):
    with pytest.raises(error, match=message):
        call(logits, targets, **options)


def test_inplace_refuses_what_it_cannot_write():
    with pytest.raises(ValueError, match="contiguous logits, got strides"):
        cross_entropy_inplace(np.zeros((3, 2), float32).T, IDS)
    frozen = ROWS.copy()
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        cross_entropy_inplace(frozen, IDS)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("call", [cross_entropy, cross_entropy_inplace])
def test_scale_is_of_the_gradient_alone(reduction, call, rng):
    logits, targets = rng.normal(size=(3, 4, 5)).astype(np.float32), rng.integers(0, 5, (3, 4))
    loss, dlogits = cross_entropy(logits, targets, reduction=reduction)
    scaled_loss, scaled = call(logits.copy(), targets, reduction=reduction, scale=np.array(1024, np.float32))
    assert np.array_equal(loss, scaled_loss)
    assert np.array_equal(1024 * dlogits, scaled)  # a power of two changes no digit


def test_scale_must_be_a_scalar():
    with pytest.raises(ValueError, match=r"cross_entropy: scale must be a scalar array, got shape \(2,\)"):
        cross_entropy(np.zeros((1, 2), np.float32), np.zeros(1, int), scale=np.ones(2, np.float32))


def test_an_infinite_loss_that_counts_for_nothing_is_zero():
    logits = np.array([[0, -np.inf], [1, 2]], np.float32)
    loss, dlogits = cross_entropy(logits, np.array([1, 0]), weight=np.zeros(2, np.float32), z_loss=0.1)
    assert (float(loss), loss.dtype) == (0, np.float32)
    assert not dlogits.any()
