"""MultiHeadAttention: self and cross, with grouped key and value heads."""

from typing import Any, NamedTuple

from gpulayers import initialize
from gpulayers.backend import Array, empty
from gpulayers.growing import Growing
from gpulayers.initialize import Init, Rng
from gpulayers.layers.layer import Layer, check_flags, check_integer, check_number, floating_input
from gpulayers.layers.linear import Linear
from gpulayers.masks import check_hide, refuse_other_masks
from gpulayers.ops.attention import attention, attention_backward
from gpulayers.ops.masked_softmax import masked_softmax
from gpulayers.ops.matmul import matmul
from gpulayers.ops.rotary import rotary, rotary_tables
from gpulayers.step import Key, Train


class Saved(NamedTuple):
    projections: list[Any]
    parts: dict[str, Array]  # q, k, v as (B, length, heads, size), turned by the rotary positions
    hide: Array
    causal: bool
    out: Array
    weights: Array
    inverse: Array
    p: float
    draw: Key | None
    projection_out: Any


class Cache(NamedTuple):
    """Keys and values of the rows so far, head by head: (B, K, S, d) and (B, K, S, dv), growing along S.

    k, v: views of them as the projections made them, (B, S, K, d) and (B, S, K, dv).
    """

    keys: Growing
    values: Growing

    @property
    def k(self) -> Array:
        return self.keys.rows.swapaxes(1, 2)

    @property
    def v(self) -> Array:
        return self.values.rows.swapaxes(1, 2)

    def append(self, k: Array, v: Array) -> "Cache":
        return Cache(self.keys.append(k.swapaxes(1, 2)), self.values.append(v.swapaxes(1, 2)))

    @classmethod
    def of(cls, k: Array, v: Array) -> "Cache":
        return cls(*(Growing(x.swapaxes(1, 2), axis=2) for x in (k, v)))


class MultiHeadAttention(Layer):
    """out(concatenated heads of softmax(q k' / sqrt(head_dim)) v), q, k and v being linear in the inputs.

    How it is built fixes what forward takes:

    * self-attention, kdim None:  forward(x), parameters qkv, out; backward returns dx.
    * cross-attention, kdim given: forward(query, key), parameters q, kv, out; backward returns (dquery, dkey).
    * kdim and vdim given:        forward(query, key, value), parameters q, k, v, out; backward returns three.

    query, y: (B, T, dim). key: (B, S, kdim). value: (B, S, vdim).
    heads: H. kv_heads: K, of which each serves H / K query heads. head_dim: d of queries and keys. value_head_dim: of
    values. qkv.weight: (dim, H d + K d + K dv): columns of q, then k, then v, head after head. out.weight: (H dv, dim).
    Initial values as PyTorch: Xavier uniform into the heads, `Linear`'s out of them, biases 0; `init(shape, rng)`
    replaces both, `out_init` the one out.
    hide: boolean mask, True hides, broadcastable to (B, H, T, S) (`masks.padding_mask`, `masks.causal_mask`). causal:
    hides the future, the last query sees all keys. A query that sees no key gets zeros (and then out.bias).
    dropout: probability to drop a weight, in training. rotary: turns q and k by their positions (self-attention only).
    saved: the inputs, q, k, v, the weights (B, H, T, S) before dropout and the heads' output.

    Raises ValueError for heads that do not divide, or a wrong shape; TypeError for a mask that is not boolean.
    Source: Vaswani et al., Attention is all you need, 2017, section 3.2.2; Ainslie et al., GQA, 2023.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        value_head_dim: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        rotary: bool = False,
        rotary_base: float = 10000.0,
        init: Init | None = None,
        out_init: Init | None = None,
        rng: Rng = None,
        dtype: str = "float32",
    ) -> None:
        sizes = {"dim": dim, "head_dim": head_dim, "value_head_dim": value_head_dim, "kdim": kdim, "vdim": vdim}
        check_integer("MultiHeadAttention", dim=dim, heads=heads)
        for name, size in {"kv_heads": kv_heads, **sizes}.items():
            if size is not None:
                check_integer("MultiHeadAttention", **{name: size})
        if heads < 1 or (head_dim is None and dim % heads):
            raise ValueError(f"MultiHeadAttention: heads must divide dim, got {heads} heads for dim {dim}")
        kv_heads = heads if kv_heads is None else kv_heads
        if kv_heads < 1 or heads % kv_heads:
            raise ValueError(f"MultiHeadAttention: kv_heads must divide heads, got {kv_heads} for {heads} heads")
        if vdim is not None and kdim is None:
            raise ValueError("MultiHeadAttention: vdim is given without kdim")
        if small := [f"{name} = {size}" for name, size in sizes.items() if size is not None and size < 1]:
            raise ValueError(f"MultiHeadAttention: sizes must be at least 1, got {', '.join(small)}")
        check_number("MultiHeadAttention", dropout=dropout)
        check_flags("MultiHeadAttention", bias=bias, rotary=rotary)
        if not 0 <= dropout < 1:
            raise ValueError(f"MultiHeadAttention: dropout must be in [0, 1), got {dropout}")
        self.dim, self.heads, self.kv_heads = dim, heads, kv_heads
        self.kdim, self.vdim, self.dropout = kdim, vdim, dropout
        self.head_dim = dim // heads if head_dim is None else head_dim
        self.value_head_dim = self.head_dim if value_head_dim is None else value_head_dim
        if rotary and (kdim is not None or self.head_dim % 2):
            raise ValueError("MultiHeadAttention: rotary positions need self-attention and an even head_dim")
        self.rotary_base = float(rotary_base) if rotary else None
        self.scale = self.head_dim**-0.5
        rng = initialize.generator(rng)

        def linear(size: int, width: int, init: Init | None) -> Linear:
            layer = Linear(size, width, bias, init=init, rng=rng, dtype=dtype)
            if layer.bias is not None:
                layer.bias.data[...] = 0
            return layer

        def projection(size: int, parts: str) -> Linear:
            width = sum(count * channels for count, channels in map(self._heads_of, parts))
            return linear(size, width, init or initialize.xavier_uniform)

        if kdim is None:
            self.inputs = ("qkv",)  # one name per input of forward; its letters say what is projected from it
            self.qkv = projection(dim, "qkv")
        elif vdim is None:
            self.inputs = ("q", "kv")
            self.q, self.kv = projection(dim, "q"), projection(kdim, "kv")
        else:
            self.inputs = ("q", "k", "v")
            self.q, self.k, self.v = projection(dim, "q"), projection(kdim, "k"), projection(vdim, "v")
        self.out = linear(heads * self.value_head_dim, dim, out_init or init)

    def __call__(
        self,
        query: Array,
        key: Array = None,
        value: Array = None,
        *,
        hide: Array = None,
        causal: bool = False,
        **other: Any,
    ) -> Array:
        refuse_other_masks(other, "MultiHeadAttention")
        parts, _ = self._project((query, key, value))
        hide = self._checked(hide, parts)
        out, _, _ = attention(parts["q"], parts["k"], parts["v"], hide, causal, self.scale, 0.0, None, save=False)
        return self.out(self._merge(out))

    def forward(
        self,
        query: Array,
        key: Array = None,
        value: Array = None,
        *,
        hide: Array = None,
        causal: bool = False,
        train: Train | None = None,
        **other: Any,
    ) -> tuple[Array, Saved]:
        refuse_other_masks(other, "MultiHeadAttention")
        parts, projections = self._project((query, key, value))
        hide = self._checked(hide, parts)
        p = 0.0 if train is None else self.dropout
        draw = train.draw() if train is not None and p else None
        out, weights, inverse = attention(parts["q"], parts["k"], parts["v"], hide, causal, self.scale, p, draw)
        y, projection_out = self.out.forward(self._merge(out))
        return y, Saved(projections, parts, hide, causal, out, weights, inverse, p, draw, projection_out)

    def backward(self, dy: Array, saved: Saved) -> Any:
        q, k, v = (saved.parts[letter] for letter in "qkv")
        dout = self.out.backward(dy, saved.projection_out).reshape(saved.out.shape)
        # The gradients of q, k and v lie side by side, as their projections made them.
        buffers = []
        for name in self.inputs:
            shape = (*saved.parts[name[0]].shape[:2], getattr(self, name).out_features)
            buffers.append(empty(shape, dout.dtype, like=dout))
        parts = self._split(buffers, self.inputs)
        attention_backward(
            dout, q, k, v, saved.out, saved.weights, saved.inverse, saved.hide, saved.causal, self.scale,
            saved.p, saved.draw, parts["q"], parts["k"], parts["v"],
        )  # fmt: skip
        self._turn(parts, backward=True)
        gradients = []
        for name, buffer in zip(self.inputs, buffers, strict=True):
            gradients.append(getattr(self, name).backward(buffer, saved.projections.pop(0)))
        return gradients[0] if len(gradients) == 1 else tuple(gradients)

    def weights(self, query: Array, key: Array = None, *, hide: Array = None, causal: bool = False) -> Array:
        """The attention weights in evaluation, (B, H, T, S); rows sum to 1, or to 0 where everything is hidden."""
        parts, _ = self._project((query, key), self.inputs[:2])  # separate values take no part
        hide = self._checked(hide, parts)
        q, k = parts["q"].swapaxes(1, 2), parts["k"].swapaxes(1, 2)  # (B, H, T, d), (B, K, S, d)
        (B, H, T, d), (_, K, S, _) = q.shape, k.shape
        scores = matmul(q.reshape(B, K, H // K, T, d), k[:, :, None].swapaxes(-1, -2))
        return masked_softmax(scores.reshape(B, H, T, S), hide, self.scale, causal)

    def start(self, key: Array, value: Array = None) -> Cache:
        """Cross-attention: keys and values projected once, the cache with which `step` takes queries piece by piece."""
        if self.kdim is None:
            raise TypeError("MultiHeadAttention.start is for cross-attention; self-attention starts with cache=None")
        parts, _ = self._project((key, value), self.inputs[1:])
        return Cache.of(parts["k"], parts["v"])

    def step(self, x: Array, cache: Cache | None = None, *, hide: Array = None) -> tuple[Array, Cache]:
        """Evaluation, piece by piece: y, equal to the matching rows of a whole pass, and the cache for the next piece.

        Causal self-attention: the rows of x follow those that made `cache`, None at first; the new cache has theirs as
        well, and the old one stays what it was (`growing.py`). Cross-attention: `cache` comes from `start` and is
        handed back as it is.
        x: (B, T, dim), T is 1 when decoding. hide: broadcastable to (B, H, T, S), S counting the cached rows too.
        """
        alone = self.kdim is None
        if cache is None and not alone:
            raise TypeError("MultiHeadAttention.step takes the cache that start(key) made: this is cross-attention")
        if cache is not None and not isinstance(cache, Cache):
            raise TypeError(f"MultiHeadAttention.step takes the cache that step gave, got {type(cache).__name__}")
        parts, _ = self._project((x,), self.inputs[:1], start=0 if cache is None else cache.keys.length)
        if cache is not None and len(cache.k) != len(x):
            raise ValueError(f"MultiHeadAttention.step takes a cache of {len(x)} samples, got {len(cache.k)}")
        if alone:
            k, v = parts["k"], parts["v"]
            cache = Cache.of(k, v) if cache is None else cache.append(k, v)
        assert cache is not None
        k, v = cache.k, cache.v
        hide = self._checked(hide, {"q": parts["q"], "k": k})
        causal = alone and x.shape[1] > 1  # one query sees everything up to itself
        out, _, _ = attention(parts["q"], k, v, hide, causal, self.scale, 0.0, None, save=False)
        return self.out(self._merge(out)), cache

    # ------------------------------------------------------------------------------------------ the parts

    def _heads_of(self, letter: str) -> tuple[int, int]:
        """Number and size of the heads of q, k or v."""
        return {
            "q": (self.heads, self.head_dim),
            "k": (self.kv_heads, self.head_dim),
            "v": (self.kv_heads, self.value_head_dim),
        }[letter]

    def _project(
        self, inputs: tuple[Array, ...], names: tuple[str, ...] = (), start: int = 0
    ) -> tuple[dict[str, Array], list[Any]]:
        """q, k and v as (B, length, heads, size), and what the projections saved. start: position of the first row."""
        names = names or self.inputs
        given = [x for x in inputs if x is not None]
        self._check_inputs(given, names)
        buffers, saved = [], []
        for name, x in zip(names, given, strict=True):
            y, its = getattr(self, name).forward(x)
            buffers.append(y)
            saved.append(its)
        parts = self._split(buffers, names)
        self._turn(parts, start)
        return parts, saved

    def _check_inputs(self, given: list[Array], names: tuple[str, ...]) -> None:
        every = zip(("query", "key", "value"), self.inputs, (self.dim, self.kdim, self.vdim), strict=False)
        wanted = [(argument, size) for argument, name, size in every if name in names]
        if len(given) != len(names):
            raise TypeError(
                f"this MultiHeadAttention (kdim={self.kdim}, vdim={self.vdim}) takes "
                f"{', '.join(argument for argument, _ in wanted)}, got {len(given)} of them"
            )
        for x, (argument, size) in zip(given, wanted, strict=True):
            floating_input(x, "MultiHeadAttention")
            if x.ndim != 3 or x.shape[2] != size or len(x) != len(given[0]):
                batch, length = "B" if x is given[0] else str(len(given[0])), "T" if argument == "query" else "S"
                raise ValueError(
                    f"MultiHeadAttention takes a {argument} of shape ({batch}, {length}, {size}), got {x.shape}"
                )
        if names[-1] == "v" and given[-2].shape[1] != given[-1].shape[1]:
            raise ValueError(
                f"MultiHeadAttention takes as many values as keys, got {given[-1].shape[1]} for {given[-2].shape[1]}"
            )

    def _split(self, buffers: list[Array], names: tuple[str, ...]) -> dict[str, Array]:
        """Views (B, length, heads, size) into what the projections made, (B, length, sum of heads times size)."""
        parts = {}
        for name, buffer in zip(names, buffers, strict=True):
            start = 0
            for letter in name:
                heads, size = self._heads_of(letter)
                stop = start + heads * size
                parts[letter] = buffer[..., start:stop].reshape(*buffer.shape[:2], heads, size)
                start = stop
        return parts

    def _turn(self, parts: dict[str, Array], start: int = 0, backward: bool = False) -> None:
        """Rotary positions, in place: q and k are our own arrays. Backward turns the other way."""
        if self.rotary_base is None:
            return
        cos, sin = rotary_tables(parts["q"].shape[1], self.head_dim, self.rotary_base, parts["q"], start)
        for letter in "qk":
            rotary(parts[letter], cos, -sin if backward else sin, out=parts[letter])

    def _checked(self, hide: Array, parts: dict[str, Array]) -> Array:
        B, T = parts["q"].shape[:2]
        return check_hide(hide, (B, self.heads, T, parts["k"].shape[1]), "MultiHeadAttention")

    def _merge(self, out: Array) -> Array:
        """(B, T, H, dv) -> (B, T, H dv)."""
        return out.reshape(*out.shape[:2], self.heads * self.value_head_dim)
