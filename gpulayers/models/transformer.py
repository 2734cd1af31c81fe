"""The Transformer: an encoder over the source, and a decoder that writes the target while it looks at the source.

    memory = encoder_norm(encoder blocks(source))            x = dropout(sqrt(dim) embedding[ids] + positions)
    logits = head(decoder_norm(decoder blocks(target, memory)))

The blocks are `EncoderBlock` and `DecoderBlock`, pre-norm or post-norm; the two last norms are there in pre-norm only.

Sources: Vaswani, Shazeer, Parmar, Uszkoreit, Jones, Gomez, Kaiser and Polosukhin, Attention is all you need, 2017
(post-norm, section 3; the scaled and shared embedding, 3.4; sinusoidal positions, 3.5); Xiong et al., On layer
normalization in the transformer architecture, 2020 (pre-norm).

Parameters beside those of torch.nn.Transformer, whose matrices are the transposes of these:

    source.embedding.weight           (source_vocab, dim)    has none; of torch.nn.Embedding
    source.positions.weight           (longest, dim)         has none; learned positions only
    encoder.i.*                       see `EncoderBlock`     encoder.layers.i.*
    encoder_norm.weight, .bias        (dim,)                 encoder.norm.weight, .bias
    target.embedding.weight           (target_vocab, dim)    has none; tied: it is source.embedding.weight
    target.positions.weight           (longest, dim)         has none; learned positions only
    decoder.i.*                       see `DecoderBlock`     decoder.layers.i.*
    decoder_norm.weight, .bias        (dim,)                 decoder.norm.weight, .bias
    head.weight, .bias                (dim, target_vocab)    has none; of torch.nn.Linear

A tied head is source.embedding.weight as well, and has no bias.
"""

import dataclasses
import json
import math
from typing import Any, NamedTuple

import numpy as np

from gpulayers import initialize
from gpulayers.backend import Array, array_module, empty
from gpulayers.growing import Growing
from gpulayers.layers.decoder_block import BlockCache, DecoderBlock
from gpulayers.layers.dropout import Dropout
from gpulayers.layers.embedding import Embedding
from gpulayers.layers.encoder_block import EncoderBlock
from gpulayers.layers.feedforward import ACTIVATIONS
from gpulayers.layers.layer import Layer, Once, check_choice, check_flags, check_integer, check_sizes
from gpulayers.layers.layernorm import LayerNorm
from gpulayers.layers.linear import Linear
from gpulayers.layers.positions import LearnedPositions, SinusoidalPositions
from gpulayers.layers.sequential import Sequential
from gpulayers.layers.tied_linear import TiedLinear
from gpulayers.masks import padding_mask
from gpulayers.models.load_model import load_model
from gpulayers.ops.embedding import check_integers
from gpulayers.step import Train
from gpulayers.storage import StrPath

POSITIONS = ("sinusoidal", "learned")


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """Sizes of a Transformer.

    source_vocab, target_vocab: numbers of tokens. layers: blocks of the encoder, and as many of the decoder.
    hidden: width of the feed-forward, None for that of `FeedForward`. activation: as in `FeedForward`.
    norm_first: pre-norm; False is post-norm, which wants a warm-up of the learning rate.
    dropout: after the embedding, on the attention weights and at the end of all sub-layers.
    bias: in linear layers and norms. tied: one table is both embeddings and the head; the vocabularies are one then.
    positions: "sinusoidal" or "learned". longest: ids of the longest target that decoding writes, and, if positions are
    learned, of the longest source and target at all.
    pad, bos, eos: ids of padding (hidden everywhere), of the begin and of the end of a target; no two are the same.
    """

    source_vocab: int
    target_vocab: int
    dim: int = 128
    heads: int = 4
    layers: int = 2
    hidden: int | None = None
    activation: str = "relu"
    norm_first: bool = True
    dropout: float = 0.0
    bias: bool = True
    tied: bool = False
    positions: str = "sinusoidal"
    longest: int = 64
    pad: int = 0
    bos: int = 1
    eos: int = 2

    def __post_init__(self) -> None:
        names = ("source_vocab", "target_vocab", "dim", "heads", "layers", "longest")
        check_sizes("TransformerConfig", **{name: getattr(self, name) for name in names})
        if self.hidden is not None:
            check_sizes("TransformerConfig", hidden=self.hidden)
        check_flags("TransformerConfig", norm_first=self.norm_first, bias=self.bias, tied=self.tied)
        check_integer("TransformerConfig", pad=self.pad, bos=self.bos, eos=self.eos)
        if self.dim % self.heads:
            raise ValueError(f"TransformerConfig: heads must divide dim, got {self.heads} heads and dim {self.dim}")
        check_choice("TransformerConfig", POSITIONS, positions=self.positions)
        check_choice("TransformerConfig", ACTIVATIONS, activation=self.activation)
        both = min(self.source_vocab, self.target_vocab)
        for name, vocab in (("pad", both), ("bos", self.target_vocab), ("eos", self.target_vocab)):
            if not 0 <= (found := getattr(self, name)) < vocab:
                raise ValueError(f"TransformerConfig: {name} must be an id in 0..{vocab - 1}, got {found}")
        if len({self.pad, self.bos, self.eos}) < 3:
            ids = (self.pad, self.bos, self.eos)
            raise ValueError(f"TransformerConfig: pad, bos and eos must be three ids, got {ids}")
        if self.tied and self.source_vocab != self.target_vocab:
            raise ValueError(
                f"TransformerConfig: tied needs one vocabulary, got {self.source_vocab} source and "
                f"{self.target_vocab} target ids"
            )


class TokenInput(Layer):
    """x = dropout(sqrt(dim) embedding[ids] + positions).

    ids: (B, T) integers. x: (B, T, dim). start: position of the first id. backward returns None: ids have no gradient.
    saved: the ids, start, and the key of the dropout.
    """

    def __init__(self, embedding: Embedding, config: TransformerConfig, rng: np.random.Generator, dtype: str) -> None:
        c = config
        self.scale = math.sqrt(c.dim)
        self.embedding = embedding
        self.positions: Layer = (
            SinusoidalPositions(c.dim)
            if c.positions == "sinusoidal"
            else LearnedPositions(c.longest, c.dim, rng=rng, dtype=dtype)
        )
        self.dropout = Dropout(c.dropout)

    def forward(self, ids: Array, train: Train | None = None, *, start: int = 0) -> tuple[Array, list[Any]]:
        x, saved_embedding = self.embedding.forward(ids)
        x *= self.scale  # rows of the table, copied: nobody else has them
        x, saved_positions = self.positions.forward(x, start=start)
        x, saved_dropout = self.dropout.forward(x, train)
        return x, [saved_embedding, saved_positions, saved_dropout]

    def backward(self, dy: Array, saved: list[Any]) -> None:
        dx = self.dropout.backward(dy, saved.pop())
        dx = self.positions.backward(dx, saved.pop())
        dx = array_module(dx).multiply(dx, self.scale, out=empty(dx.shape, dx.dtype, like=dx))
        self.embedding.backward(dx, saved.pop())


class State(NamedTuple):
    """A decoding in progress: what `Transformer.step` needs of the source and of the ids so far."""

    position: int
    hide: Growing  # (B, 1, 1, position), True where an id was padding
    hide_source: Array  # (B, 1, 1, S)
    caches: tuple[BlockCache, ...]


class Transformer(Layer):
    """Source and target ids to the logits of the next target id.

    source: (B, S), target: (B, T) integers below the vocabularies, padded with config.pad. The target starts with
    config.bos and is one step behind what is to be predicted. logits: (B, T, target_vocab).
    Padding is hidden from every attention; a source that is nothing but padding leaves the decoder with its own ids.
    Initial values: see `_initialize`, drawn by NumPy from `seed`. saved: a list, one entry per part.
    `backward(dlogits, saved)` adds to every parameter's gradient and returns None, since ids have no gradient.

    `start(source)` and `step(ids, state)` decode id by id.
    """

    def __init__(self, config: TransformerConfig, seed: initialize.Rng = 0, dtype: str = "float32") -> None:
        c, rng = config, initialize.generator(seed)
        self.config = config

        def blocks(kind: Any) -> list[Any]:
            options = {name: getattr(c, name) for name in ("hidden", "activation", "norm_first", "dropout", "bias")}
            return [kind(c.dim, c.heads, **options, rng=rng, dtype=dtype) for _ in range(c.layers)]

        def norm() -> Layer:
            return LayerNorm(c.dim, bias=c.bias, dtype=dtype) if c.norm_first else Sequential()

        embedding = Embedding(c.source_vocab, c.dim, rng=rng, dtype=dtype)
        self.source = TokenInput(embedding, c, rng, dtype)
        self.encoder: list[EncoderBlock] = blocks(EncoderBlock)
        self.encoder_norm = norm()
        embedding = embedding if c.tied else Embedding(c.target_vocab, c.dim, rng=rng, dtype=dtype)
        self.target = TokenInput(embedding, c, rng, dtype)
        self.decoder: list[DecoderBlock] = blocks(DecoderBlock)
        self.decoder_norm = norm()
        self.head: Layer = (
            TiedLinear(embedding.weight) if c.tied else Linear(c.dim, c.target_vocab, c.bias, rng=rng, dtype=dtype)
        )
        self._initialize(rng)

    def _initialize(self, rng: np.random.Generator) -> None:
        """Embeddings normal with standard deviation 1 / sqrt(dim), so that x has 1, and logits too where they are tied;
        matrices Xavier uniform; biases 0; gains and learned positions stay as they are."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                parameter.data.fill(0)
            elif name.endswith("embedding.weight"):
                parameter.data[...] = initialize.normal(parameter.shape, rng, self.config.dim**-0.5)
            elif parameter.data.ndim == 2 and "positions" not in name:
                parameter.data[...] = initialize.xavier_uniform(parameter.shape, rng)

    def forward(self, source: Array, target: Array, train: Train | None = None) -> tuple[Array, list[Any]]:
        hide_source, hide = self._masks(source, target)
        saved: list[Any] = Once()
        memory, s = self.source.forward(source, train)  # (B, S, D)
        saved.append(s)
        for block in self.encoder:
            memory, s = block.forward(memory, hide_source, train)
            saved.append(s)
        memory, s = self.encoder_norm.forward(memory)
        saved.append(s)

        x, s = self.target.forward(target, train)  # (B, T, D)
        saved.append(s)
        for block in self.decoder:
            x, s = block.forward(x, memory, hide, hide_source, train)
            saved.append(s)
        x, s = self.decoder_norm.forward(x)
        saved.append(s)
        logits, s = self.head.forward(x)  # (B, T, V)
        saved.append(s)
        return logits, saved

    def backward(self, dy: Array, saved: list[Any]) -> None:
        dx = self.head.backward(dy, saved.pop())
        dx = self.decoder_norm.backward(dx, saved.pop())
        dmemory = None
        for block in reversed(self.decoder):
            dx, d = block.backward(dx, saved.pop())
            if dmemory is None:  # every block looks at the memory
                dmemory = d
            else:
                dmemory += d
        self.target.backward(dx, saved.pop())

        dmemory = self.encoder_norm.backward(dmemory, saved.pop())
        for block in reversed(self.encoder):
            dmemory = block.backward(dmemory, saved.pop())
        self.source.backward(dmemory, saved.pop())

    def __call__(self, source: Array, target: Array) -> Array:
        hide_source, hide = self._masks(source, target)
        memory = self._encode(source, hide_source)
        x = self.target(target)
        for block in self.decoder:
            x = block(x, memory, hide, hide_source)
        return self.head(self.decoder_norm(x))

    def _encode(self, source: Array, hide_source: Array) -> Array:
        """The memory in evaluation, (B, S, D)."""
        memory = self.source(source)
        for block in self.encoder:
            memory = block(memory, hide_source)
        return self.encoder_norm(memory)

    # ------------------------------------------------------------------------------------------ decoding

    def start(self, source: Array) -> State:
        """Encode the source once, and project it once into every block's keys and values."""
        hide_source = self._mask(source, "source")
        memory = self._encode(source, hide_source)
        return State(
            0, Growing(hide_source[..., :0], axis=3), hide_source, tuple(block.start(memory) for block in self.decoder)
        )

    def step(self, ids: Array, state: State) -> tuple[Array, State]:
        """One id each, (B,), config.bos first -> logits (B, target_vocab) of the next, and the state after it.

        The logits equal those of a whole pass over the ids so far. The old state stays valid.
        """
        check_integers(ids, "Transformer.step")
        if not isinstance(state, State):
            raise TypeError(f"Transformer.step takes the state that start or step gave, got {type(state).__name__}")
        if ids.shape != (len(state.hide_source),):
            raise ValueError(f"Transformer.step takes ids of shape ({len(state.hide_source)},), got {ids.shape}")
        ids = ids[:, None]
        hide = state.hide.append(self._mask(ids, "target", state.position))
        x = self.target(ids, start=state.position)  # (B, 1, D)
        caches = []
        for block, cache in zip(self.decoder, state.caches, strict=True):
            x, cache = block.step(x, cache, hide.rows, state.hide_source)
            caches.append(cache)
        logits = self.head(self.decoder_norm(x))[:, 0]
        return logits, State(state.position + 1, hide, state.hide_source, tuple(caches))

    def attention(self, source: Array, target: Array) -> Array:
        """The weights of the last block's attention over the source, (B, H, T, S): row t, where it looks to predict the
        id after target[t]."""
        hide_source, hide = self._masks(source, target)
        memory = self._encode(source, hide_source)
        x = self.target(target)
        for block in self.decoder[:-1]:
            x = block(x, memory, hide, hide_source)
        return self.decoder[-1].weights(x, memory, hide, hide_source)

    # ------------------------------------------------------------------------------------------ checks and files

    def _masks(self, source: Array, target: Array) -> tuple[Array, Array]:
        hide_source, hide = self._mask(source, "source"), self._mask(target, "target")
        if len(source) != len(target):
            raise ValueError(f"Transformer takes as many targets as sources, got {len(target)} and {len(source)}")
        return hide_source, hide

    def _mask(self, ids: Array, which: str, start: int = 0) -> Array:
        """Check ids, and hide their padding, (B, 1, 1, length)."""
        check_integers(ids, f"Transformer ({which})")
        if ids.ndim != 2:
            raise ValueError(f"Transformer takes {which} ids of shape (B, length), got {ids.shape}")
        length, longest = start + ids.shape[1], self.config.longest
        if self.config.positions == "learned" and length > longest:
            raise ValueError(f"Transformer: a {which} of {length} ids is longer than its {longest} learned positions")
        return padding_mask(ids, self.config.pad)

    def save(self, path: StrPath, metadata: dict[str, str] | None = None) -> None:
        """Weights and sizes in one safetensors file, which `load` makes into a model again."""
        config = json.dumps(dataclasses.asdict(self.config))
        super().save(path, {"transformer_config": config, **(metadata or {})})


def load(path: StrPath, dtype: str = "float32") -> Transformer:
    """The model that `Transformer.save` wrote. Raises `storage.FileError`, one sentence, for any other file."""
    return load_model(path, "Transformer", lambda **sizes: Transformer(TransformerConfig(**sizes), dtype=dtype))
