"""The step of a recurrent encoder-decoder: a GRU reads the source, another writes the target from its last state."""

from typing import NamedTuple

import numpy as np


class Sizes(NamedTuple):
    dim: int
    hidden: int
    length: int  # of sources and of targets
    batch: int
    vocab: int

    @property
    def count(self) -> int:
        """Tokens that are written in a step."""
        return self.batch * self.length

    @property
    def grain(self) -> int:
        """As in `gpulayers.training.tasks`: a recurrent network's calls are short."""
        return 0

    @property
    def flops(self) -> int:
        """Of the matrix products in forward and backward (twice the forward's)."""
        cell = 2 * 3 * self.hidden * (self.dim + self.hidden)
        return 3 * self.count * (2 * cell + 2 * self.hidden * self.vocab)


CASES = {
    "seq2seq": Sizes(dim=256, hidden=256, length=32, batch=32, vocab=2048),
    "seq2seq tiny": Sizes(dim=6, hidden=8, length=5, batch=4, vocab=16),
}


def parameters(sizes: Sizes, seed: int = 0) -> dict[str, np.ndarray]:
    """Uniform in +-1 / sqrt(hidden), PyTorch's, under the names of `gpulayers.models.seq2seq`."""
    rng, (dim, hidden, _, _, vocab) = np.random.default_rng(seed), sizes

    def draw(*shape: int) -> np.ndarray:
        return (rng.uniform(-1, 1, shape) / np.sqrt(hidden)).astype(np.float32)

    found = {"encoder.embedding.weight": draw(vocab, dim), "embedding.weight": draw(vocab, dim)}
    for side in ("encoder", "decoder"):
        cell = f"{side}.network.cells.0"
        found[f"{cell}.weight_ih"], found[f"{cell}.weight_hh"] = draw(dim, 3 * hidden), draw(hidden, 3 * hidden)
        found[f"{cell}.bias_ih"], found[f"{cell}.bias_hh"] = draw(3 * hidden), draw(3 * hidden)
    return found | {"head.weight": draw(hidden, vocab), "head.bias": draw(vocab)}


def batches(sizes: Sizes, count: int = 8, seed: int = 1) -> list[tuple[np.ndarray, ...]]:
    """(source, decoder input, targets), each (B, T); no padding, whose id is 0."""
    rng = np.random.default_rng(seed)
    found = rng.integers(3, sizes.vocab, (count, 2, sizes.batch, sizes.length))
    begin = np.ones((sizes.batch, 1), found.dtype)
    return [(source, np.concatenate([begin, target[:, :-1]], 1), target) for source, target in found]
