"""One row: right bodies pass, and every kind of fault fails that row and no other."""

import dataclasses
import re

import numpy as np
import pytest

import gpulayers as gl
from gpulayers.layers import linear
from gpulayers.ops.layernorm import layernorm
from gpulayers.ops.op import Op
from gpulayers.ops.relu import relu
from gpulayers.verify import ops, tolerances
from gpulayers.verify.case import Arg, Function, GradientCase, LayerCase, OpCase, exact, transposed, written
from gpulayers.verify.certificate import check
from gpulayers.verify.layers import compare
from gpulayers.verify.ops import Comparison, call
from gpulayers.verify.result import Worst, Wrong


def double(x):
    return x * 2


def case(op=None, args=None, **options):
    args = (np.arange(6, dtype=np.float32).reshape(2, 3),) if args is None else args
    return OpCase(op=op or Op("double", double, cpu=double), name="c", args=args, **options)


def rows(one, device="numpy"):
    return {(row.body, row.dtype): row for row in check(one, device)}


def test_right_bodies_pass():
    found = rows(case())
    assert found.keys() == {
        (b, d) for b, d in [("cpu", "float32")] + [("reference", d) for d in tolerances.RELATIVE if d != "float64"]
    }
    assert all(row.passed and row.error <= row.tolerance == tolerances.RELATIVE[row.dtype] for row in found.values())


def only_cpu_fails(body, **options):
    """The note of the one row that fails."""
    found = rows(case(Op("double", double, cpu=body), **options))
    failed = [key for key, row in found.items() if not row.passed]
    assert failed == [("cpu", "float32")]
    return found["cpu", "float32"]


def test_a_wrong_value_fails():
    row = only_cpu_fails(lambda x: x * np.float32(2.001))
    assert row.error == pytest.approx(5e-4, rel=1e-2)
    assert row.tolerance == tolerances.RELATIVE["float32"]


@pytest.mark.parametrize(
    ("body", "note"),
    [
        (lambda x: x.astype(np.float64) * 2, "results of type float64; the reference gives float32"),
        (lambda x: (x * 2)[:1], r"ValueError: shape \(1, 3\), expected \(2, 3\)"),
        (lambda x: (x * 2, x), "results of type float32, float32; the reference gives float32"),
        (lambda x: None, "results of type ; the reference gives float32"),
        (lambda x: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda x: np.multiply(x, 2, out=x), "it wrote an argument that it may only read"),
    ],
)
def test_another_fault_fails_with_a_note(body, note):
    row = only_cpu_fails(body)
    assert np.isnan(row.error)
    assert re.fullmatch(note, row.note)


def test_nan_is_never_right():
    row = only_cpu_fails(lambda x: x * np.float32(np.nan))
    assert np.isnan(row.error)


def test_zeros_must_be_exact():
    almost = Op("double", double, cpu=lambda x: x * 2 + np.float32(1e-9))
    assert rows(case(almost))["cpu", "float32"].passed
    row = rows(case(almost, zeros=True))["cpu", "float32"]
    assert not row.passed
    assert row.note == "a value that must be exactly 0 is not"


def test_integers_must_be_equal():
    count = Op("count", lambda x: np.array([10**6]), cpu=lambda x: np.array([10**6 + 1]))
    assert not rows(case(count))["cpu", "float32"].passed


def test_a_fault_in_a_wide_statistic_is_seen_beside_half_outputs():
    """A float32 statistic among float16 activations is held to float32."""
    x = np.float32([[1, 2, 3, 4.5]])

    def sloppy(x, weight, bias, eps):
        y, mean, rstd = layernorm.reference(x, weight, bias, eps)
        return y, mean, rstd * np.float32(1 + 1e-4)

    worse = OpCase(op=dataclasses.replace(layernorm, cpu=None), name="c", args=(x, None, None, 1e-5))
    assert all(row.passed for row in check(worse, "numpy"))
    worst = Comparison(worse, "float16").with_body(sloppy, "numpy")
    assert worst.error > worst.tolerance == tolerances.RELATIVE["float32"]


def test_arguments_arrive_as_the_case_says():
    seen = {}

    def body(x, statistic, view, out, ids, *, again):
        seen.update(locals())
        out[...] = x
        return ids

    x, out = np.ones((2, 3), np.float32), written(np.zeros((2, 3), np.float32))
    one = case(
        Op("seen", body),
        (x, exact(np.ones(2, np.float32)), transposed(np.ones((3, 2), np.float32)), out, np.arange(2)),
        options={"again": out},
    )
    found = call(one, "float16", body, "numpy")
    assert [a.dtype.name for a in found] == ["int64", "float16", "float16"]
    assert seen["x"].dtype == seen["view"].dtype == np.float16
    assert seen["statistic"].dtype == np.float32
    assert seen["view"].shape == (3, 2)
    assert not seen["view"].flags.c_contiguous
    assert seen["again"] is seen["out"]
    assert x.dtype == np.float32
    assert not out.array.any()
    call(one, "float16", body, "numpy", wide=True)
    assert seen["x"].dtype == seen["statistic"].dtype == np.float64


def test_a_view_is_made_on_the_device():
    view = Arg(np.arange(6, dtype=np.float32), view=lambda a: a[::2])
    seen = []
    call(case(args=(view,)), "float32", lambda x: seen.append(x.strides), "numpy")
    assert seen == [(8,)]


# ------------------------------------------------------------------------------------------ gradients and layers


def square(wrong=0.0):
    return Function(lambda x: (x * x, x), lambda dy, x: (2 + wrong) * x * dy)


def test_a_gradient_passes_or_says_where():
    for wrong in (0.0, 1e-3):
        (row,) = check(GradientCase(ops=(relu,), name="c", function=square(wrong), inputs=(np.ones(3),)), "numpy")
        assert row.passed == (not wrong)
        assert (row.kind, row.subject, row.body, row.dtype) == ("gradient", "relu", "backward", "float64")
    assert "backward is not the derivative of forward" in row.note


class Faulty(gl.Layer):
    """y = 2 x, wrong where it is told to be."""

    forward_factor = backward_factor = 2.0
    dtype = None

    def forward(self, x, train=None):
        factor = self.forward_factor if x.dtype == np.float32 else 2.0
        return x * x.dtype.type(factor), None

    def backward(self, dy, saved):
        dx = dy * dy.dtype.type(self.backward_factor)
        return dx if self.dtype is None or dy.dtype == np.float64 else dx.astype(self.dtype)


@pytest.mark.parametrize(
    ("faults", "failed"),
    [
        ({}, set()),
        ({"forward_factor": 2.1}, {("numpy", "float32")}),
        ({"backward_factor": 2.1}, {("backward", "float64")}),
        ({"dtype": np.float64}, {("numpy", "float32")}),
    ],
)
def test_a_layer(faults, failed):
    kind = type("Changed", (Faulty,), faults)
    one = LayerCase(layer=kind, name="c", make=kind, inputs=(np.ones((2, 3)),))
    found = rows(one)
    assert found.keys() == {("backward", "float64"), ("numpy", "float32")}
    assert {key for key, row in found.items() if not row.passed} == failed


def test_all_gradients_of_a_layer_are_compared(monkeypatch):
    one = LayerCase(
        layer=gl.Linear,
        name="c",
        make=lambda: gl.Linear(3, 2, rng=0),
        inputs=(np.random.default_rng(0).normal(size=(4, 3)),),
    )
    assert compare(one, "numpy", "float32").error < 1e-6
    sum_rows = linear.sum_rows
    monkeypatch.setattr(linear, "sum_rows", lambda x: sum_rows(x) * x.dtype.type(1 + (x.dtype == np.float32)))
    assert compare(one, "numpy", "float32").error > 0.1


def test_the_worst_result_counts():
    worst = Worst().with_result(1e-7, 2e-6).with_result(1e-3, 2e-3).with_result(1e-6, 4e-6)
    assert (worst.error, worst.tolerance) == (1e-3, 2e-3)
    nan = worst.with_result(float("nan"), 2e-6)
    assert np.isnan(nan.error)
    assert np.isnan(nan.with_result(1.0, 2e-6).error)


def test_a_gpu_must_give_the_same_bits_twice(monkeypatch):
    monkeypatch.setattr(ops, "to_device", lambda array, device: array)  # arrays that only claim to be on a GPU
    one = case()
    assert Comparison(one, "float32").with_body(double, "cupy").error == 0
    runs = iter([np.float32(2), np.float32(2) + np.float32(2e-7)])
    with pytest.raises(Wrong, match="a second run gave other bits"):
        Comparison(one, "float32").with_body(lambda x: x * next(runs), "cupy")
