"""The step of a Vision Transformer on random pictures."""

from typing import NamedTuple

import numpy as np


class Sizes(NamedTuple):
    side: int
    channels: int
    patch: int
    classes: int
    dim: int
    heads: int
    layers: int
    batch: int

    @property
    def count(self) -> int:
        """Images in a step."""
        return self.batch

    @property
    def patches(self) -> int:
        return (self.side // self.patch) ** 2

    @property
    def patch_size(self) -> int:
        return self.patch**2 * self.channels

    @property
    def grain(self) -> int:
        """As in `gpulayers.training.tasks`: what an op works on for one sample."""
        return (self.patches + 1) * self.dim

    @property
    def flops(self) -> int:
        """Of the matrix products in forward and backward (twice the forward's, but for the pixels' gradient).

        Of the last block all is made of the class token alone, but q, k and v of all.
        """
        tokens, d = self.patches + 1, self.dim
        blocks = (self.layers - 1) * tokens * 12 * d**2 + tokens * 3 * d**2 + 9 * d**2
        linear = 2 * self.batch * (blocks + d * self.classes)
        attention = 4 * self.batch * ((self.layers - 1) * tokens**2 + tokens) * d
        return 3 * (linear + attention) + 2 * 2 * self.batch * self.patches * self.patch_size * self.dim


CASES = {
    "vit": Sizes(side=32, channels=3, patch=4, classes=10, dim=128, heads=4, layers=6, batch=32),
    "vit tiny": Sizes(side=4, channels=1, patch=2, classes=3, dim=8, heads=2, layers=1, batch=3),
}


def parameters(sizes: Sizes, seed: int = 0) -> dict[str, np.ndarray]:
    """Under the names of `gpulayers.models.vit`, weights (in, out)."""
    rng, d = np.random.default_rng(seed), sizes.dim

    def matrix(*shape: int, std: float = 0.02) -> np.ndarray:
        return (rng.standard_normal(shape) * std).astype(np.float32)

    def linear(name: str, rows: int, cols: int) -> dict[str, np.ndarray]:
        return {f"{name}.weight": matrix(rows, cols), f"{name}.bias": np.zeros(cols, np.float32)}

    def norm(name: str) -> dict[str, np.ndarray]:
        return {f"{name}.weight": np.ones(d, np.float32), f"{name}.bias": np.zeros(d, np.float32)}

    found = linear("embed", sizes.patch_size, d) | norm("norm") | linear("head", d, sizes.classes)
    found |= {"class_token": matrix(d, std=0.5), "positions.weight": matrix(sizes.patches + 1, d, std=0.5)}
    for block in (f"blocks.{i}" for i in range(sizes.layers)):
        found |= norm(f"{block}.norm_1") | norm(f"{block}.norm_2")
        found |= linear(f"{block}.attention.qkv", d, 3 * d) | linear(f"{block}.attention.out", d, d)
        found |= linear(f"{block}.feedforward.up", d, 4 * d) | linear(f"{block}.feedforward.down", 4 * d, d)
    return found


def batches(sizes: Sizes, count: int = 8, seed: int = 1) -> list[tuple[np.ndarray, np.ndarray]]:
    """(pixels (B, H, W, C), labels (B,))."""
    rng = np.random.default_rng(seed)
    shape = (sizes.batch, sizes.side, sizes.side, sizes.channels)
    return [(rng.standard_normal(shape, np.float32), rng.integers(0, sizes.classes, sizes.batch)) for _ in range(count)]
