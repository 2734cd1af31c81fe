"""Write tests/vectors/gpt2/, a small GPT-2 with random weights saved by transformers, and gpt2.npz, what it computes.

    python tests/make_gpt2_folder.py            # needs PyTorch, transformers and tokenizers; on the CPU, deterministic

The files are in the repository; run it again only when a case is added or changed. The npz holds, in float64: ids,
logits of the first row, loss and every gradient, and the last logits of the same weights under `VARIANTS`.
"""

import json
import os
import shutil
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import tokenizers
import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel

FOLDER = Path(__file__).parent / "vectors" / "gpt2"
END = "<|endoftext|>"
SIZES = {"vocab_size": 300, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
VARIANTS = {
    "exact gelu": {"activation_function": "gelu"},
    "relu": {"activation_function": "relu"},
    "large epsilon": {"layer_norm_epsilon": 0.5},
    "not scaled": {"scale_attn_weights": False},
    "by layer": {"scale_attn_by_inverse_layer_idx": True},
    "upcast": {"reorder_and_upcast_attn": True},
    "untied": {"tie_word_embeddings": False},  # its head is the table upside down
}
TEXT = "".join(
    f"{i} green bottles hanging on the wall, and if one green bottle should accidentally fall, there'll be {i - 1}!\n"
    for i in range(99, 0, -1)
)


def make_tokenizer() -> tokenizers.Tokenizer:
    """A byte-level BPE, as GPT-2's: 256 bytes, 43 merges and the end of a text."""
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([TEXT], vocab_size=SIZES["vocab_size"] - 1, show_progress=False)
    tokenizer.add_special_tokens([END])
    assert tokenizer.get_vocab_size() == SIZES["vocab_size"]
    return tokenizer


def make_model(**changes) -> GPT2LMHeadModel:
    """Larger than GPT-2's initial values, biases and gains too, so that nothing is nearly 0; exact in float32."""
    end = SIZES["vocab_size"] - 1
    config = GPT2Config(**SIZES, bos_token_id=end, eos_token_id=end, attn_implementation="eager", **changes)
    model, rng = GPT2LMHeadModel(config), np.random.RandomState(8)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name != "lm_head.weight":
                shift = float(name.rpartition(".")[0].rpartition("ln_")[1] != "" and name.endswith("weight"))
                values = shift + 0.2 * rng.standard_normal(tuple(parameter.shape))
                parameter.copy_(torch.tensor(values.astype(np.float32)))
        if not config.tie_word_embeddings:
            model.lm_head.weight.copy_(model.transformer.wte.weight.flip(0))
    return model.eval()


def main() -> None:
    torch.set_num_threads(1)  # sums in a fixed order
    tokenizer, model = make_tokenizer(), make_model()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    model.save_pretrained(FOLDER)
    tokenizer.save_model(str(FOLDER))  # vocab.json and merges.txt; the published vocab.json has the end of a text too
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    (FOLDER / "vocab.json").write_text(json.dumps(dict(vocabulary), ensure_ascii=False), encoding="utf-8")
    tokenizer.save(str(FOLDER / "tokenizer.json"))

    ids = torch.tensor(np.random.RandomState(9).randint(0, SIZES["vocab_size"], (2, 9)))
    model = model.double()
    logits = model(ids).logits
    # Given labels, transformers takes the same loss, but of logits that it has rounded to float32.
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert abs(loss.item() - model(ids, labels=ids).loss.item()) < 1e-6
    loss.backward()
    arrays = {
        "versions": [f"{m.__name__} {m.__version__}" for m in (torch, transformers, tokenizers)],
        "ids": ids.numpy().astype(np.int16),
        "logits": logits.detach().numpy()[0],
        "loss": loss.item(),
        "text": TEXT[-500:],
        "tokens": np.array(tokenizer.encode(TEXT[-500:]).ids, np.int16),
    }
    for name, parameter in model.transformer.named_parameters():
        arrays[f"gradient {name}"] = parameter.grad.numpy()
    for name, changes in VARIANTS.items():
        variant = make_model(**changes)
        if name != "upcast":  # its scores are float32 and nothing else
            variant = variant.double()
        with torch.no_grad():
            arrays[f"logits {name}"] = variant(ids[:1]).logits.numpy()[0, -1]
    np.savez_compressed(FOLDER.with_suffix(".npz"), **arrays)
    for path in [*sorted(FOLDER.iterdir()), FOLDER.with_suffix(".npz")]:
        print(f"{path.name:24} {path.stat().st_size / 1024:6.1f} KB")


if __name__ == "__main__":
    main()
