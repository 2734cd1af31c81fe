"""The GPT step that `bench.train` measures: sizes, initial parameters and batches, the same for every variant."""

from typing import Any, NamedTuple

import numpy as np


class Sizes(NamedTuple):
    layers: int
    dim: int
    heads: int
    length: int
    batch: int
    vocab: int

    @property
    def tokens(self) -> int:
        return self.batch * self.length

    @property
    def count(self) -> int:
        """What a step works through: tokens."""
        return self.tokens

    @property
    def grain(self) -> int:
        """As in `gpulayers.training.tasks`: what an op works on for one sample."""
        return self.length * self.dim

    @property
    def flops(self) -> int:
        """Of the matrix products in forward and backward (twice the forward's); attention counted unmasked."""
        linear = 2 * self.tokens * (12 * self.dim**2 * self.layers + self.vocab * self.dim)
        attention = 4 * self.layers * self.batch * self.length**2 * self.dim
        return 3 * (linear + attention)


CASES = {
    "base": Sizes(layers=4, dim=256, heads=4, length=128, batch=8, vocab=8192),
    "small": Sizes(layers=2, dim=64, heads=4, length=64, batch=8, vocab=256),
    "middle": Sizes(layers=6, dim=384, heads=6, length=256, batch=4, vocab=256),
    "large": Sizes(layers=2, dim=768, heads=12, length=256, batch=2, vocab=50257),
    "tiny": Sizes(layers=1, dim=16, heads=2, length=8, batch=2, vocab=32),  # for the tests of this folder
}

LR, BETAS, EPS, DECAY = 3e-4, (0.9, 0.95), 1e-8, 0.1
CHECKED = 3  # steps whose losses are compared with float64: the third has seen gradients and optimizer twice
WARM_UP = 6  # steps before timing, the checked ones among them


def parameters(sizes: Sizes, seed: int = 0) -> dict[str, np.ndarray]:
    """GPT-2's initial values under the names of `gpulayers.models.gpt`, weights (in, out)."""
    rng, d = np.random.default_rng(seed), sizes.dim

    def matrix(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.02).astype(np.float32)

    def norm(name: str) -> dict[str, np.ndarray]:
        return {f"{name}.weight": np.ones(d, np.float32), f"{name}.bias": np.zeros(d, np.float32)}

    found = {"wte.weight": matrix(sizes.vocab, d), "wpe.weight": matrix(sizes.length, d), **norm("ln_f")}
    for i in range(sizes.layers):
        found.update(norm(f"blocks.{i}.ln_1"))
        found.update(norm(f"blocks.{i}.ln_2"))
        for name, rows, cols in (
            ("attention.qkv", d, 3 * d),
            ("attention.out", d, d),
            ("feedforward.up", d, 4 * d),
            ("feedforward.down", 4 * d, d),
        ):
            found[f"blocks.{i}.{name}.weight"] = matrix(rows, cols)
            found[f"blocks.{i}.{name}.bias"] = np.zeros(cols, np.float32)
    return found


def batches(sizes: Sizes, count: int = 8, seed: int = 1) -> list[tuple[np.ndarray, np.ndarray]]:
    """(ids, targets), each (B, T). Token k comes with probability ~ 1/(k + 1), so that ids repeat as in text."""
    p = 1 / np.arange(1, sizes.vocab + 1)
    shape = (count, sizes.batch, sizes.length + 1)
    tokens = np.random.default_rng(seed).choice(sizes.vocab, size=shape, p=p / p.sum())
    return [(np.ascontiguousarray(b[:, :-1]), np.ascontiguousarray(b[:, 1:])) for b in tokens]


class Steps:
    """A subject for `bench.worker`: takes the batches in turn. `train_step(*inputs, targets)` -> loss."""

    def __init__(self, train_step: Any, all_batches: list, facts: dict[str, Any], warm_up: int = WARM_UP) -> None:
        self.train_step, self.batches, self.count = train_step, all_batches, 0
        losses = [self.step() for _ in range(warm_up)]
        self.facts = {"losses": losses[:CHECKED], **facts}

    def step(self) -> float:
        batch = self.batches[self.count % len(self.batches)]
        self.count += 1
        return float(self.train_step(*batch))
