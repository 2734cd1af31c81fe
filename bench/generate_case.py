"""What `bench.generate` measures: a GPT's sizes, its random weights, and the ids that it reads."""

from typing import NamedTuple

import numpy as np

from bench import gpt_case


class Sizes(NamedTuple):
    layers: int
    dim: int
    heads: int
    vocab: int
    context: int
    prompt: int  # tokens that are read at once
    tokens: int  # that are then read one by one, as if they had been drawn

    @property
    def weights(self) -> int:
        """Numbers that a token is multiplied with: all parameters but the table of positions."""
        return 12 * self.layers * self.dim**2 + self.vocab * self.dim

    @property
    def bytes_read(self) -> int:
        """Of one token, float32: each weight once, and the keys and values of what was read, on average."""
        return 4 * (self.weights + 2 * self.layers * self.dim * (self.prompt + self.tokens // 2))

    @property
    def prefill_flops(self) -> int:
        """Of the products that read the prompt: the head's of its last token alone, attention counted unmasked."""
        blocks = 2 * self.prompt * 12 * self.layers * self.dim**2 + 4 * self.layers * self.prompt**2 * self.dim
        return blocks + 2 * self.vocab * self.dim


CASES = {
    "gpt2": Sizes(12, 768, 12, 50257, 1024, prompt=128, tokens=32),
    "default": Sizes(4, 96, 3, 256, 128, prompt=32, tokens=64),  # what `gpulayers train` makes when nothing is said
    "tiny": Sizes(2, 16, 2, 32, 24, prompt=8, tokens=8),  # for the tests of this folder
}


def parameters(sizes: Sizes) -> dict[str, np.ndarray]:
    """GPT-2's initial values under the names of `gpulayers.models.gpt`, weights (in, out)."""
    s = sizes
    return gpt_case.parameters(gpt_case.Sizes(s.layers, s.dim, s.heads, s.context, 1, s.vocab))


def read_ids(sizes: Sizes) -> np.ndarray:
    """(prompt + tokens,): the same for every variant, so that their logits can be compared."""
    return np.random.default_rng(1).integers(0, sizes.vocab, sizes.prompt + sizes.tokens)


def facts(logits: np.ndarray, **others: object) -> dict[str, object]:
    """What is compared with float64: some logits after the last id, and the largest of all."""
    flat = np.asarray(logits, np.float64).ravel()
    return {"logits": flat[:: max(1, len(flat) // 1000)].tolist(), "largest": float(np.abs(flat).max()), **others}
