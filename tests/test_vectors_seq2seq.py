"""Seq2Seq against the same nets in plain PyTorch: logits, loss and every gradient."""

import numpy as np
import pytest
from outside import DTYPES, case_names, close, load, part

from gpulayers.models.seq2seq import Seq2Seq, Seq2SeqConfig
from gpulayers.ops.cross_entropy import cross_entropy

FORMS = {
    "initial": {"cell": "lstm", "layers": 2, "bidirectional": False, "context": "last", "decoder": "initial"},
    "every step": {"decoder": "every_step"},
    "additive": {"layers": 2},
    "additive lstm": {"cell": "lstm", "context": "last"},
    "general": {"cell": "lstm", "context": "mean", "decoder": "general"},
    "dot": {"cell": "rnn", "bidirectional": False, "context": "max", "decoder": "dot"},
}


def test_every_case_is_run():
    assert case_names("seq2seq") == FORMS.keys()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
def test_logits_loss_and_all_gradients(form, dtype):
    file = load("seq2seq")
    wanted = part(file, f"{form}/")
    model = Seq2Seq(Seq2SeqConfig(*(int(size) for size in file["sizes"]), **FORMS[form]), dtype=dtype)
    model.load_state_dict(part(wanted, "parameter "))
    logits, saved = model.forward(file["source"], file["target_in"])
    close(logits, wanted["logits"], dtype)
    loss, dlogits = cross_entropy(logits, file["target"], ignore_index=-100)
    close(loss, wanted["loss"], dtype)
    model.backward(dlogits, saved)
    gradients = part(wanted, "gradient ")
    largest = max(np.abs(gradient).max() for gradient in gradients.values())
    for name, parameter in model.named_parameters():
        if dtype == "float64":
            close(parameter.grad, gradients[name], dtype)
        else:  # rounding is relative to what flows through the network, not to one small gradient in it
            assert np.abs(parameter.grad - gradients[name]).max() < 5e-6 * largest
