"""Encoder and decoder blocks and the whole Transformer against torch.nn.Transformer and its layers.

The third source of the file is nothing but padding, where PyTorch has zeros as well (reported case H05).
"""

import numpy as np
import pytest
from outside import DTYPES, case, case_names, cast, check_case, close, load, part

from gpulayers.layers.decoder_block import DecoderBlock
from gpulayers.layers.encoder_block import EncoderBlock
from gpulayers.models.transformer import Transformer, TransformerConfig
from gpulayers.ops.cross_entropy import cross_entropy

FORMS = {
    "pre-norm": {},
    "post-norm": {"norm_first": False},
    "tied": {"tied": True},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["pre-norm", "post-norm"])
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_block(side, order, dtype):
    wanted, kind = case("transformer", f"{side} {order}"), {"encoder": EncoderBlock, "decoder": DecoderBlock}[side]
    hide, hide_target = (load("transformer")[name][:, None, None] for name in ("hide", "hide_target"))
    masks = {"hide": hide} if side == "encoder" else {"hide": hide_target, "hide_memory": hide}
    norm_first = order == "pre-norm"
    block = kind(8, 2, hidden=12, norm_first=norm_first, activation="gelu" if norm_first else "relu", rng=0)
    check_case(block, wanted, dtype, **masks)
    close(block(*(cast(x, dtype) for x in wanted.inputs), **masks), wanted.y, dtype)  # evaluation goes another way


def make(form, dtype):
    file = load("transformer")
    source_vocab, target_vocab, dim, heads, layers, hidden = (int(size) for size in file["sizes"])
    config = TransformerConfig(source_vocab, target_vocab, dim, heads, layers, hidden, "relu", **FORMS[form])
    model = Transformer(config, dtype=dtype)
    parameters = part(file, "net parameter ")
    names = {name for name, _ in model.named_parameters()}
    assert names <= parameters.keys()
    model.load_state_dict({name: parameters[name] for name in names})
    return model, file["source"].astype(np.int64), file["target"].astype(np.int64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
def test_logits_loss_and_all_gradients(form, dtype):
    model, source, target = make(form, dtype)
    wanted = part(load("transformer"), f"net {form} ")
    logits, saved = model.forward(source, target[:, :-1])
    close(logits, wanted["logits"], dtype)
    loss, dlogits = cross_entropy(logits, target[:, 1:], ignore_index=0)
    close(loss, wanted["loss"], dtype)
    model.backward(dlogits, saved)
    gradients = part(wanted, "gradient ")
    assert gradients.keys() == {name for name, _ in model.named_parameters()}
    largest = max(np.abs(gradient).max() for gradient in gradients.values())
    for name, parameter in model.named_parameters():
        if dtype == "float64" and np.abs(gradients[name]).max() > 1e-12 * largest:
            close(parameter.grad, gradients[name], dtype)
        else:  # rounding is relative to what flows through the network, not to one small gradient in it
            assert np.abs(parameter.grad - gradients[name]).max() < 5e-6 * largest


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
def test_step_by_step(form, dtype):
    model, source, target = make(form, dtype)
    wanted, state = load("transformer")[f"net {form} logits"], model.start(source)
    for t in range(wanted.shape[1]):
        logits, state = model.step(target[:, t], state)
        close(logits, wanted[:, t], dtype)


def test_every_case_of_the_file_is_run():
    assert case_names("transformer") == {f"{side} {o}" for side in ("encoder", "decoder") for o in FORMS if o != "tied"}
