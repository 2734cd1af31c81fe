"""The feed-forward network against PyTorch: logits, loss and gradients in every form, 20 steps of SGD and of Adam."""

import numpy as np
import pytest
from outside import DTYPES, close, load, part
from tolerances import assert_close

from gpulayers.models.feedforward import ACTIVATIONS, AROUND, FeedForwardConfig, FeedForwardNet
from gpulayers.ops.cross_entropy import cross_entropy
from gpulayers.optim import SGD, Adam
from gpulayers.step import Train

FORMS = sorted({key.partition("/")[0] for key in load("feedforward") if key.endswith("/logits")})
OPTIMIZERS = {
    "sgd": lambda model: SGD(model, lr=0.1, momentum=0.9),
    "adam": lambda model: Adam(model, lr=0.01, betas=(0.9, 0.99), eps=1e-8),
}


def make(form, dtype):
    file = load("feedforward")
    vocab, context, dim, *widths = (int(size) for size in file["sizes"])
    activation, around = form.split()
    model = FeedForwardNet(
        FeedForwardConfig(vocab, context, dim, tuple(widths), activation, around=around), dtype=dtype
    )
    model.load_state_dict(part(file, f"{form}/parameter "), strict=around != "batchnorm")  # running statistics
    return model


def batch(k):
    file = load("feedforward")
    return file["ids"][k].astype(np.int64), file["targets"][k].astype(np.int64)


def forward_backward(model, k):
    ids, targets = batch(k)
    logits, saved = model.forward(ids, Train(step=k))
    loss, dlogits = cross_entropy(logits, targets)
    model.backward(dlogits, saved)
    return logits, float(loss)


def test_every_form_is_there():
    assert {form.split()[0] for form in FORMS} == set(ACTIVATIONS)
    assert {form.split()[1] for form in FORMS} == set(AROUND)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
def test_logits_and_all_gradients(form, dtype):
    model, file = make(form, dtype), load("feedforward")
    logits, _ = forward_backward(model, 0)
    close(logits, file[f"{form}/logits"], dtype)
    gradients = part(file, f"{form}/gradient ")
    assert gradients.keys() == {name for name, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        close(parameter.grad, gradients[name], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", OPTIMIZERS)
def test_20_steps(rule, dtype):
    model, file = make("tanh plain", dtype), load("feedforward")
    optimizer, losses = OPTIMIZERS[rule](model), []
    for k in range(20):
        losses.append(forward_backward(model, k)[1])
        optimizer.step()
    if dtype == "float64":
        assert_close(losses, file[f"{rule}/losses"], dtype, factor=100)
        for name, parameter in model.named_parameters():
            assert_close(parameter.data, file[f"{rule}/after {name}"], dtype, factor=1000)  # 20 steps amplify
    else:
        # Adam divides by sqrt(v): where a gradient is nearly 0, its rounding decides a whole step of size lr.
        assert_close(losses, file[f"{rule}/losses"], dtype, factor=50)
