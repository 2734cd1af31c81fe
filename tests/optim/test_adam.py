import numpy as np
import pytest
from tolerances import assert_close

from gpulayers.optim import Adam, AdamW, Group


def textbook_adam(p, gradients, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, decoupled=False):
    """Kingma and Ba, algorithm 1, one array, float64."""
    p = np.array(p, np.float64)
    m, v = np.zeros_like(p), np.zeros_like(p)
    for t, g in enumerate(gradients, 1):
        g = g.astype(np.float64) + (0 if decoupled else weight_decay) * p
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        m_hat, v_hat = m / (1 - betas[0] ** t), v / (1 - betas[1] ** t)
        p = p - lr * (m_hat / (np.sqrt(v_hat) + eps) + (weight_decay * p if decoupled else 0))
    return p


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Adam, {}),
        (Adam, {"weight_decay": 0.1, "lr": 0.01}),
        (Adam, {"betas": (0.5, 0.7), "eps": 1e-3}),
        (AdamW, {}),
        (AdamW, {"weight_decay": 0.3, "lr": 0.05}),
    ],
)
def test_several_steps(dtype, kind, options, weights, gradients, rng):
    model = weights(dtype, matrix=rng.normal(size=(4, 5)), vector=rng.normal(size=6))
    start = model.state_dict()
    optimizer = kind(model, **options)
    history = []
    for k in range(20):
        history.append(gradients(model, rng, 10.0 ** (k % 5 - 2)))
        optimizer.step()
    decoupled = kind is AdamW
    decay = options.get("weight_decay", 0.01 if decoupled else 0.0)
    for name, weight_decay in (("matrix", decay), ("vector", 0.0)):
        expected = textbook_adam(
            start[name],
            [g[name] for g in history],
            **{**options, "weight_decay": weight_decay, "decoupled": decoupled},
        )
        assert_close(getattr(model, name).data, expected, dtype, factor=2)  # 20 roundings of p


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e10])
def test_first_step_moves_by_lr(dtype, scale, weights, rng):
    g = np.array([[1.0, -2.0, 0.5]]) * scale
    model = weights(dtype, p=np.zeros((1, 3)))
    model.p.add_grad(g)
    Adam(model, lr=0.01).step()
    assert model.p.data == pytest.approx(-0.01 * np.sign(g), rel=3e-6)  # eps is 2e-6 of the smallest


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_step_from_1_with_gradient_1(dtype, weights):
    """H10 (cupy#8485): a double handed to a float parameter made the rate -5e11 or 0."""
    model = weights(dtype, p=[1.0])
    model.p.add_grad(np.ones(1, dtype))
    Adam(model, lr=0.001).step()
    assert model.p.data[0] == pytest.approx(0.999, rel=1e-7)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_epsilon_stands_after_the_correction(dtype, weights):
    """H14 (tensorflow#9047, pytorch#41477)."""
    model = weights(dtype, p=[0.0])
    model.p.add_grad(np.full(1, 1e-8, dtype))
    Adam(model, lr=1e-3).step()
    assert model.p.data[0] == pytest.approx(-5.0e-4, rel=1e-6)


H15_GRADIENTS = (1.0, -0.5, 0.25, 0.1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_resume_is_the_run_that_never_stopped(dtype, weights):
    """H15 (chainer#4013): the moments came back, the step counter did not."""

    def run(model, optimizer, gradients):
        for g in gradients:
            model.p.add_grad(np.full(1, g, dtype))
            optimizer.step()
        return model.p.data[0]

    whole = weights(dtype, p=[1.0])
    optimizer = Adam(whole, lr=0.1)
    exact = 1e-10 if dtype == "float64" else 1e-6
    assert run(whole, optimizer, H15_GRADIENTS[:3]) == pytest.approx(0.8393233831, abs=exact)
    state, parameters = optimizer.state_dict(), whole.state_dict()
    assert run(whole, optimizer, H15_GRADIENTS[3:]) == pytest.approx(0.8064833097, abs=exact)

    resumed = weights(dtype, p=[0.0])
    resumed.load_state_dict(parameters)
    again = Adam(resumed, lr=0.1)
    again.load_state_dict(state)
    assert again.applied == 3
    run(resumed, again, H15_GRADIENTS[3:])
    assert resumed.p.data.tobytes() == whole.p.data.tobytes()


def test_adamw_decay_is_apart_from_the_moments(weights):
    model = weights(p=[[2.0]])
    optimizer = AdamW(model, lr=0.1, weight_decay=0.5)
    model.p.add_grad(np.zeros((1, 1)))
    optimizer.step()
    assert model.p.data[0, 0] == pytest.approx(2.0 - 0.1 * 0.5 * 2.0)
    assert optimizer.state_dict()["m.p"] == 0


def test_adamw_penalty_is_l1_alone(weights):
    model = weights(p=[[2.0, -3.0]])
    assert AdamW(model, weight_decay=0.5).penalty() == 0
    assert AdamW(model, weight_decay=0.5, l1=0.1).penalty() == pytest.approx(0.5)
    assert Adam(model, weight_decay=0.5, l1=0.1).penalty() == pytest.approx(0.5 + 0.25 * 13)


def test_gradient_whose_square_overflows_is_skipped(weights, bits):
    """Adam's v would be infinite for good, and the parameter frozen without a word."""
    model = weights("float32", p=[1.0, 1.0])
    optimizer = Adam(model)
    before = bits(optimizer)
    model.p.add_grad(np.full(2, 1e20, np.float32))
    optimizer.step()
    assert optimizer.skipped == 1
    assert optimizer.grad_norm == pytest.approx(1.4142136e20)
    assert bits(optimizer) == before
    optimizer.clip_norm = 1.0
    model.p.add_grad(np.full(2, 1e20, np.float32))
    optimizer.step()
    assert optimizer.applied == 1
    assert optimizer.state_dict()["m.p"] == pytest.approx(0.1 * np.full(2, 0.70710678))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"betas": (1.0, 0.9)}, r"Adam: betas\[0\] must be in 0..1, without 1, got 1.0"),
        ({"betas": (0.9, 0.99, 0.999)}, r"Adam: betas must be two numbers, got \(0.9, 0.99, 0.999\)"),
        ({"betas": 0.9}, r"Adam: betas must be two numbers, got 0.9"),
        ({"betas": (0.9, -0.1)}, r"Adam: betas\[1\] must be"),
        ({"eps": 0.0}, "Adam: eps must be at least 1.2e-38, and finite, got 0.0"),
        ({"lr": -1.0}, "Adam: lr must be 0 or more, and finite, got -1.0"),
        ({"lr": float("nan")}, "Adam: lr must be"),
        ({"weight_decay": -1.0}, "Adam: weight_decay must be"),
        ({"l1": float("inf")}, "Adam: l1 must be"),
        ({"clip_norm": 0.0}, "Adam: clip_norm must be above 0, got 0.0"),
        ({"clip_value": float("nan")}, "Adam: clip_value must be above 0"),
        ({"threads": 0}, "Adam: threads must be at least 1"),
        ({"groups": [Group("head.*")]}, r"Adam: no parameter matches Group\('head.\*'\)"),
    ],
)
def test_refused(options, sentence, model):
    with pytest.raises(ValueError, match=sentence):
        Adam(model, **options)
