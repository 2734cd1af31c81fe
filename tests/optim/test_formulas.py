"""Lion, LAMB, Muon and the moving average against their papers' formulas, written out in float64."""

import math

import numpy as np
import pytest
from devices import on_devices
from tolerances import assert_close

import gpulayers as gl
from gpulayers.models.gpt import GPT, GPTConfig
from gpulayers.optim import EMA, LAMB, SGD, AdamW, Lion, Muon

DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])
STEPS = 12


def run(make, model, gradients):
    """{name: (start, gradients, after each step)}, float64."""
    start = {name: value.astype(np.float64) for name, value in model.state_dict().items()}
    optimizer, history, after = make(model), [], []
    for k in range(STEPS):
        history.append(gradients(model, np.random.default_rng(k)))
        optimizer.step()
        after.append(model.state_dict())
    return {
        name: (value, [g[name].astype(np.float64) for g in history], [each[name] for each in after])
        for name, value in start.items()
    }


@DTYPES
def test_lion(dtype, model, gradients):
    """Chen et al., 2023, algorithm 2."""
    model.to(dtype=dtype)
    lr, beta1, beta2, decay = 0.01, 0.9, 0.97, 0.1
    ran = run(lambda m: Lion(m, lr, (beta1, beta2), decay), model, gradients)
    for p, history, after in ran.values():
        m, own = np.zeros_like(p), decay if p.ndim > 1 else 0
        for g, found in zip(history, after, strict=True):
            p = p - lr * (np.sign(beta1 * m + (1 - beta1) * g) + own * p)
            m = beta2 * m + (1 - beta2) * g
            assert_close(found, p, dtype, factor=5)


@DTYPES
def test_lamb(dtype, model, gradients):
    """You et al., 2020, algorithm 2, with phi(x) = x."""
    model.to(dtype=dtype)
    lr, beta1, beta2, eps, decay = 0.01, 0.9, 0.99, 1e-6, 0.1
    model.bias.assign(np.zeros(9))  # |p| = 0: no trust, the plain step
    ran = run(lambda m: LAMB(m, lr, (beta1, beta2), eps, decay), model, gradients)
    for p, history, after in ran.values():
        m, v, own = np.zeros_like(p), np.zeros_like(p), decay if p.ndim > 1 else 0
        for t, (g, found) in enumerate(zip(history, after, strict=True), 1):
            m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
            u = m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + eps) + own * p
            lengths = math.sqrt((p * p).sum()), math.sqrt((u * u).sum())
            p = p - lr * (lengths[0] / lengths[1] if min(lengths) > 0 else 1.0) * u
            assert_close(found, p, dtype, factor=5)


@DTYPES
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(
    ("adjust", "factor"),
    [(None, lambda i, o: max(1, o / i) ** 0.5), ("match_rms_adamw", lambda i, o: 0.2 * max(i, o) ** 0.5)],
)
def test_muon(dtype, nesterov, adjust, factor, model, gradients):
    """Jordan et al., 2024, for matrices; AdamW with a rate of its own for the rest."""
    model.to(dtype=dtype)
    lr, momentum, decay, other = 0.02, 0.9, 0.1, 0.005
    options = {"weight_decay": decay, "adamw": ["tab*"], "adamw_lr": other, "adjust_lr_fn": adjust}
    ran = run(lambda m: Muon(m, lr, momentum=momentum, nesterov=nesterov, **options), model, gradients)
    p, history, after = ran["weight"]
    m = np.zeros_like(p)
    for g, found in zip(history, after, strict=True):
        m = momentum * m + (1 - momentum) * g
        x = momentum * m + (1 - momentum) * g if nesterov else m
        x = x / math.sqrt((x * x).sum())
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
        p = p - lr * decay * p - lr * factor(*p.shape) * x
        assert_close(found, p, dtype, factor=20)  # fifteen products a step
    for name, own in (("table", decay), ("bias", 0.0)):
        p, history, after = ran[name]
        m, v = np.zeros_like(p), np.zeros_like(p)
        for t, (g, found) in enumerate(zip(history, after, strict=True), 1):
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            p = p - other * (m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8) + own * p)
            assert_close(found, p, dtype, factor=5)


def test_muon_leaves_tables_to_adamw():
    model = GPT(GPTConfig(vocab=11, context=8, layers=1, heads=2, dim=16), seed=0)
    optimizer = Muon(model)
    inside = {s.name for s, here in zip(optimizer.flat.segments, optimizer._is_muon, strict=True) if here}
    assert inside == {name for name, p in model.named_parameters() if p.data.ndim == 2 and not name.startswith("w")}
    assert {"wte.weight", "wpe.weight"} & {name for name, _ in model.named_parameters()}
    state = optimizer.state_dict()
    assert all((f"v.{s.name}" in state) == (s.name not in inside) for s in optimizer.flat.segments)


@DTYPES
def test_moving_average(dtype, model, gradients):
    model.to(dtype=dtype)
    expected = {name: value.astype(np.float64) for name, value in model.state_dict().items()}
    average, optimizer = EMA(model, decay=0.9), SGD(model, 0.1)
    for k in range(STEPS):
        gradients(model, np.random.default_rng(k))
        if k == 5:
            model.bias.grad[2] = math.nan
        optimizer.step()
        average.update(optimizer)
        if k != 5:  # a step that was skipped is no update
            expected = {name: 0.9 * old + 0.1 * model.state_dict()[name] for name, old in expected.items()}
    parameters = model.state_dict()
    with average.swapped():
        for name, value in model.state_dict().items():
            assert_close(value, expected[name], dtype, factor=5)
        with pytest.raises(RuntimeError, match=r"EMA\.update: the model holds the average now; swap back first"):
            average.update()
        with pytest.raises(RuntimeError, match=r"EMA\.state_dict: the model holds the average"):
            average.state_dict()
    for name, value in model.state_dict().items():
        assert value.tobytes() == parameters[name].tobytes()


def test_moving_average_comes_back(model, gradients, rng):
    average = EMA(model, 0.5)
    gradients(model, rng)
    SGD(model, 1.0).step()
    average.update()
    state = average.state_dict()
    other = EMA(type(model)("float32", **model.state_dict()), 0.5)
    other.load_state_dict(state)
    assert all(value.tobytes() == state[name].tobytes() for name, value in other.state_dict().items())
    with pytest.raises(ValueError, match=r"EMA: missing \['average.bias'\], unexpected none"):
        other.load_state_dict({name: value for name, value in state.items() if name != "average.bias"})
    with pytest.raises(ValueError, match=r"EMA: decay must be in 0\.\.1, without 1, got 1"):
        EMA(model, 1)
    model.to(dtype="float64")
    with pytest.raises(
        RuntimeError, match=r"the average is float32 on numpy, the model float64 on numpy; make it after"
    ):
        average.update()


@on_devices
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_moving_average_on_a_device(device, dtype, model, gradients):
    model.to(device, dtype)
    optimizer = AdamW(model, lr=0.1)
    average = EMA(model, decay=0.9)
    start = [p.values.get() for p in model.parameters()]
    for parameter in model.parameters():
        parameter.add_grad(gl.to_device(np.ones(parameter.shape, np.float32), device).astype(parameter.dtype))
    optimizer.step()
    average.update(optimizer)
    wanted = [0.9 * a + 0.1 * p.values.get() for a, p in zip(start, model.parameters(), strict=True)]
    with average.swapped():
        for parameter, value in zip(model.parameters(), wanted, strict=True):
            assert_close(parameter.values.get(), value)
            assert np.array_equal(parameter.data.get(), parameter.values.get().astype(parameter.dtype))
