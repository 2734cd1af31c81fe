import numpy as np
import pytest
from tolerances import assert_close

from gpulayers.optim import SGD


def textbook_sgd(p, gradients, lr, momentum=0.0, nesterov=False, weight_decay=0.0):
    p = np.array(p, np.float64)
    m = np.zeros_like(p)
    for g in gradients:
        g = g.astype(np.float64) + weight_decay * p
        m = momentum * m + g
        p = p - lr * (g + momentum * m if nesterov else m)
    return p


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_several_steps(dtype, momentum, nesterov, weight_decay, weights, gradients, rng):
    model = weights(dtype, matrix=rng.normal(size=(4, 5)), vector=rng.normal(size=6))
    start = model.state_dict()
    optimizer = SGD(model, 0.1, momentum, nesterov, weight_decay=weight_decay)
    history = []
    for _ in range(10):
        history.append(gradients(model, rng))
        optimizer.step()
    for name, decay in (("matrix", weight_decay), ("vector", 0.0)):
        expected = textbook_sgd(start[name], [g[name] for g in history], 0.1, momentum, nesterov, decay)
        assert_close(getattr(model, name).data, expected, dtype, factor=2)  # 10 roundings of p


def test_plain_sgd_keeps_no_moment(model):
    assert set(SGD(model, 0.1).state_dict()) == {"optimizer.applied", "optimizer.skipped"}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"momentum": -0.1}, "SGD: momentum must be 0 or more, and finite, got -0.1"),
        ({"nesterov": True}, "SGD: nesterov needs a momentum above 0"),
    ],
)
def test_refused(options, sentence, model):
    with pytest.raises(ValueError, match=sentence):
        SGD(model, 0.1, **options)
