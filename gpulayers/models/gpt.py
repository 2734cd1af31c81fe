"""GPT-2: a decoder-only transformer, normalised before each sub-layer; its head is the token table, or its own matrix.

    x      = wte[ids] + wpe[0..T-1]
    x      = x + attention(ln_1(x))        }  `layers` times
    x      = x + feedforward(ln_2(x))      }
    logits = ln_f(x) wte'

Source: Radford, Wu, Child, Luan, Amodei and Sutskever, Language models are unsupervised multitask learners, 2019.

Parameter names beside those of the published GPT-2 weights. The layouts are the same: weights are (in, out), the
columns of qkv are q | k | v with the heads side by side.

    wte.weight                        (vocab, dim)       wte.weight
    wpe.weight                        (context, dim)     wpe.weight
    blocks.i.ln_1.weight, .bias       (dim,)             h.i.ln_1.weight, .bias
    blocks.i.attention.qkv.weight     (dim, 3 dim)       h.i.attn.c_attn.weight
    blocks.i.attention.out.weight     (dim, dim)         h.i.attn.c_proj.weight
    blocks.i.ln_2.weight, .bias       (dim,)             h.i.ln_2.weight, .bias
    blocks.i.feedforward.up.weight    (dim, 4 dim)       h.i.mlp.c_fc.weight
    blocks.i.feedforward.down.weight  (4 dim, dim)       h.i.mlp.c_proj.weight
    ln_f.weight, .bias                (dim,)             ln_f.weight, .bias
    head.weight, if it is not tied    (dim, vocab)       lm_head.weight, transposed

and a `.bias` beside each `.weight` of attention and feedforward.
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpulayers import initialize
from gpulayers.backend import Array, array_module, device_of, to_device, to_numpy, wide
from gpulayers.layers.attention import Cache, MultiHeadAttention
from gpulayers.layers.dropout import Dropout
from gpulayers.layers.embedding import Embedding
from gpulayers.layers.feedforward import ACTIVATIONS, FeedForward
from gpulayers.layers.layer import Layer, Once, check_choice, check_flags, check_sizes
from gpulayers.layers.layernorm import LayerNorm
from gpulayers.layers.linear import Linear
from gpulayers.layers.positions import LearnedPositions
from gpulayers.layers.sublayers import sublayer_backward, without_input
from gpulayers.layers.tied_linear import TiedLinear
from gpulayers.models.load_model import load_model
from gpulayers.ops.embedding import check_integers
from gpulayers.step import Train
from gpulayers.storage import StrPath


@dataclasses.dataclass(frozen=True)
class GPTConfig:
    """Sizes of a GPT.

    vocab: number of tokens. context: longest sequence. kv_heads: key/value heads, None for as many as `heads`.
    dropout: after the embedding, on the attention weights and at the end of both sub-layers; the former two have their
    own where embedding_dropout and attention_dropout are given.
    bias: in linear layers and norms. rotary: rotary positions in the attention instead of the learned table.
    tied: the head is the token table; otherwise a matrix of its own. hidden, activation: of the feed-forward, as
    `FeedForward` has them. norm_eps: of the norms.
    scale_attention: scores are divided by sqrt(dim / heads); scale_by_layer: and by the number of their block, from 1.
    """

    vocab: int
    context: int = 128
    layers: int = 4
    heads: int = 4
    dim: int = 128
    kv_heads: int | None = None
    dropout: float = 0.0
    bias: bool = True
    rotary: bool = False
    tied: bool = True
    hidden: int | None = None
    activation: str = "gelu_tanh"
    norm_eps: float = 1e-5
    embedding_dropout: float | None = None
    attention_dropout: float | None = None
    scale_attention: bool = True
    scale_by_layer: bool = False

    def __post_init__(self) -> None:
        for name in ("vocab", "context", "layers", "heads", "dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"GPTConfig: {name} must be at least 1, got {getattr(self, name)}")
        if self.dim % self.heads:
            raise ValueError(f"GPTConfig: heads must divide dim, got {self.heads} heads and dim {self.dim}")
        if self.hidden is not None:
            check_sizes("GPTConfig", hidden=self.hidden)
        check_flags("GPTConfig", tied=self.tied, scale_attention=self.scale_attention)
        check_flags("GPTConfig", scale_by_layer=self.scale_by_layer)
        check_choice("GPTConfig", ACTIVATIONS, activation=self.activation)


class Block(Layer):
    """x = x + attention(ln_1(x)); x = x + feedforward(ln_2(x)).

    x: (B, T, D). layer: the number of the block, from 0. saved: a list with the values of the sub-layers.
    """

    def __init__(self, config: GPTConfig, rng: np.random.Generator, dtype: str, layer: int = 0) -> None:
        c = config
        p = c.dropout if c.attention_dropout is None else c.attention_dropout
        self.ln_1 = LayerNorm(c.dim, c.norm_eps, c.bias, dtype=dtype)
        self.attention = MultiHeadAttention(
            c.dim, c.heads, kv_heads=c.kv_heads, bias=c.bias, dropout=p, rotary=c.rotary, rng=rng, dtype=dtype
        )
        if not c.scale_attention:
            self.attention.scale = 1.0
        if c.scale_by_layer:
            self.attention.scale /= layer + 1
        self.dropout = Dropout(c.dropout)
        self.ln_2 = LayerNorm(c.dim, c.norm_eps, c.bias, dtype=dtype)
        self.feedforward = FeedForward(c.dim, c.hidden, c.activation, c.bias, c.dropout, rng=rng, dtype=dtype)

    def forward(self, x: Array, train: Train | None = None) -> tuple[Array, list[Any]]:
        a, saved_ln_1 = self.ln_1.forward(x)
        a, saved_attention = self.attention.forward(a, causal=True, train=train)
        a, saved_dropout = self.dropout.forward(a, train)
        x, a, saved_ln_2 = self.ln_2.forward_sum(x, a)
        f, saved_feedforward = self.feedforward.forward(a, train)
        f += x  # a projection's output: nobody else keeps it
        saved_attention = without_input(self.ln_1, self.attention, saved_attention, x)
        saved_feedforward = without_input(self.ln_2, self.feedforward, saved_feedforward, x)
        return f, Once([saved_ln_1, saved_attention, saved_dropout, saved_ln_2, saved_feedforward])

    def backward(self, dy: Array, saved: list[Any]) -> Array:
        # a gradient of a sub-layer's input is of no use after its norm: it has no name that would keep it
        dx = self.ln_2.backward(sublayer_backward(self.ln_2, self.feedforward, dy, saved), saved.pop(), residual=dy)
        da = self.dropout.backward(dx, saved.pop())
        return self.ln_1.backward(sublayer_backward(self.ln_1, self.attention, da, saved), saved.pop(), residual=dx)

    def __call__(self, x: Array) -> Array:
        a = self.attention(self.ln_1(x), causal=True)
        x, f, _ = self.ln_2.forward_sum(x, a)
        f = self.feedforward(f)
        f += x
        return f

    def weights(self, x: Array) -> Array:
        """The attention weights in evaluation, (B, H, T, T)."""
        return self.attention.weights(self.ln_1(x), causal=True)

    def step(self, x: Array, cache: Cache | None = None, hide: Array = None) -> tuple[Array, Cache]:
        """Evaluation, piece by piece: the rows of x follow those that made `cache`, None at first; see
        `MultiHeadAttention.step`."""
        a, cache = self.attention.step(self.ln_1(x), cache, hide=hide)
        x, f, _ = self.ln_2.forward_sum(x, a)
        f = self.feedforward(f)
        f += x
        return f, cache


class State(NamedTuple):
    """A text, or several, that the model has read: what `GPT.step` needs of it."""

    length: int  # ids read, padding in front counted
    padding: np.ndarray | None  # (B,) ids of each row that are padding, in host memory; None: none are
    caches: tuple[Cache, ...]


class Load:
    """`GPT.load(path, dtype)` makes the model of a file or folder; `model.load(path)` reads one into `model`."""

    def __get__(self, model: "GPT | None", owner: type) -> Callable[..., Layer]:
        return load if model is None else functools.partial(Layer.load, model)


class GPT(Layer):
    """Token ids to next-token logits.

    ids: (B, T) integers below config.vocab, T at most config.context. logits: (B, T, vocab).
    Initial values: GPT-2's, drawn by NumPy from `seed`. saved: a list, one entry per sub-layer.
    `backward(dlogits, saved)` adds to every parameter's gradient and returns None, since ids have no gradient.

    `step(ids, state)` reads on where it stopped, with the keys and values of what it has read.
    """

    def __init__(self, config: GPTConfig, seed: initialize.Rng = 0, dtype: str = "float32") -> None:
        rng = initialize.generator(seed)
        self.config = config
        self.wte = Embedding(config.vocab, config.dim, rng=rng, dtype=dtype)
        self.wpe = None if config.rotary else LearnedPositions(config.context, config.dim, rng=rng, dtype=dtype)
        self.dropout = Dropout(config.dropout if config.embedding_dropout is None else config.embedding_dropout)
        self.blocks = [Block(config, rng, dtype, layer) for layer in range(config.layers)]
        self.ln_f = LayerNorm(config.dim, config.norm_eps, config.bias, dtype=dtype)
        if config.tied:
            self.head = TiedLinear(self.wte.weight)
        else:
            self.head = Linear(config.dim, config.vocab, bias=False, rng=rng, dtype=dtype)
        self._initialize(rng)

    def _initialize(self, rng: np.random.Generator) -> None:
        """Matrices normal with std 0.02, the projections back into the residual smaller; biases 0; gains stay 1."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                parameter.data.fill(0)
            elif parameter.data.ndim == 2:
                into_residual = name.endswith(("attention.out.weight", "feedforward.down.weight"))
                layers = 2 * self.config.layers if into_residual else 0
                parameter.data[...] = initialize.gpt2(parameter.shape, rng, layers)

    def _check(self, ids: Array) -> None:
        check_integers(ids, "GPT")
        if ids.ndim != 2 or ids.shape[1] > self.config.context:
            raise ValueError(f"GPT takes ids of shape (B, T) with T at most {self.config.context}, got {ids.shape}")

    def forward(self, ids: Array, train: Train | None = None) -> tuple[Array, list[Any]]:
        self._check(ids)
        saved: list[Any] = Once()
        x, s = self.wte.forward(ids)  # (B, T, D)
        saved.append(s)
        for layer in self._trunk():
            x, s = layer.forward(x, train)
            saved.append(s)
        return x, saved  # (B, T, V)

    def backward(self, dy: Array, saved: list[Any]) -> None:
        for layer in reversed(self._trunk()):
            dy = layer.backward(dy, saved.pop())
        self.wte.backward(dy, saved.pop())

    def __call__(self, ids: Array) -> Array:
        self._check(ids)
        x = self.wte(ids)
        for layer in self._trunk():
            x = layer(x)
        return x

    def step(
        self, ids: Array, state: State | None = None, *, padding: Any = None, last: bool = False
    ) -> tuple[Array, State]:
        """Evaluation, piece by piece: the logits of `ids`, equal to those of a whole pass, and the state for the next.

        ids: (B, T), which follow those that made `state`, None at first; logits (B, T, vocab). Or (B,), one id each;
        logits (B, vocab). last: only the last id's logits, (B, vocab): the head is a third of GPT-2's work.
        padding: with the first piece of texts of unequal length, how many ids in front of each row are padding, (B,);
        they may be any ids. A row's positions count from its first real id, and padding is never looked at, so a row
        comes out as it does alone. The old state stays valid.

        Raises ValueError for a text longer than the context, an id out of range, a state of another batch.
        """
        ids, state, one = self._read(ids, state, padding)
        start, T, xp = state.length, ids.shape[1], array_module(ids)
        x, hide, positions = self.wte(ids), None, None  # (B, T, D)
        if state.padding is not None:
            columns, front = xp.arange(start + T), to_device(state.padding, device_of(ids))[:, None]
            hide = (columns < front)[:, None, None]  # (B, 1, 1, start + T)
            positions = xp.maximum(columns[start:] - front, 0)  # (B, T)
        if self.wpe is not None:
            x = self.wpe(x, start=start) if positions is None else self.wpe.at(x, positions)
        caches = []
        for block, cache in zip(self.blocks, state.caches or (None,) * len(self.blocks), strict=True):
            x, cache = block.step(x, cache, hide)
            caches.append(cache)
        logits = self.head(self.ln_f(x[:, -1:] if last else x))
        return logits[:, -1] if one or last else logits, State(start + T, state.padding, tuple(caches))

    def _read(self, ids: Array, state: State | None, padding: Any) -> tuple[Array, State, bool]:
        """Check the arguments of `step`: ids (B, T), the state (without caches before the first piece), whether ids
        were one each."""
        check_integers(ids, "GPT.step")
        if state is not None and not isinstance(state, State):
            raise TypeError(f"GPT.step takes the state that step gave, got {type(state).__name__}")
        if ids.ndim not in (1, 2) or (state is not None and len(state.caches[0].k) != len(ids)):
            batch = "B" if state is None else len(state.caches[0].k)
            raise ValueError(f"GPT.step takes ids of shape ({batch}, T) or ({batch},), got {ids.shape}")
        one = ids.ndim == 1
        ids = ids[:, None] if one else ids
        if state is not None and padding is not None:
            raise ValueError("GPT.step takes padding= with the first piece only: later ids have none in front of them")
        if state is None:
            state = State(0, _padding(padding, *ids.shape), ())
        least = 0 if state.padding is None or not len(ids) else int(state.padding.min())
        if (length := state.length + ids.shape[1] - least) > self.config.context:
            raise ValueError(f"GPT.step: a text of {length} ids is longer than the context of {self.config.context}")
        return ids, state, one

    def attention(self, ids: Array) -> Iterator[Array]:
        """Block after block, how much each id looks at those up to itself: (B, H, T, T), float32 or wider."""
        self._check(ids)
        x = self.wte(ids) if self.wpe is None else self.wpe(self.wte(ids))
        for block in self.blocks:
            weights = block.weights(x)
            yield weights.astype(wide(weights.dtype), copy=False)
            x = block(x)

    def _trunk(self) -> list[Layer]:
        """The layers after the token table, in order."""
        positions = [] if self.wpe is None else [self.wpe]
        return [*positions, self.dropout, *self.blocks, self.ln_f, self.head]

    def save(self, path: StrPath, metadata: dict[str, str] | None = None) -> None:
        """Weights and sizes in one safetensors file, which `load` makes into a model again."""
        super().save(path, {"gpt_config": json.dumps(dataclasses.asdict(self.config)), **(metadata or {})})

    def save_pretrained(self, folder: StrPath, tokenizer: Any = None) -> None:
        """Weights, sizes and, where given, a `SubwordTokenizer` as a folder that transformers opens, and `GPT.load`.

        Raises ValueError for a model that is no GPT-2, with rotary positions say; FileError where the folder is taken.
        """
        from gpulayers.models.huggingface import save_gpt2

        save_gpt2(self, folder, tokenizer)

    load: Any = Load()


def _padding(counts: Any, B: int, T: int) -> np.ndarray | None:
    """`counts` as integers in host memory, or None where nothing is padding."""
    if counts is None:
        return None
    counts = to_numpy(np.asarray(counts) if isinstance(counts, list | tuple) else counts)
    if counts.dtype.kind not in "iu" or counts.shape != (B,) or not ((counts >= 0) & (counts < max(1, T))).all():
        raise ValueError(f"GPT.step takes padding= as {B} integers in 0..{T - 1}, one for each row, got {counts}")
    return counts.astype(np.int64) if counts.any() else None


def load(path: StrPath, dtype: str = "float32") -> GPT:
    """The model in the file that `GPT.save` wrote, or in a folder of a GPT-2 for transformers (`huggingface.py`).

    Raises `storage.FileError`, one sentence, for anything else.
    """
    if Path(path).is_dir():
        from gpulayers.models.huggingface import load_gpt2

        return load_gpt2(path, dtype)
    return load_model(path, "GPT", lambda **sizes: GPT(GPTConfig(**sizes), initialize.Nothing(), dtype))
