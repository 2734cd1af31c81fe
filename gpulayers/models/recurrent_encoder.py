"""The encoder of a recurrent encoder-decoder, and the bridge from its context to the decoder's first state."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpulayers.backend import Array, array_module
from gpulayers.layers.dropout import Dropout
from gpulayers.layers.embedding import Embedding
from gpulayers.layers.gru import GRU
from gpulayers.layers.layer import Layer
from gpulayers.layers.linear import Linear
from gpulayers.layers.lstm import LSTM
from gpulayers.layers.rnn import RNN
from gpulayers.models.context import CONTEXTS
from gpulayers.ops.sigmoid import tanh, tanh_backward
from gpulayers.step import Train

if TYPE_CHECKING:
    from gpulayers.models.seq2seq import Seq2SeqConfig

NETWORKS: dict[str, Any] = {"rnn": RNN, "gru": GRU, "lstm": LSTM}


class Encoded(NamedTuple):
    """What the decoder is told of the sources. Of a gradient, memory and context may be None, and hidden is."""

    memory: Array  # (B, S, M)
    context: Array  # (B, C)
    state: Any  # the decoder's first state, as its network takes it: (layers, B, H), a pair of them for LSTM
    hidden: Array  # (B, S), True at padding


def lengths_of(ids: Array, pad: int) -> Array:
    """(B,) int32: how many ids come before the padding at the end of each row."""
    xp = array_module(ids)
    if ids.shape[1] == 0:
        return xp.zeros(len(ids), np.int32)
    return xp.where(ids != pad, xp.arange(1, ids.shape[1] + 1), 0).max(axis=1).astype(np.int32)


class Encoder(Layer):
    """Source ids (B, S) to `Encoded`:

        memory, final = network(dropout(embedding(source)))
        context       = last, both, mean or max (models/context.py)
        state         = bridge(context), or final itself if the encoder has one direction and the context is "last"

    Padding at the end of a row changes nothing. saved: a list, one entry per sub-layer.
    """

    def __init__(self, config: "Seq2SeqConfig", rng: np.random.Generator, dtype: str) -> None:
        c, directions = config, 2 if config.bidirectional else 1
        self.pad, self.pair = c.pad, c.cell == "lstm"
        self.memory_size = directions * c.hidden
        self.context_size = c.hidden if c.context == "last" else self.memory_size
        self.embedding = Embedding(c.source_vocab, c.dim, rng=rng, dtype=dtype)
        self.dropout = Dropout(c.dropout)
        self.network = NETWORKS[c.cell](
            c.dim, c.hidden, c.layers, dropout=c.dropout, bidirectional=c.bidirectional, rng=rng, dtype=dtype
        )
        self.context = CONTEXTS[c.context]()
        self.bridge = None
        if c.bidirectional or c.context != "last":
            self.bridge = Bridge(self.context_size, c.hidden, c.layers, self.pair, rng, dtype)

    def forward(self, source: Array, train: Train | None = None) -> tuple[Encoded, list[Any]]:
        lengths = lengths_of(source, self.pad)
        x, saved_embedding = self.embedding.forward(source)  # (B, S, D)
        x, saved_dropout = self.dropout.forward(x, train)
        (memory, final), saved_network = self.network.forward(x, lengths=lengths, train=train)
        last = final[0] if isinstance(final, tuple) else final
        context, saved_context = self.context.forward(memory, last, lengths)
        state, saved_bridge = (final, None) if self.bridge is None else self.bridge.forward(context)
        hidden = array_module(source).arange(source.shape[1]) >= lengths[:, None]
        saved = [saved_embedding, saved_dropout, saved_network, saved_context, saved_bridge]
        return Encoded(memory, context, state, hidden), saved

    def backward(self, d: Encoded, saved: list[Any]) -> None:
        dmemory, dcontext, dfinal, saved_bridge, saved_context = d.memory, d.context, d.state, saved.pop(), saved.pop()
        if self.bridge is not None:
            dcontext = total(dcontext, self.bridge.backward(d.state, saved_bridge))
            dfinal = None
        if dcontext is not None:
            more_memory, more_final = self.context.backward(dcontext, saved_context)
            dmemory = total(dmemory, more_memory)
            if more_final is not None:
                dfinal = with_first(dfinal, more_final, self.pair)
        dx, _ = self.network.backward((dmemory, dfinal), saved.pop())
        dx = self.dropout.backward(dx, saved.pop())
        self.embedding.backward(dx, saved.pop())


def total(a: Array, b: Array) -> Array:
    """The sum of those that are not None."""
    return b if a is None else a if b is None else a + b


def with_first(state: Any, more: Array, pair: bool) -> Any:
    """The gradient of a state, or None for none, with `more` added to that of h."""
    if not pair:
        return total(state, more)
    h, c = state or (None, None)
    return total(h, more), c


class Bridge(Layer):
    """A decoder's first state from the context: tanh(context W + b), cut into the states of its layers.

    context: (B, C). state: (layers, B, H), for LSTM a pair of them, h and c.
    saved: what Linear saved, and tanh's output.
    Source: Cho et al., Learning phrase representations using RNN encoder-decoder, 2014, appendix A.1.2.
    """

    def __init__(
        self, context_size: int, hidden: int, layers: int, pair: bool, rng: np.random.Generator, dtype: str
    ) -> None:
        self.hidden, self.layers, self.pair = hidden, layers, pair
        self.linear = Linear(context_size, (2 if pair else 1) * layers * hidden, rng=rng, dtype=dtype)

    def forward(self, context: Array, train: Train | None = None) -> tuple[Any, Any]:
        x, saved_linear = self.linear.forward(context)
        y = tanh(x)
        parts = y.reshape(len(y), 1 + self.pair, self.layers, self.hidden).transpose(
            1, 2, 0, 3
        )  # (1 or 2, layers, B, H)
        return (parts[0], parts[1]) if self.pair else parts[0], (saved_linear, y)

    def backward(self, dstate: Any, saved: Any) -> Array:
        saved_linear, y = saved
        parts = array_module(y).stack(dstate if self.pair else [dstate])
        dy = parts.transpose(2, 0, 1, 3).reshape(y.shape)
        return self.linear.backward(tanh_backward(dy, y), saved_linear)
