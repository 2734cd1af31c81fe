"""Nothing is left out of the certificate: every op, layer and gradient has its cases."""

import inspect
from collections import Counter
from types import SimpleNamespace

import pytest

import gpulayers
from gpulayers.layers import __all__ as exported
from gpulayers.ops.op import Op
from gpulayers.verify import discover, find_layers, find_ops
from gpulayers.verify.case import GradientCase, LayerCase, OpCase
from gpulayers.verify.certificate import collect, covers

# The optimizer's: nothing is derived through them.
NO_GRADIENT = {
    *("adam", "batchnorm_update", "sgd", "sum_of_squares", "update_control"),
    *("amsgrad", "nadam", "radam", "adamax", "lion", "lamb"),
    *("rmsprop", "adagrad", "adadelta", "rprop", "asgd", "muon"),
    *("adafactor", "follow", "move", "newton_schulz"),
}


@pytest.fixture(scope="module")
def cases():
    return collect()


def test_every_op_is_found():
    ops = find_ops()
    assert {"layernorm", "matmul", "cross_entropy", "adam", "masked_softmax_backward"} <= ops.keys()
    assert all(name == op.name for name, op in ops.items())


def test_every_layer_is_found():
    assert set(find_layers()) == set(exported) - {"Layer"}


def test_two_ops_of_one_name_are_refused(monkeypatch):
    modules = [SimpleNamespace(__name__="m", a=Op("same", abs), b=Op("same", abs))]
    monkeypatch.setattr(discover, "modules", lambda package: modules)
    with pytest.raises(ValueError, match="two ops are called 'same'"):
        find_ops()


def test_every_op_has_cases(cases):
    missing = find_ops().keys() - {case.subject for case in cases if isinstance(case, OpCase)}
    assert not missing, f"no cases for {missing}: add them in gpulayers/verify/cases (docs/verify.md)"


def test_every_layer_has_cases(cases):
    missing = find_layers().keys() - {case.subject for case in cases if isinstance(case, LayerCase)}
    assert not missing, f"no cases for {missing}: add them in gpulayers/verify/cases/layers.py (docs/verify.md)"


def test_every_gradient_is_checked_by_finite_differences(cases):
    checked = {name for case in cases if isinstance(case, GradientCase) for name in covers(case)}
    missing = find_ops().keys() - checked - NO_GRADIENT
    assert not missing, f"no GradientCase for {missing}"


@pytest.mark.parametrize("word", ["1", "5", "50257", "transposed view", "float16 extremes", "empty batch"])
@pytest.mark.parametrize("op", ["layernorm", "gelu", "softmax", "cross_entropy"])
def test_what_hurts_is_there(cases, op, word):
    words = [word, f"V {word}", f"D {word}"]
    assert any(case.name.partition(",")[0] in words for case in cases if case.subject == op)


def test_masks_and_means(cases):
    names = {(case.subject, case.name.partition(",")[0]) for case in cases}
    assert {
        ("masked_softmax", "all masked"),
        ("attention", "all masked"),
        ("MultiHeadAttention", "all masked"),
    } <= names
    assert {("cross_entropy", "all ignored"), ("layernorm", "large mean 100000")} <= names


def test_no_case_comes_twice(cases):
    counts = Counter((type(case), case.subject, case.name) for case in cases)
    assert [key for key, count in counts.items() if count > 1] == []


def test_cases_are_the_same_every_time(cases):
    for one, other in zip(cases, collect(), strict=True):
        if isinstance(one, OpCase):
            arrays = [[getattr(a, "array", a) for a in case.args] for case in (one, other)]
            for a, b in zip(*arrays, strict=True):
                assert not hasattr(a, "tobytes") or a.tobytes() == b.tobytes()


def test_a_wider_tolerance_has_a_reason():
    with pytest.raises(ValueError, match="a wider tolerance needs a reason"):
        OpCase(op=Op("x", abs), name="y", args=(), factor=2)


def test_quick_is_a_part(cases):
    quick = collect(quick=True)
    assert 0 < len(quick) < len(cases)
    assert not any(case.large for case in quick)


def test_the_table_of_tolerances_is_the_packages_own():
    import tolerances

    assert inspect.getmodule(tolerances.error).__name__ == f"{gpulayers.__name__}.verify.tolerances"
