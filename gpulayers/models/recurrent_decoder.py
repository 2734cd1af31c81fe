"""Decoders of a recurrent encoder-decoder: embedded target symbols and an encoded source to features for the head."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpulayers.backend import Array, array_module, empty, wide, zeros
from gpulayers.layers.additive_attention import AdditiveAttention
from gpulayers.layers.attention_weights import mask_rows
from gpulayers.layers.layer import Layer
from gpulayers.layers.linear import Linear
from gpulayers.layers.multiplicative_attention import MultiplicativeAttention
from gpulayers.models.recurrent_encoder import NETWORKS, Encoded, Encoder, total
from gpulayers.ops.matmul import matmul
from gpulayers.ops.sigmoid import tanh, tanh_backward
from gpulayers.step import Train

if TYPE_CHECKING:
    from gpulayers.models.seq2seq import Seq2SeqConfig


class State(NamedTuple):
    """Where decoding stands. Axis 0 of every array is the batch."""

    network: Any  # h (B, H) of each layer; for LSTM a pair of such tuples
    memory: Array = None  # (B, S, M)
    keys: Any = None  # of additive attention
    hidden: Array = None  # (B, S)
    context: Array = None  # (B, C), of the decoder that is told it in every step

    @property
    def rows(self) -> int:
        """B."""
        first = self.network[0]
        return len(first[0] if isinstance(first, tuple) else first)


def network_state(state: Any) -> Any:
    """(layers, B, H), or a pair of them, as the tuples that `step` of a recurrent layer gives and takes."""
    return tuple(tuple(part) for part in state) if isinstance(state, tuple) else tuple(state)


class Decoder(Layer, ABC):
    """What all decoders offer. x: (B, T, D), in `step` (B, D). `features` is the size of what they give.

    features, saved = decoder.forward(x, encoded, train)        dx, dencoded    = decoder.backward(dfeatures, saved)
    state           = decoder.start(encoded)                    features, state = decoder.step(x, state)
    """

    features: int

    @abstractmethod
    def start(self, encoded: Encoded) -> State: ...

    @abstractmethod
    def step(self, x: Array, state: State) -> tuple[Array, State]: ...

    def weights(self, saved: Any) -> Array:
        """Where each step looked, (B, T, S), from what forward saved. ValueError for a decoder without attention."""
        raise ValueError(f"{type(self).__name__} has no attention")


class InitialDecoder(Decoder):
    """The source is the first state, and nothing else: features = network(x, state).

    Source: Sutskever, Vinyals and Le, Sequence to sequence learning with neural networks, 2014, section 2.
    """

    def __init__(self, config: "Seq2SeqConfig", encoder: Encoder, rng: np.random.Generator, dtype: str) -> None:
        c = config
        self.network = NETWORKS[c.cell](c.dim, c.hidden, c.layers, dropout=c.dropout, rng=rng, dtype=dtype)
        self.features = c.hidden

    def forward(self, x: Array, encoded: Encoded, train: Train | None = None) -> tuple[Array, Any]:
        (y, _), saved = self.network.forward(x, encoded.state, train=train)
        return y, saved

    def backward(self, dy: Array, saved: Any) -> tuple[Array, Encoded]:
        dx, dstate = self.network.backward((dy, None), saved)
        return dx, Encoded(None, None, dstate, None)

    def start(self, encoded: Encoded) -> State:
        return State(network_state(encoded.state))

    def step(self, x: Array, state: State) -> tuple[Array, State]:
        y, network = self.network.step(x, state.network)
        return y, state._replace(network=network)


class EveryStepDecoder(Decoder):
    """The context c stands beside every symbol: y = network([x_t, c], state), features = [y_t, x_t, c].

    The head is linear where the paper has a maxout layer.
    Source: Cho et al., Learning phrase representations using RNN encoder-decoder, 2014, section 2.2, appendix A.1.2.
    """

    def __init__(self, config: "Seq2SeqConfig", encoder: Encoder, rng: np.random.Generator, dtype: str) -> None:
        c = config
        width = c.dim + encoder.context_size
        self.network = NETWORKS[c.cell](width, c.hidden, c.layers, dropout=c.dropout, rng=rng, dtype=dtype)
        self.dim, self.hidden, self.features = c.dim, c.hidden, c.hidden + width

    def forward(self, x: Array, encoded: Encoded, train: Train | None = None) -> tuple[Array, Any]:
        B, T, _ = x.shape
        context = array_module(x).broadcast_to(encoded.context[:, None], (B, T, encoded.context.shape[1]))
        beside = array_module(x).concatenate([x, context], axis=2)
        (y, _), saved = self.network.forward(beside, encoded.state, train=train)
        return array_module(x).concatenate([y, beside], axis=2), saved

    def backward(self, dy: Array, saved: Any) -> tuple[Array, Encoded]:
        dbeside, dstate = self.network.backward((dy[:, :, : self.hidden], None), saved)
        dbeside = dbeside + dy[:, :, self.hidden :]
        dcontext = dbeside[:, :, self.dim :].sum(axis=1, dtype=wide(dy.dtype)).astype(dy.dtype, copy=False)
        return dbeside[:, :, : self.dim], Encoded(None, dcontext, dstate, None)

    def start(self, encoded: Encoded) -> State:
        return State(network_state(encoded.state), context=encoded.context)

    def step(self, x: Array, state: State) -> tuple[Array, State]:
        beside = array_module(x).concatenate([x, state.context], axis=1)
        y, network = self.network.step(beside, state.network)
        return array_module(x).concatenate([y, beside], axis=1), state._replace(network=network)


class MultiplicativeDecoder(Decoder):
    """Attention after the network: y = network(x, state), c_t = attention(y_t, memory), features = tanh([c_t, y_t] W).

    What the network sees does not depend on where it looked, so all steps look at once (no input feeding).
    Source: Luong, Pham and Manning, Effective approaches to attention-based neural machine translation, 2015, section
    3.1, equations 5 and 8.
    """

    def __init__(self, config: "Seq2SeqConfig", encoder: Encoder, rng: np.random.Generator, dtype: str) -> None:
        c = config
        self.network = NETWORKS[c.cell](c.dim, c.hidden, c.layers, dropout=c.dropout, rng=rng, dtype=dtype)
        self.attention = MultiplicativeAttention(c.hidden, encoder.memory_size, c.decoder, rng=rng, dtype=dtype)
        self.combine = Linear(encoder.memory_size + c.hidden, c.hidden, bias=False, rng=rng, dtype=dtype)
        self.memory_size, self.features = encoder.memory_size, c.hidden

    def forward(self, x: Array, encoded: Encoded, train: Train | None = None) -> tuple[Array, Any]:
        (y, _), saved_network = self.network.forward(x, encoded.state, train=train)
        B, T, S = (*y.shape[:2], encoded.memory.shape[1])
        rows = mask_rows(encoded.hidden[:, None, None], B, T, S)
        context, look = self.attention.look(y, encoded.memory, rows)
        combined, saved_combine = self.combine.forward(array_module(x).concatenate([context, y], axis=2))
        features = tanh(combined)
        return features, [saved_network, look, saved_combine, features]

    def backward(self, dy: Array, saved: Any) -> tuple[Array, Encoded]:
        dcombined = self.combine.backward(tanh_backward(dy, saved.pop()), saved.pop())
        dquery, dmemory = self.attention.look_backward(dcombined[:, :, : self.memory_size], saved.pop())
        dquery += dcombined[:, :, self.memory_size :]  # a product that was just made
        dx, dstate = self.network.backward((dquery, None), saved.pop())
        return dx, Encoded(dmemory, None, dstate, None)

    def weights(self, saved: Any) -> Array:
        return saved[1].weights

    def start(self, encoded: Encoded) -> State:
        return State(network_state(encoded.state), memory=encoded.memory, hidden=encoded.hidden)

    def step(self, x: Array, state: State) -> tuple[Array, State]:
        y, network = self.network.step(x, state.network)
        context, _ = self.attention.look(y[:, None], state.memory, state.hidden[None, None])
        combined = self.combine(array_module(x).concatenate([context[:, 0], y], axis=1))
        return tanh(combined), state._replace(network=network)


class Step(NamedTuple):
    """What one step of the additive decoder keeps: of its look, and of each layer the dropout's key and the cell's."""

    look: Any
    cells: list[tuple[Any, Any]]


class AdditiveDecoder(Decoder):
    """Attention before the network: the state before the step says where to look.

        c_t      = attention(s_t-1, memory)                   s: the last layer's h
        s_t      = cells([x_t, c_t], s_t-1)
        features = [s_t, x_t, c_t]

    So the steps go one after the other. saved: the memory, and a list with what each step keeps. The head is linear
    where the paper has a maxout layer.
    Source: Bahdanau, Cho and Bengio, Neural machine translation by jointly learning to align and translate, 2015,
    section 3.1 and appendix A.2.
    """

    def __init__(self, config: "Seq2SeqConfig", encoder: Encoder, rng: np.random.Generator, dtype: str) -> None:
        c, width = config, config.dim + encoder.memory_size
        self.attention = AdditiveAttention(c.hidden, encoder.memory_size, c.hidden, rng=rng, dtype=dtype)
        self.network = NETWORKS[c.cell](width, c.hidden, c.layers, dropout=c.dropout, rng=rng, dtype=dtype)
        self.dim, self.hidden, self.features, self.pair = c.dim, c.hidden, c.hidden + width, c.cell == "lstm"

    def forward(self, x: Array, encoded: Encoded, train: Train | None = None) -> tuple[Array, Any]:
        (B, T, D), H, memory = x.shape, self.hidden, encoded.memory
        keys, rows = self.attention.keys(memory), encoded.hidden[None, None]
        features = empty((B, T, self.features), x.dtype, like=x)  # the steps write their part of it
        features[:, :, H : H + D] = x
        states, steps = self._by_layer(network_state(encoded.state)), []
        for t in range(T):
            context, look = self.attention.look(self._h(states[-1])[:, None], keys, memory, rows)
            features[:, t, H + D :] = context[:, 0]
            states, saved_cells = self._cells_forward(features[:, t, H:], states, train)
            features[:, t, :H] = self._h(states[-1])
            steps.append(Step(look, saved_cells))
        return features, (memory, steps)

    def backward(self, dy: Array, saved: Any) -> tuple[Array, Encoded]:
        (memory, steps), (B, T, _), H, D = saved, dy.shape, self.hidden, self.dim
        dbeside = dy[:, :, H:].copy()  # of [x_t, c_t], to which the cells add
        dkeys = zeros((B, memory.shape[1], H), wide(dy.dtype), like=dy)
        weights = empty((B, T, memory.shape[1]), dy.dtype, like=dy)
        dstates: list[Any] = [None] * len(self.network.cells)
        for t in reversed(range(T)):
            look, saved_cells = steps.pop()
            dstates[-1] = self._plus(dstates[-1], dy[:, t, :H])
            dx, dstates = self._cells_backward(dstates, saved_cells)
            dbeside[:, t] += dx
            dquery, dkeys_t = self.attention.look_backward(dbeside[:, t : t + 1, D:], memory, look)
            dstates[-1] = self._plus(dstates[-1], dquery[:, 0])
            dkeys += dkeys_t
            weights[:, t] = look.weights[:, 0]
        dmemory = self.attention.key.backward(dkeys.astype(dy.dtype, copy=False), memory)
        dmemory += matmul(weights.swapaxes(1, 2), dbeside[:, :, D:])
        return dbeside[:, :, :D], Encoded(dmemory, None, self._stacked(dstates, dy), None)

    def weights(self, saved: Any) -> Array:
        memory, steps = saved
        if not steps:
            return zeros((len(memory), 0, memory.shape[1]), memory.dtype, like=memory)
        return array_module(memory).concatenate([step.look.weights for step in steps], axis=1)

    def start(self, encoded: Encoded) -> State:
        keys = self.attention.keys(encoded.memory)
        return State(network_state(encoded.state), encoded.memory, keys, encoded.hidden)

    def step(self, x: Array, state: State) -> tuple[Array, State]:
        top = state.network[0][-1] if self.pair else state.network[-1]
        context, _ = self.attention.look(top[:, None], state.keys, state.memory, state.hidden[None, None])
        beside = array_module(x).concatenate([x, context[:, 0]], axis=1)
        y, network = self.network.step(beside, state.network)
        return array_module(x).concatenate([y, beside], axis=1), state._replace(network=network)

    # ------------------------------------------------------------------------------------------ the cells of a step

    def _cells_forward(self, x: Array, states: list[Any], train: Train | None) -> tuple[list[Any], list[Any]]:
        """New states of all layers, and what they save; a state is h, of LSTM (h, c)."""
        new, saved = [], []
        for k, cell in enumerate(self.network.cells):
            x, key = self.network.dropout.forward(x, train if k else None)
            state, its = cell.forward(x, states[k])
            new.append(state)
            saved.append((key, its))
            x = self._h(state)
        return new, saved

    def _cells_backward(self, dstates: list[Any], saved: list[Any]) -> tuple[Array, list[Any]]:
        dx, before = None, list(dstates)
        for k in reversed(range(len(before))):
            key, its = saved.pop()
            dx, before[k] = self.network.cells[k].backward(self._plus(dstates[k], dx), its)
            dx = self.network.dropout.backward(dx, key)
        return dx, before

    def _h(self, state: Any) -> Array:
        return state[0] if self.pair else state

    def _plus(self, dstate: Any, more: Array) -> Any:
        """The gradient of a layer's state, or None for none, with `more`, or None, added to that of h."""
        if not self.pair:
            return total(dstate, more)
        h, c = dstate or (None, None)
        return total(h, more), c

    def _by_layer(self, state: Any) -> list[Any]:
        return list(zip(*state, strict=True)) if self.pair else list(state)

    def _stacked(self, dstates: list[Any], like: Array) -> Any:
        """(layers, B, H) or a pair of them; zeros where there was no step."""
        if dstates[-1] is None:
            shape = (len(dstates), len(like), self.hidden)
            parts = [zeros(shape, like.dtype, like=like) for _ in range(1 + self.pair)]
        else:
            layers = zip(*dstates, strict=True) if self.pair else [dstates]
            parts = [array_module(like).stack(list(layer)) for layer in layers]
        return tuple(parts) if self.pair else parts[0]


DECODERS: dict[str, Any] = {
    "initial": InitialDecoder,
    "every_step": EveryStepDecoder,
    "additive": AdditiveDecoder,
    "dot": MultiplicativeDecoder,
    "general": MultiplicativeDecoder,
}
