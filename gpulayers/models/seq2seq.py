"""A recurrent encoder-decoder: one sequence of symbols to another.

    memory, context, state = encoder(source)                          models/recurrent_encoder.py, models/context.py
    features               = decoder(embedding(target_in), memory, context, state)      models/recurrent_decoder.py
    logits                 = dropout(features) W + b

target_in is the target behind a `bos`; the logits at place t are for the symbol that stands at place t of the target
with `eos` behind it. `pad` at the end of a row, in either, changes nothing.

Sources: those of the decoders; Bengio, Vinyals, Jaitly and Shazeer, Scheduled sampling for sequence prediction with
recurrent neural networks, 2015.
"""

import dataclasses
import json
from typing import Any

import numpy as np

from gpulayers import initialize
from gpulayers.backend import Array, array_module, is_array
from gpulayers.layers.dropout import Dropout
from gpulayers.layers.embedding import Embedding
from gpulayers.layers.layer import (
    Layer,
    Once,
    check_choice,
    check_dtype,
    check_flags,
    check_integer,
    check_number,
    check_sizes,
)
from gpulayers.layers.linear import Linear
from gpulayers.models.context import CONTEXTS
from gpulayers.models.load_model import load_model
from gpulayers.models.recurrent_decoder import DECODERS, Decoder, State
from gpulayers.models.recurrent_encoder import NETWORKS, Encoded, Encoder
from gpulayers.ops.dropout import dropout
from gpulayers.ops.embedding import check_integers
from gpulayers.step import Train
from gpulayers.storage import StrPath


@dataclasses.dataclass(frozen=True)
class Seq2SeqConfig:
    """Sizes and form of a `Seq2Seq`.

    source_vocab, target_vocab: number of symbols. dim: size of an embedding. hidden: size of a state.
    layers: of the encoder and of the decoder. cell: "rnn" (tanh), "gru" or "lstm".
    bidirectional: whether the encoder reads the source in both directions.
    context: "last", "both", "mean" or "max", see models/context.py. It becomes the decoder's first state.
    decoder: what else the decoder knows of the source: "initial" (nothing else), "every_step" (the context beside every
    symbol), "additive", "dot" or "general" (attention over the encoder's states).
    dropout: on embeddings, between layers and before the head.
    sampling: scheduled sampling, the probability that a training step feeds the decoder its own last symbol in place of
    the target's; it grows linearly from 0 over the first `sampling_steps` steps.
    longest: most symbols of a target that is decoded, eos included. pad, bos, eos: ids in both vocabularies.
    """

    source_vocab: int
    target_vocab: int
    dim: int = 64
    hidden: int = 128
    layers: int = 1
    cell: str = "gru"
    bidirectional: bool = True
    context: str = "both"
    decoder: str = "additive"
    dropout: float = 0.0
    sampling: float = 0.0
    sampling_steps: int = 0
    longest: int = 64
    pad: int = 0
    bos: int = 1
    eos: int = 2

    def __post_init__(self) -> None:
        sizes = ("source_vocab", "target_vocab", "dim", "hidden", "layers", "longest")
        check_sizes("Seq2SeqConfig", **{name: getattr(self, name) for name in sizes})
        check_number("Seq2SeqConfig", 0, 1, dropout=self.dropout, sampling=self.sampling)
        check_integer("Seq2SeqConfig", sampling_steps=self.sampling_steps, pad=self.pad, bos=self.bos, eos=self.eos)
        check_flags("Seq2SeqConfig", bidirectional=self.bidirectional)
        check_choice("Seq2SeqConfig", NETWORKS, cell=self.cell)
        check_choice("Seq2SeqConfig", CONTEXTS, context=self.context)
        check_choice("Seq2SeqConfig", DECODERS, decoder=self.decoder)
        if self.sampling_steps < 0:
            raise ValueError(f"Seq2SeqConfig: sampling_steps must be at least 0, got {self.sampling_steps}")
        if self.context == "both" and not self.bidirectional:
            raise ValueError("Seq2SeqConfig: context 'both' needs bidirectional=True; 'last' is that of one direction")
        if self.decoder == "dot" and self.bidirectional:
            raise ValueError(
                "Seq2SeqConfig: decoder 'dot' needs bidirectional=False, for states of both sides of one size; "
                "'general' takes both directions"
            )
        ids = (self.pad, self.bos, self.eos)
        if len(set(ids)) < 3 or min(ids) < 0 or max(ids) >= self.target_vocab or self.pad >= self.source_vocab:
            raise ValueError(
                f"Seq2SeqConfig: pad, bos and eos must be three ids inside the vocabularies, got {ids} with "
                f"source_vocab {self.source_vocab} and target_vocab {self.target_vocab}"
            )


class Seq2Seq(Layer):
    """Source ids and target ids to logits of the next target ids.

    source: (B, S). target_in: (B, T), from `bos` on. Both integers, padded at the end. logits: (B, T, target_vocab).
    Initial values: those of the layers, drawn by NumPy from `seed`.
    saved: a list, one entry per sub-layer. `backward(dlogits, saved)` adds to every parameter's gradient and returns
    None, since ids have no gradient; the choice of a sampled id has none either.

    Scheduled sampling, in training: first the decoder writes the inputs itself, symbol by symbol and without dropout,
    where a draw says so; then they go through the usual pass. That pass comes by the very states that led to the
    choices (but for dropout), so nothing is saved of the first.

    Raises TypeError, ValueError for ids that are none or do not fit.
    """

    def __init__(self, config: Seq2SeqConfig, seed: initialize.Rng = 0, dtype: str = "float32") -> None:
        check_dtype("Seq2Seq", dtype)
        rng, c = initialize.generator(seed), config
        self.config = config
        self.encoder = Encoder(c, rng, dtype)
        self.embedding = Embedding(c.target_vocab, c.dim, rng=rng, dtype=dtype)
        self.decoder: Decoder = DECODERS[c.decoder](c, self.encoder, rng, dtype)
        self.dropout = Dropout(c.dropout)
        self.head = Linear(self.decoder.features, c.target_vocab, rng=rng, dtype=dtype)

    def forward(self, source: Array, target_in: Array, train: Train | None = None) -> tuple[Array, list[Any]]:
        self._check(source, target_in)
        encoded, saved_encoder = self.encoder.forward(source, train)
        if train is not None and (p := self.sampling(train.step)) > 0:
            target_in = self._sampled(encoded, target_in, p, train)
        x, saved_embedding = self.embedding.forward(target_in)  # (B, T, D)
        x, saved_first = self.dropout.forward(x, train)
        features, saved_decoder = self.decoder.forward(x, encoded, train)
        features, saved_last = self.dropout.forward(features, train)
        logits, saved_head = self.head.forward(features)  # (B, T, V)
        return logits, Once([saved_encoder, saved_embedding, saved_first, saved_decoder, saved_last, saved_head])

    def backward(self, dy: Array, saved: list[Any]) -> None:
        dfeatures = self.head.backward(dy, saved.pop())
        dfeatures = self.dropout.backward(dfeatures, saved.pop())
        dx, dencoded = self.decoder.backward(dfeatures, saved.pop())
        dx = self.dropout.backward(dx, saved.pop())
        self.embedding.backward(dx, saved.pop())
        self.encoder.backward(dencoded, saved.pop())

    def attention(self, source: Array, target_in: Array) -> Array:
        """Where the decoder looks, in evaluation: (B, T, S), rows sum to 1. ValueError for one without attention."""
        self._check(source, target_in)
        encoded, _ = self.encoder.forward(source)
        _, saved = self.decoder.forward(self.embedding(target_in), encoded)
        return self.decoder.weights(saved)

    # ------------------------------------------------------------------------------------------ in steps

    def start(self, source: Array) -> State:
        """Encode the sources (B, S) once; the state from which `step` writes the targets."""
        check_integers(source, "Seq2Seq.start")
        if source.ndim != 2:
            raise ValueError(f"Seq2Seq.start takes sources of shape (B, S), got {source.shape}")
        return self.decoder.start(self.encoder.forward(source)[0])

    def step(self, ids: Array, state: State) -> tuple[Array, State]:
        """The last ids (B,) to the logits (B, target_vocab) of the next ones, and the new state; the old one stays."""
        check_integers(ids, "Seq2Seq.step")
        if ids.ndim != 1:
            raise ValueError(f"Seq2Seq.step takes ids of shape (B,), got {ids.shape}")
        if not isinstance(state, State):
            raise TypeError(f"Seq2Seq.step takes the state that start or step gave, got {type(state).__name__}")
        if len(ids) != state.rows:
            raise ValueError(f"Seq2Seq.step takes ids of shape ({state.rows},), as many as the state, got {ids.shape}")
        features, state = self.decoder.step(self.embedding(ids), state)
        return self.head(features), state

    # ------------------------------------------------------------------------------------------ scheduled sampling

    def sampling(self, step: int) -> float:
        """The probability that training step `step` feeds a symbol of the decoder's own.

        Raises ValueError for a step in device memory where the probability depends on it: reading it would wait.
        """
        c = self.config
        if is_array(step) and c.sampling and c.sampling_steps:
            raise ValueError("Seq2Seq: sampling_steps needs a step on the host, got Train(step=<on the device>)")
        return c.sampling * min(1.0, step / c.sampling_steps) if c.sampling_steps else c.sampling

    def _sampled(self, encoded: Encoded, target_in: Array, p: float, train: Train) -> Array:
        """target_in with the likeliest id after the symbols before it where a draw says so; never in the place of the
        first id, nor of padding."""
        xp = array_module(target_in)
        drawn = dropout(xp.ones(target_in.shape, np.float32), train.draw(), p) == 0
        own = drawn & (target_in != self.config.pad)
        ids, state = target_in.copy(), self.decoder.start(encoded)
        for t in range(1, ids.shape[1]):
            logits, state = self.step(ids[:, t - 1], state)
            for never in (self.config.pad, self.config.bos):  # as in decoding: no target holds them
                logits[:, never] = -np.inf
            ids[:, t] = xp.where(own[:, t], logits.argmax(axis=1), ids[:, t])
        return ids

    def _check(self, source: Array, target_in: Array) -> None:
        for ids, name, letter in ((source, "a source", "S"), (target_in, "a target", "T")):
            check_integers(ids, f"Seq2Seq, as {name},")
            if ids.ndim != 2 or len(ids) != len(source):
                batch = "B" if ids is source else len(source)
                raise ValueError(f"Seq2Seq takes {name} of ids of shape ({batch}, {letter}), got {ids.shape}")

    def save(self, path: StrPath, metadata: dict[str, str] | None = None) -> None:
        """Weights and sizes in one safetensors file, which `load` makes into a model again."""
        super().save(path, {"seq2seq_config": json.dumps(dataclasses.asdict(self.config)), **(metadata or {})})


def load(path: StrPath, dtype: str = "float32") -> Seq2Seq:
    """The model that `Seq2Seq.save` wrote. Raises `storage.FileError`, one sentence, for any other file."""
    return load_model(path, "Seq2Seq", lambda **sizes: Seq2Seq(Seq2SeqConfig(**sizes), dtype=dtype))
