"""Reading a prompt, and going on token by token, in gpulayers."""

import functools
from typing import Any

import numpy as np

from bench import machine
from bench.generate_case import Sizes, facts, parameters, read_ids
from gpulayers.models.gpt import GPT, GPTConfig
from gpulayers.training.generate import generate


@functools.cache
def model(sizes: Sizes, dtype: str) -> GPT:
    """One for all subjects of a process."""
    s = sizes
    made = GPT(GPTConfig(s.vocab, s.context, s.layers, s.heads, s.dim), dtype=dtype)
    made.load_state_dict({name: value.astype(dtype) for name, value in parameters(s).items()})
    return made


class Prefill:
    """A step reads the prompt and has the logits of the token after it."""

    def __init__(self, sizes: Sizes, dtype: str, threads: int) -> None:
        self.sizes, self.model = sizes, model(sizes, dtype)
        self.ids = read_ids(sizes)
        self.prompt, self.state = self.ids[None, : sizes.prompt], None
        self.facts = facts(self.run(), **machine.describe(threads))

    def step(self) -> None:
        self.run()

    def run(self) -> np.ndarray:
        logits, self.state = self.model.step(self.prompt, last=True)
        return logits


class Decode(Prefill):
    """A step goes on from the prompt by `tokens` tokens, one at a time; each time the likeliest next one is found."""

    def run(self) -> np.ndarray:
        if self.state is None:
            super().run()
        state, logits = self.state, np.zeros(0)
        for i in self.ids[self.sizes.prompt :]:
            logits, state = self.model.step(np.array([i]), state)
            logits[0].argmax()
        return logits


class Uncached(Prefill):
    """A step reads prompt and tokens as a whole: what one token costs without a cache."""

    def run(self) -> np.ndarray:
        return self.model.step(self.ids[None], last=True)[0]


class Generate(Prefill):
    """A step is `gpulayers.generate`: reading the prompt, writing `tokens` tokens, greedily."""

    def run(self) -> np.ndarray:
        return generate(self.model, self.prompt[0], self.sizes.tokens, temperature=0)


SUBJECTS: dict[str, type[Prefill]] = {
    "prefill": Prefill,
    "decode": Decode,
    "uncached": Uncached,
    "generate": Generate,
}


def make(phase: str, sizes: list[int], threads: int, dtype: str = "float32") -> Any:
    return SUBJECTS[phase](Sizes(*sizes), dtype, threads)
