"""How the blocks of a transformer join a sub-layer (attention, feed-forward) to the stream x that runs through them.

    pre-norm:   y = x + dropout(layer(norm(x)))        norm_first=True
    post-norm:  y = norm(x + dropout(layer(x)))        norm_first=False

Pre-norm leaves a path from the last block to the first on which nothing is normalised or multiplied, so deep stacks
learn from the first step on; it needs one norm after the last block. Post-norm is the form of the first paper.

Sources: Vaswani et al., Attention is all you need, 2017, section 3.1 (post-norm); Xiong et al., On layer normalization
in the transformer architecture, 2020 (pre-norm).
"""

from typing import Any, NamedTuple

import numpy as np

from gpulayers.backend import Array
from gpulayers.layers.attention import MultiHeadAttention
from gpulayers.layers.dropout import Dropout
from gpulayers.layers.feedforward import FeedForward
from gpulayers.layers.layer import Layer
from gpulayers.layers.layernorm import LayerNorm
from gpulayers.ops.op import BLOCK
from gpulayers.step import Train


def recomputes_norms(x: Array) -> bool:
    """Whether a pre-norm block keeps no output of its norms, but makes them again in backward, from their input.

    In host memory: two of the 18 arrays like x that a block keeps are then left. It takes 0.7 % of a step's time where
    rows have 256 numbers, and more the shorter they are, beside products that grow with their square: 2 % at 128, 3 %
    where x is so small that calls are all that it costs. A GPU would wait for memory, which is what a norm costs there.
    """
    return type(x) is np.ndarray and x.shape[-1] >= 128 and x.size >= BLOCK


class WithoutInput(NamedTuple):
    """What a sub-layer saved, but for its input, which the norm before it makes again."""

    saved: Any


def without_input(norm: Layer, layer: Layer, saved: Any, x: Array) -> Any:
    """What a pre-norm block keeps of a sub-layer that has run on norm(x). Layers of one's own keep all."""
    if isinstance(norm, LayerNorm) and isinstance(layer, MultiHeadAttention | FeedForward) and recomputes_norms(x):
        return WithoutInput(layer.without_input(saved))
    return saved


def sublayer_backward(norm: Layer, layer: Layer, dy: Array, saved: list[Any]) -> Any:
    """The gradients of the layer's inputs. saved ends in what norm and layer saved; the latter is taken out of
    it, so that its memory is free when this returns."""
    its = saved.pop()
    if isinstance(its, WithoutInput):
        return layer.backward(dy, its.saved, x=norm(saved[-1].x))
    return layer.backward(dy, its)


class Sublayers:
    """What `EncoderBlock` and `DecoderBlock` share. A sub-layer ends in a projection, so its output is a fresh array.

    queries: an option of attention, which then answers for so many of the first rows of x (B, T, dim); the others' way
    ends there, and y has the former.
    saved of one sub-layer: a list of what norm, layer and dropout saved, in the order in which they ran.
    """

    norm_first: bool
    dropout: Dropout

    def _forward(
        self,
        norm: LayerNorm,
        layer: Layer,
        x: Array,
        *others: Array,
        train: Train | None,
        queries: int | None = None,
        **options: Any,
    ) -> tuple[Array, list[Any]]:
        h, saved = x, []
        if queries is not None:  # a layer of one's own need not know of it
            options["queries"] = queries
        if self.norm_first:
            h, s = norm.forward(h)
            saved.append(s)
        h, s = layer.forward(h, *others, train=train, **options)
        saved.append(without_input(norm, layer, s, x) if self.norm_first else s)
        h, s = self.dropout.forward(h, train)
        saved.append(s)
        x = x[:, :queries]
        if self.norm_first:
            h += x
        else:
            _, h, s = norm.forward_sum(x, h)
            saved.append(s)
        return h, saved

    def _backward(self, norm: LayerNorm, layer: Layer, dy: Array, saved: list[Any]) -> tuple[Array, ...]:
        """dx, and the gradients of the layer's other inputs."""
        dsum = dy if self.norm_first else norm.backward(dy, saved.pop())
        dh = self.dropout.backward(dsum, saved.pop())
        dx = sublayer_backward(norm, layer, dh, saved)
        dx, *others = dx if isinstance(dx, tuple) else (dx,)
        whole = dx.shape == dsum.shape
        if self.norm_first:
            dx = norm.backward(dx, saved.pop(), residual=dsum if whole else None)
        if not (self.norm_first and whole):
            asked = dx[:, : dsum.shape[1]]
            asked += dsum
        return dx, *others

    def _evaluate(
        self, norm: LayerNorm, layer: Layer, x: Array, *others: Array, queries: int | None = None, **options: Any
    ) -> Array:
        if queries is not None:
            options["queries"] = queries
        return self._join(norm, x[:, :queries], layer(self._entry(norm, x), *others, **options))

    def _entry(self, norm: LayerNorm, x: Array) -> Array:
        """What a sub-layer sees of the stream."""
        return norm(x) if self.norm_first else x

    def _join(self, norm: LayerNorm, x: Array, h: Array) -> Array:
        """The stream after a sub-layer whose output is h; writes into h."""
        h += x
        return h if self.norm_first else norm(h)
