"""A whole 2-layer GPT against PyTorch: logits, loss, every gradient, 20 AdamW steps."""

import numpy as np
import pytest
from outside import DTYPES, close, load, part
from tolerances import assert_close

from gpulayers.models.gpt import GPT, GPTConfig
from gpulayers.ops.cross_entropy import cross_entropy
from gpulayers.optim import AdamW
from gpulayers.parameter import pack


def make(dtype):
    file = load("gpt")
    vocab, context, layers, heads, dim = (int(size) for size in file["sizes"])
    model = GPT(GPTConfig(vocab, context, layers, heads, dim), dtype=dtype)
    model.load_state_dict(part(file, "parameter "))
    return model, file["tokens"].astype(np.int64)


def forward_backward(model, tokens):
    logits, saved = model.forward(tokens[:, :-1])
    loss, dlogits = cross_entropy(logits, tokens[:, 1:])
    model.backward(dlogits, saved)
    return logits, float(loss)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("packed", [False, True])
def test_loss_and_all_gradients(dtype, packed):
    model, tokens = make(dtype)
    if packed:
        pack(model)
    logits, loss = forward_backward(model, tokens[0])
    file = load("gpt")
    close(logits[0], file["logits"], dtype)
    close(loss, file["losses"][0], dtype)
    gradients = part(file, "gradient ")
    assert gradients.keys() == {name for name, _ in model.named_parameters()}
    largest = max(np.abs(gradient).max() for gradient in gradients.values())
    for name, parameter in model.named_parameters():
        if dtype == "float64":
            close(parameter.grad, gradients[name], dtype)
        else:  # rounding is relative to what flows through the network, not to one small gradient in it
            assert np.abs(parameter.grad - gradients[name]).max() < 5e-6 * largest


@pytest.mark.parametrize("dtype", DTYPES)
def test_20_steps_of_adamw(dtype):
    model, tokens = make(dtype)
    file = load("gpt")
    lr, beta1, beta2, eps, decay = (float(option) for option in file["options"])
    optimizer = AdamW(model, lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=decay)
    losses = []
    for batch in tokens:
        optimizer.zero_grad()
        losses.append(forward_backward(model, batch)[1])
        optimizer.step()
    if dtype == "float64":
        assert_close(losses, file["losses"], dtype, factor=100)
        for name, parameter in model.named_parameters():
            assert_close(parameter.data.ravel()[::7], file[f"after {name}"], dtype, factor=1000)  # 20 steps amplify
    else:
        # Adam divides by sqrt(v): where a gradient is nearly 0, its rounding decides a whole step of size lr.
        assert_close(losses, file["losses"], dtype, factor=50)
