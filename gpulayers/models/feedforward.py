"""The feed-forward network by hand: the next token from the n tokens before it.

    h3     = the rows of the embedding's table for the n tokens, side by side      (B, n dim)
    z2     = h3 W3 + b3        h2 = f(z2)                                          (B, widths[0])
    z1     = h2 W2 + b2        h1 = f(z1)                                          (B, widths[1])
    logits = h1 W1 + b1                                                            (B, vocab)

The numbers count down to the output, so that W_k takes h_k: with `widths` of any length the first matrix is
W_(len(widths) + 1), and W1 always makes the logits. Backward, from the loss's dlogits:

    dW1 = h1' dlogits      db1 = sum over rows of dlogits      dh1 = dlogits W1'      dz1 = dh1 f'(z1)
    dW2 = h2' dz1          db2 = sum over rows of dz1          dh2 = dz1 W2'          dz2 = dh2 f'(z2)
    dW3 = h3' dz2          db3 = sum over rows of dz2          dh3 = dz2 W3'          the rows of dh3 into the table

Source: Bengio, Ducharme, Vincent and Jauvin, A neural probabilistic language model, 2003, section 2, without the
direct connections from the embedding to the output.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gpulayers import initialize
from gpulayers.backend import Array
from gpulayers.initialize import Init
from gpulayers.layers.batchnorm import BatchNorm
from gpulayers.layers.dropout import Dropout
from gpulayers.layers.embedding import Embedding
from gpulayers.layers.gelu import GELU
from gpulayers.layers.layer import Layer, Once, check_choice, check_sizes
from gpulayers.layers.layernorm import LayerNorm
from gpulayers.layers.leaky_relu import LeakyReLU
from gpulayers.layers.linear import Linear
from gpulayers.layers.prelu import PReLU
from gpulayers.layers.relu import ReLU
from gpulayers.layers.tanh import Tanh
from gpulayers.ops.add import add
from gpulayers.ops.embedding import check_integers
from gpulayers.step import Train

ACTIVATIONS: dict[str, Callable[[str], Layer]] = {
    "tanh": lambda dtype: Tanh(),
    "relu": lambda dtype: ReLU(),
    "leaky_relu": lambda dtype: LeakyReLU(),
    "prelu": lambda dtype: PReLU(dtype=dtype),
    "gelu": lambda dtype: GELU(),
}
SLOPES = {"leaky_relu": 0.01, "prelu": 0.25}  # below 0, at the start; He et al.'s equation 15 takes it into account
INITS = ("default", "naive", "xavier", "he")
AROUND = ("plain", "residual", "batchnorm", "layernorm")


@dataclass(frozen=True)
class FeedForwardConfig:
    """Sizes and forms of a feed-forward network.

    vocab: number of tokens. context: tokens that are looked at (n). dim: width of the embedding.
    widths: of the hidden layers, the first one first; () leaves W1 alone.
    activation: tanh, relu, leaky_relu (slope 0.01), prelu (one slope a layer), gelu (exact); none for products alone.
    init: default, that of `Linear`; naive, normal with deviation 1; xavier, normal with variance 2 / (in + out); he,
        normal with variance gain^2 / in, where gain^2 = 2 / (1 + slope^2), and 1 for W1, which no activation follows.
        With the last three all biases start at 0.
    around: what is around a hidden layer, see `Hidden`. dropout: at the end of each hidden layer.
    """

    vocab: int
    context: int = 8
    dim: int = 16
    widths: tuple[int, ...] = (128, 128)
    activation: str = "tanh"
    init: str = "default"
    around: str = "plain"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_sizes("FeedForwardConfig", vocab=self.vocab, context=self.context, dim=self.dim)
        if not isinstance(self.widths, tuple) or not all(type(w) is int and w >= 1 for w in self.widths):
            raise ValueError(f"FeedForwardConfig: widths must be a tuple of numbers of at least 1, got {self.widths}")
        check_choice("FeedForwardConfig", (*ACTIVATIONS, "none"), activation=self.activation)
        check_choice("FeedForwardConfig", INITS, init=self.init)
        check_choice("FeedForwardConfig", AROUND, around=self.around)

    def initialiser(self, last: bool = False) -> Init | None:
        """Of the matrices; last: of W1. None for that of `Linear`."""
        if self.init == "he":
            slope = SLOPES.get(self.activation, 0.0)
            return partial(initialize.he_normal, gain=1.0 if last else math.sqrt(2 / (1 + slope**2)))
        return {"default": None, "naive": initialize.normal, "xavier": initialize.xavier_normal}[self.init]


class Hidden(Layer):
    """h = f(x weight + bias), and what is around it.

    around: plain; residual, x + f(x weight + bias) where input and output are of one width, plain elsewhere;
    batchnorm and layernorm, f(norm(x weight + bias)). Before a BatchNorm there is no bias: it would take it away again.
    Dropout acts on f's output.

    x: (B, in). h: (B, out). saved: a list with the values of the sub-layers.
    """

    def __init__(
        self, config: FeedForwardConfig, in_features: int, out_features: int, rng: np.random.Generator, dtype: str
    ) -> None:
        bias = config.around != "batchnorm"
        self.linear = _linear(config, in_features, out_features, rng, dtype, bias=bias)
        self.norm = _norm(config.around, out_features, dtype)
        self.activation = None if config.activation == "none" else ACTIVATIONS[config.activation](dtype)
        self.dropout = Dropout(config.dropout)
        self.residual = config.around == "residual" and in_features == out_features

    def forward(self, x: Array, train: Train | None = None) -> tuple[Array, list[Any]]:
        saved, h = Once(), x
        for layer in self._parts():
            h, its = layer.forward(h, train=train)
            saved.append(its)
        return add(x, h) if self.residual else h, saved

    def backward(self, dy: Array, saved: list[Any]) -> Array:
        dx = dy
        for layer in reversed(self._parts()):
            dx = layer.backward(dx, saved.pop())
        return add(dy, dx) if self.residual else dx

    def __call__(self, x: Array) -> Array:
        h = x
        for layer in self._parts():
            h = layer(h)
        return add(x, h) if self.residual else h

    def _parts(self) -> list[Layer]:
        parts = (self.linear, self.norm, self.activation, self.dropout)
        return [part for part in parts if part is not None]


class FeedForwardNet(Layer):
    """The next token's logits from the `context` tokens before it.

    ids: (B, context) integers below config.vocab. logits: (B, vocab).
    W: the layers by their numbers, W[k] a `Hidden` for k > 1, W[1] a `Linear`. Their parameters' names:

        embedding.weight (vocab, dim)
        W.3.linear.weight (context dim, widths[0]), .bias     W.3.norm.weight, .bias     W.3.activation.weight (prelu)
        W.2.linear.weight (widths[0], widths[1]), .bias       ...
        W.1.weight (widths[-1], vocab), .bias

    saved: a list, one entry for each layer. backward returns None, since ids have no gradient.
    Raises TypeError for ids that are no integers, ValueError for another shape or an id out of range.
    """

    def __init__(self, config: FeedForwardConfig, seed: initialize.Rng = 0, dtype: str = "float32") -> None:
        rng = initialize.generator(seed)
        self.config = config
        self.embedding = Embedding(config.vocab, config.dim, rng=rng, dtype=dtype)
        sizes = [config.context * config.dim, *config.widths]
        self.W: dict[int, Layer] = {}
        for number, size, width in zip(range(len(sizes), 1, -1), sizes, config.widths, strict=False):
            self.W[number] = Hidden(config, size, width, rng, dtype)
        self.W[1] = _linear(config, sizes[-1], config.vocab, rng, dtype, last=True)

    def _check(self, ids: Array) -> None:
        check_integers(ids, "FeedForwardNet")
        if ids.ndim != 2 or ids.shape[1] != self.config.context:
            raise ValueError(f"FeedForwardNet takes ids of shape (B, {self.config.context}), got {ids.shape}")

    def forward(self, ids: Array, train: Train | None = None) -> tuple[Array, list[Any]]:
        self._check(ids)
        rows, its = self.embedding.forward(ids)  # (B, n, dim)
        saved: list[Any] = Once([its])
        h = rows.reshape(len(ids), self.config.context * self.config.dim)  # (B, n dim)
        for layer in self.W.values():
            h, its = layer.forward(h, train=train)
            saved.append(its)
        return h, saved  # (B, V)

    def backward(self, dy: Array, saved: list[Any]) -> None:
        dh = dy
        for layer in reversed(self.W.values()):
            dh = layer.backward(dh, saved.pop())
        self.embedding.backward(dh.reshape(len(dh), self.config.context, self.config.dim), saved.pop())

    def __call__(self, ids: Array) -> Array:
        self._check(ids)
        h = self.embedding(ids).reshape(len(ids), self.config.context * self.config.dim)
        for layer in self.W.values():
            h = layer(h)
        return h


def _linear(
    config: FeedForwardConfig,
    in_features: int,
    out_features: int,
    rng: np.random.Generator,
    dtype: str,
    bias: bool = True,
    last: bool = False,
) -> Linear:
    linear = Linear(in_features, out_features, bias, init=config.initialiser(last), rng=rng, dtype=dtype)
    if linear.bias is not None and config.init != "default":
        linear.bias.data.fill(0)
    return linear


def _norm(around: str, width: int, dtype: str) -> Layer | None:
    if around == "layernorm":
        return LayerNorm(width, dtype=dtype)
    if around == "batchnorm":
        return BatchNorm(width, dtype=dtype)
    return None
