"""The same in PyTorch, by `transformers`: GPT2LMHeadModel, eager, with its DynamicCache."""

import functools
import os
import warnings
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import transformers
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel

from bench.generate_case import Sizes, facts, parameters, read_ids

transformers.logging.set_verbosity_error()
warnings.filterwarnings("ignore", category=FutureWarning)
NAMES = {
    "blocks": "transformer.h",
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "feedforward.up": "mlp.c_fc",
    "feedforward.down": "mlp.c_proj",
}


@functools.cache
def model(sizes: Sizes, attention: str, threads: int) -> Any:
    torch.set_num_threads(threads)
    s = sizes
    config = GPT2Config(
        vocab_size=s.vocab, n_positions=s.context, n_embd=s.dim, n_layer=s.layers, n_head=s.heads,
        attn_implementation=attention, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    made = GPT2LMHeadModel(config).eval()
    own = dict(made.named_parameters())
    with torch.no_grad():
        for name, value in parameters(s).items():
            for ours, theirs in NAMES.items():
                name = name.replace(ours, theirs)
            own[name if name.startswith("transformer") else f"transformer.{name}"].copy_(torch.from_numpy(value))
    return made


class Prefill:
    def __init__(self, sizes: Sizes, attention: str, threads: int) -> None:
        self.sizes, self.model = sizes, model(sizes, attention, threads)
        self.ids = torch.from_numpy(read_ids(sizes))
        self.prompt, self.cache = self.ids[None, : sizes.prompt], None
        with torch.inference_mode():
            self.facts = facts(self.run().numpy(), torch=torch.__version__, transformers=transformers.__version__)

    def step(self) -> None:
        with torch.inference_mode():
            self.run()

    def run(self) -> torch.Tensor:
        self.cache = DynamicCache(config=self.model.config)
        found = self.model(self.prompt, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        return found.logits[:, -1]


class Decode(Prefill):
    def run(self) -> torch.Tensor:
        if self.cache is None:
            super().run()
        logits = torch.zeros(0)
        for i in self.ids[self.sizes.prompt :]:
            logits = self.model(i.reshape(1, 1), past_key_values=self.cache, use_cache=True).logits[:, -1]
            logits.argmax()
        assert self.cache is not None
        self.cache.crop(-self.sizes.tokens)  # back to the prompt
        return logits


class Uncached(Prefill):
    def run(self) -> torch.Tensor:
        return self.model(self.ids[None], use_cache=False, logits_to_keep=1).logits[:, -1]


class Generate(Prefill):
    def run(self) -> torch.Tensor:
        count = self.sizes.tokens
        options = {"do_sample": False, "min_new_tokens": count, "max_new_tokens": count, "pad_token_id": 0}
        return self.model.generate(self.prompt, **options)[0, self.sizes.prompt :]


SUBJECTS: dict[str, type[Prefill]] = {
    "prefill": Prefill,
    "decode": Decode,
    "uncached": Uncached,
    "generate": Generate,
}


def make(phase: str, sizes: list[int], threads: int, attention: str = "eager") -> Any:
    return SUBJECTS[phase](Sizes(*sizes), attention, threads)
