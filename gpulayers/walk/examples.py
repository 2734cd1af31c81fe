"""Networks of a few hundred numbers, each with a batch to learn from: small enough to be printed whole."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gpulayers.layers.layer import Layer
from gpulayers.models.feedforward import FeedForwardConfig, FeedForwardNet
from gpulayers.models.gpt import GPT, GPTConfig
from gpulayers.models.seq2seq import Seq2Seq, Seq2SeqConfig
from gpulayers.models.transformer import Transformer, TransformerConfig
from gpulayers.models.vit import ViT, ViTConfig

TEXT = "abracadabra"
PAD, BOS, EOS = 0, 1, 2
IGNORE = -100


class Example(NamedTuple):
    """model; inputs and targets: NumPy arrays; told: what they are, for people."""

    model: Layer
    inputs: tuple[np.ndarray, ...]
    targets: np.ndarray
    told: str


def letters() -> tuple[str, np.ndarray]:
    """The symbols of TEXT, and TEXT in their numbers."""
    symbols = "".join(sorted(set(TEXT)))
    return symbols, np.array([symbols.index(letter) for letter in TEXT])


def numbered(symbols: str) -> str:
    return ", ".join(f"{letter} = {number}" for number, letter in enumerate(symbols))


def feedforward(seed: int, activation: str = "none") -> Example:
    symbols, ids = letters()
    config = FeedForwardConfig(len(symbols), context=2, dim=2, widths=(4, 3), activation=activation, init="xavier")
    rows = np.arange(3)[:, None] + np.arange(2)
    told = f"the letter after each two of {TEXT!r}: {numbered(symbols)}"
    return Example(FeedForwardNet(config, seed), (ids[rows],), ids[rows[:, -1] + 1], told)


def gpt(seed: int) -> Example:
    symbols, ids = letters()
    config = GPTConfig(len(symbols), context=4, layers=1, heads=2, dim=4)
    rows = np.array([[0], [5]]) + np.arange(4)
    told = f"the letter after each of {TEXT[0:4]!r} and {TEXT[5:9]!r}: {numbered(symbols)}"
    return Example(GPT(config, seed), (ids[rows],), ids[rows + 1], told)


def backwards() -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
    """Two words and the same words backwards, the second shorter: (source, target_in, targets, what they are)."""
    source = np.array([[3, 4, 5], [5, 3, PAD]])
    target_in = np.array([[BOS, 5, 4, 3], [BOS, 3, 5, PAD]])
    targets = np.array([[5, 4, 3, EOS], [3, 5, EOS, IGNORE]])
    return source, target_in, targets, "'abc' and 'ca' backwards: pad = 0, bos = 1, eos = 2, a = 3, b = 4, c = 5"


def seq2seq(seed: int) -> Example:
    source, target_in, targets, told = backwards()
    config = Seq2SeqConfig(6, 6, dim=2, hidden=3, cell="gru", bidirectional=False, context="last", decoder="dot")
    return Example(Seq2Seq(config, seed), (source, target_in), targets, told)


def transformer(seed: int) -> Example:
    source, target_in, targets, told = backwards()
    config = TransformerConfig(6, 6, dim=4, heads=2, layers=1, hidden=4)
    return Example(Transformer(config, seed), (source, target_in), targets, told)


def vit(seed: int) -> Example:
    config = ViTConfig((4, 4), 1, 2, 3, dim=4, heads=2, layers=2, hidden=4)
    across, down = np.zeros((2, 4, 4))
    across[1], down[:, 2] = 1, 1
    pixels = np.stack([across, down, np.eye(4)])[..., None].astype(np.float32)
    told = "three pictures of 4 x 4: a line across (class 0), a line down (1), a diagonal (2)"
    return Example(ViT(config, seed), (pixels,), np.array([0, 1, 2]), told)


EXAMPLES: dict[str, Callable[..., Example]] = {
    "feedforward": feedforward,
    "gpt": gpt,
    "seq2seq": seq2seq,
    "transformer": transformer,
    "vit": vit,
}


def example(name: str, seed: int, activation: str, backend: str, dtype: str) -> Example:
    """The example called `name`, its model on its device. activation: of the feed-forward network."""
    made = feedforward(seed, activation) if name == "feedforward" else EXAMPLES[name](seed)
    made.model.to(backend, dtype)
    inputs: tuple[Any, ...] = tuple(x.astype(dtype) if x.dtype.kind == "f" else x for x in made.inputs)
    return made._replace(inputs=inputs)
