"""Every loss over a grid of its options beside PyTorch, in float64: `pytest -m peer`.

What the default run holds to PyTorch are chosen cases (test_vectors_losses.py); here are all combinations.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import gpulayers as gl

pytestmark = pytest.mark.peer

REDUCTIONS = ("mean", "sum", "none")


class Call(NamedTuple):
    """inputs: those with a gradient. ours, theirs: functions of them; the second gets tensors, and torch first."""

    inputs: tuple[np.ndarray, ...]
    ours: Callable[..., tuple[Any, Any]]
    theirs: Callable[..., Any]


def both(name: str, inputs: tuple[np.ndarray, ...], target: np.ndarray, ours: dict, theirs: dict | None = None) -> Call:
    """The loss of one name in both libraries. theirs: options where they are called otherwise, arrays among them."""

    def their_loss(torch: Any, *tensors: Any) -> Any:
        options = {k: torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in (theirs or ours).items()}
        return getattr(torch.nn.functional, name)(*tensors, torch.tensor(target), **options)

    return Call(inputs, lambda *x: getattr(gl, name)(*x, target, **ours), their_loss)


def without_none(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def class_losses(rng: np.random.Generator) -> Iterator[Call]:
    for shape in ((6, 5), (2, 5, 3), (2, 5, 3, 2)):
        x, C = rng.normal(size=shape) * 3, shape[1]
        ids = rng.integers(0, C, (shape[0], *shape[2:]))
        some = ids.copy()
        some.flat[0] = -100
        weight, p = rng.uniform(0.1, 2, C), softmax(rng.normal(size=shape))
        for reduction, w, smoothing in itertools.product(REDUCTIONS, (None, weight), (0.0, 0.1, 1.0)):
            options = without_none(weight=w, reduction=reduction, label_smoothing=smoothing)
            for target, ignore in ((ids, -100), (some, -100), (ids, int(ids.flat[0]))):
                theirs = {**options, "ignore_index": ignore}
                yield both("cross_entropy", (x,), target, {**theirs, "axis": 1}, theirs)
                if smoothing == 0:
                    plain = without_none(weight=w, reduction=reduction, ignore_index=ignore)
                    yield both("nll_loss", (np.log(p),), target, {**plain, "axis": 1}, plain)
            yield both("cross_entropy", (x,), p, {**options, "axis": 1}, options)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x)
    return e / e.sum(1, keepdims=True)


def two_class_losses(rng: np.random.Generator) -> Iterator[Call]:
    for shape in ((7,), (4, 3), (2, 3, 4)):
        t, p, x = rng.uniform(size=shape), rng.uniform(0.01, 0.99, shape), rng.normal(size=shape) * 4
        weights = (None, rng.uniform(0.1, 2, shape), rng.uniform(0.1, 2, shape[-1:]))
        positive = (None, np.array(2.5), rng.uniform(0.5, 3, shape[-1:]), rng.uniform(0.5, 3, shape))
        for reduction, w, target in itertools.product(REDUCTIONS, weights, (t, (t > 0.5) * 1.0)):
            options = without_none(reduction=reduction, weight=w)
            yield both("binary_cross_entropy", (p,), target, options)
            for q in positive:
                more = options | without_none(pos_weight=q)
                yield both("binary_cross_entropy_with_logits", (x,), target, more)


def distances(rng: np.random.Generator) -> Iterator[Call]:
    for shape, reduction in itertools.product(((7,), (4, 3), (2, 3, 4)), REDUCTIONS):
        a, b = rng.normal(size=(2, *shape)) * 2
        a.flat[0] = b.flat[0]
        for w in (None, rng.uniform(0.1, 2, shape)):
            options = without_none(reduction=reduction, weight=w)
            yield both("mse_loss", (a,), b, options)
            yield both("l1_loss", (a,), b, options)
            for delta in (0.3, 1.0, 2.0):
                yield both("huber_loss", (a,), b, options | {"delta": delta})
        for beta in (0.0, 0.3, 1.0, 2.0):
            yield both("smooth_l1_loss", (a,), b, {"reduction": reduction, "beta": beta})
        for margin in (0.0, 0.5, 1.0, 3.0):
            sign = np.where(b > 0, 1.0, -1.0)
            yield both("hinge_embedding_loss", (a,), sign, {"reduction": reduction, "margin": margin})


def divergences(rng: np.random.Generator) -> Iterator[Call]:
    for shape, reduction in itertools.product(((4, 3), (2, 3, 4)), (*REDUCTIONS, "batchmean")):
        p, q = softmax(rng.normal(size=shape)), softmax(rng.normal(size=shape))
        with_zero = p.copy()
        with_zero.flat[0] = 0
        for target, log_target in ((p, False), (with_zero, False), (np.log(p), True)):
            yield both("kl_div", (np.log(q),), target, {"reduction": reduction, "log_target": log_target})


def angles(rng: np.random.Generator) -> Iterator[Call]:
    pair = tuple(rng.normal(size=(2, 5, 4)))
    for sign in (np.ones(5), -np.ones(5), np.array([1.0, -1, 1, 1, -1])):
        for reduction, margin in itertools.product(REDUCTIONS, (0.0, 0.2, -0.5, 0.9)):
            yield both("cosine_embedding_loss", pair, sign, {"reduction": reduction, "margin": margin})


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")  # kl_div's, which PyTorch means to change
@pytest.mark.parametrize("calls", [class_losses, two_class_losses, distances, divergences, angles])
def test_grid(calls):
    torch = pytest.importorskip("torch")
    count = 0
    for call in calls(np.random.default_rng(0)):
        tensors = [torch.tensor(x, requires_grad=True) for x in call.inputs]
        wanted = call.theirs(torch, *tensors)
        wanted.sum().backward()
        loss, gradients = call.ours(*call.inputs)
        assert np.shape(loss) == tuple(wanted.shape)
        np.testing.assert_allclose(loss, wanted.detach().numpy(), rtol=1e-10, atol=1e-12)
        for gradient, tensor in zip(gradients if isinstance(gradients, tuple) else (gradients,), tensors, strict=True):
            np.testing.assert_allclose(gradient, tensor.grad.numpy(), rtol=1e-9, atol=1e-12)
        count += 1
    assert count >= 24
