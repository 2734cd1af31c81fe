"""MultiHeadAttention: self and cross, with grouped key and value heads."""

from typing import Any, NamedTuple

from gpulayers import initialize
from gpulayers.backend import Array, empty
from gpulayers.growing import Growing
from gpulayers.initialize import Init, Rng
from gpulayers.layers.attention_door import WHO, as_batch, as_given, check_heads, check_inputs, check_options, zero_bias
from gpulayers.layers.layer import Layer, check_sizes
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
    batched: bool


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

    query, y: (B, T, dim). key: (B, S, kdim). value: (B, S, vdim); with batch_first=False the lengths come first,
    (T, B, dim); one sample may come without a batch, (T, dim), and goes so.
    heads: H. kv_heads: K, of which each serves H / K query heads. head_dim: d of queries and keys. value_head_dim: of
    values. qkv.weight: (dim, H d + K d + K dv): columns of q, then k, then v, head after head. out.weight: (H dv, dim).
    Initial values as PyTorch: Xavier uniform into the heads, `Linear`'s out of them, biases 0; `init(shape, rng)`
    replaces both, `out_init` the one out.
    hide: boolean mask, True hides, broadcastable to (B, H, T, S) (`masks.padding_mask`, `masks.causal_mask`). causal:
    hides the future, the last query sees all keys. A query that sees no key gets zeros (and then out.bias).
    dropout: probability to drop a weight, in training. rotary: turns q and k by their positions (self-attention only).
    softcap: cap tanh(scores / cap) stands for the scaled scores.
    queries: in self-attention, how many of the first rows are queries; None for all. y has as many, and T of the masks
    and weights is their number. All rows are keys and values.
    saved: the inputs, q, k, v, the heads' output, and the weights (B, H, T, S) before dropout, unless they are so many
    that backward makes them again (`ops/attention.py`).

    Raises ValueError for heads that do not divide, a wrong shape, or `queries` beside `causal`, whose last query sees
    all keys; TypeError for a mask that is not boolean.
    Source: Vaswani et al., Attention is all you need, 2017, section 3.2.2; Ainslie et al., GQA, 2023;
    Gemma Team, Gemma 2, 2024 (the soft cap).
    """

    qkv: Linear
    q: Linear
    k: Linear
    v: Linear
    kv: Linear

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
        batch_first: bool = True,
        softcap: float | None = None,
        rotary: bool = False,
        rotary_base: float = 10000.0,
        init: Init | None = None,
        out_init: Init | None = None,
        rng: Rng = None,
        dtype: str = "float32",
    ) -> None:
        kv_heads = check_heads(dim, heads, kv_heads, kdim, vdim, head_dim=head_dim, value_head_dim=value_head_dim)
        self.dim, self.heads, self.kv_heads, self.kdim, self.vdim = dim, heads, kv_heads, kdim, vdim
        self.head_dim = dim // heads if head_dim is None else head_dim
        self.value_head_dim = self.head_dim if value_head_dim is None else value_head_dim
        check_options(dropout, softcap, rotary, kdim is None, self.head_dim, bias=bias, batch_first=batch_first)
        self.dropout, self.batch_first, self.softcap = dropout, batch_first, float(softcap or 0.0)
        self.rotary_base = float(rotary_base) if rotary else None
        self.scale = self.head_dim**-0.5
        # One name per input of forward; its letters say what is projected from it.
        self.inputs = ("qkv",) if kdim is None else ("q", "kv") if vdim is None else ("q", "k", "v")
        rng = initialize.generator(rng)
        for name, size in zip(self.inputs, (dim, kdim or 0, vdim or 0), strict=False):
            width = sum(count * channels for count, channels in map(self._heads_of, name))
            setattr(self, name, zero_bias(size, width, bias, init or initialize.xavier_uniform, rng, dtype))
        self.out = zero_bias(heads * self.value_head_dim, dim, bias, out_init or init, rng, dtype)

    def __call__(
        self,
        query: Array,
        key: Array = None,
        value: Array = None,
        *,
        hide: Array = None,
        causal: bool = False,
        queries: int | None = None,
        **other: Any,
    ) -> Array:
        refuse_other_masks(other, WHO)
        parts, _, batched = self._project((query, key, value))
        self._keep_queries(parts, queries, causal)
        hide = self._checked(hide, parts)
        return self._evaluate(parts["q"], parts["k"], parts["v"], hide, causal, batched)

    def forward(
        self,
        query: Array,
        key: Array = None,
        value: Array = None,
        *,
        hide: Array = None,
        causal: bool = False,
        queries: int | None = None,
        train: Train | None = None,
        **other: Any,
    ) -> tuple[Array, Saved]:
        refuse_other_masks(other, WHO)
        parts, projections, batched = self._project((query, key, value))
        self._keep_queries(parts, queries, causal)
        hide = self._checked(hide, parts)
        p = 0.0 if train is None else self.dropout
        draw = train.draw() if train is not None and p else None
        q, k, v = (parts[letter] for letter in "qkv")
        out, weights, inverse = attention(q, k, v, hide, causal, self.scale, p, draw, softcap=self.softcap)
        y, saved_out = self.out.forward(self._merge(out, batched))
        return y, Saved(projections, parts, hide, causal, out, weights, inverse, p, draw, saved_out, batched)

    def without_input(self, saved: Saved) -> Saved:
        """`saved` without the query (of self-attention its one input), for a caller who can make it again and hands it
        to `backward`."""
        saved.projections[0] = None
        return saved

    def backward(self, dy: Array, saved: Saved, x: Array = None) -> Any:
        """x: the query, where `without_input` has taken it out of saved."""
        if x is not None:
            saved.projections[0] = x
        q, k, v = (saved.parts[letter] for letter in "qkv")
        layout = saved.batched, self.batch_first
        dmerged = self.out.backward(dy, saved.projection_out)
        dout = as_batch(dmerged.reshape(*dmerged.shape[:-1], *saved.out.shape[2:]), *layout)
        # The gradients of q, k and v lie side by side, as their projections made them.
        buffers = []
        for name in self.inputs:
            lead = as_given(saved.parts[name[-1]], *layout).shape[:-2]  # not of q, which may be some rows only
            buffers.append(empty((*lead, getattr(self, name).out_features), dout.dtype, like=dout))
        parts = self._split(buffers, self.inputs, saved.batched)
        asked = q.shape[1]
        parts["q"][:, asked:] = 0
        attention_backward(
            dout, q, k, v, saved.out, saved.weights, saved.inverse, saved.hide, saved.causal, self.scale,
            saved.p, saved.draw, parts["q"][:, :asked], parts["k"], parts["v"], softcap=self.softcap,
        )  # fmt: skip
        self._turn(parts, backward=True)
        gradients = []
        for name, buffer in zip(self.inputs, buffers, strict=True):
            gradients.append(getattr(self, name).backward(buffer, saved.projections.pop(0)))
        return gradients[0] if len(gradients) == 1 else tuple(gradients)

    def weights(self, query: Array, key: Array = None, *, hide: Array = None, causal: bool = False) -> Array:
        """The attention weights in evaluation, (B, H, T, S), or (H, T, S) of one sample.

        Rows sum to 1, or to 0 where everything is hidden. What PyTorch's need_weights returns is their mean over the
        heads, `weights(...).mean(axis=-3)`.
        """
        parts, _, batched = self._project((query, key), self.inputs[:2])  # separate values take no part
        hide = self._checked(hide, parts)
        q, k = parts["q"].swapaxes(1, 2), parts["k"].swapaxes(1, 2)  # (B, H, T, d), (B, K, S, d)
        (B, H, T, d), (_, K, S, _) = q.shape, k.shape
        scores = matmul(q.reshape(B, K, H // K, T, d), k[:, :, None].swapaxes(-1, -2))
        found = masked_softmax(scores.reshape(B, H, T, S), hide, self.scale, causal, self.softcap)
        return found if batched else found[0]

    def start(self, key: Array, value: Array = None) -> Cache:
        """Cross-attention: keys and values projected once, the cache with which `step` takes queries piece by piece."""
        if self.kdim is None:
            raise TypeError("MultiHeadAttention.start is for cross-attention; self-attention starts with cache=None")
        parts, _, _ = self._project((key, value), self.inputs[1:])
        return Cache.of(parts["k"], parts["v"])

    def step(self, x: Array, cache: Cache | None = None, *, hide: Array = None) -> tuple[Array, Cache]:
        """Evaluation, piece by piece: y, equal to the matching rows of a whole pass, and the cache for the next piece.

        Causal self-attention: the rows of x follow those that made `cache`, None at first; the new cache has theirs as
        well, and the old one stays what it was (`growing.py`). Cross-attention: `cache` comes from `start` and is
        handed back as it is.
        x: as query in forward; T is 1 when decoding. hide: broadcastable to (B, H, T, S), S with the cached rows.
        """
        alone = self.kdim is None
        if cache is None and not alone:
            raise TypeError("MultiHeadAttention.step takes the cache that start(key) made: this is cross-attention")
        if cache is not None and not isinstance(cache, Cache):
            raise TypeError(f"MultiHeadAttention.step takes the cache that step gave, got {type(cache).__name__}")
        parts, _, batched = self._project((x,), self.inputs[:1], start=0 if cache is None else cache.keys.length)
        B, T = parts["q"].shape[:2]
        if cache is not None and len(cache.k) != B:
            raise ValueError(f"MultiHeadAttention.step takes a cache of {B} samples, got {len(cache.k)}")
        if alone:
            k, v = parts["k"], parts["v"]
            cache = Cache.of(k, v) if cache is None else cache.append(k, v)
        assert cache is not None
        k, v = cache.k, cache.v
        hide = self._checked(hide, {"q": parts["q"], "k": k})
        causal = alone and T > 1  # one query sees everything up to itself
        return self._evaluate(parts["q"], k, v, hide, causal, batched), cache

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
    ) -> tuple[dict[str, Array], list[Any], bool]:
        """q, k and v as (B, length, heads, size), what the projections saved, and whether the inputs are batched.

        start: position of the first row.
        """
        names = names or self.inputs
        given = [x for x in inputs if x is not None]
        every = zip(("query", "key", "value"), self.inputs, (self.dim, self.kdim, self.vdim), strict=False)
        wanted = [(argument, size) for argument, name, size in every if name in names]
        if len(given) != len(names):
            raise TypeError(
                f"this MultiHeadAttention (kdim={self.kdim}, vdim={self.vdim}) takes "
                f"{', '.join(argument for argument, _ in wanted)}, got {len(given)} of them"
            )
        check_inputs(given, wanted, self.batch_first)
        buffers, saved = [], []
        for name, x in zip(names, given, strict=True):
            y, its = getattr(self, name).forward(x)
            buffers.append(y)
            saved.append(its)
        batched = given[0].ndim == 3
        parts = self._split(buffers, names, batched)
        self._turn(parts, start)
        return parts, saved, batched

    def _keep_queries(self, parts: dict[str, Array], queries: int | None, causal: bool) -> None:
        """Leave the first `queries` rows of q. All were made, in one product with k and v."""
        if queries is None:
            return
        check_sizes(WHO, queries=queries)
        rows = parts["q"].shape[1]
        if self.kdim is not None or queries > rows or (causal and queries < rows):
            raise ValueError(
                f"{WHO}: queries={queries} is for self-attention over so many rows or more that is not causal, got "
                f"{rows} rows, kdim={self.kdim}, causal={causal}"
            )
        parts["q"] = parts["q"][:, :queries]

    def _evaluate(self, q: Array, k: Array, v: Array, hide: Array, causal: bool, batched: bool) -> Array:
        """y, with nothing kept for a backward pass."""
        out, _, _ = attention(q, k, v, hide, causal, self.scale, 0.0, None, save=False, softcap=self.softcap)
        return self.out(self._merge(out, batched))

    def _split(self, buffers: list[Array], names: tuple[str, ...], batched: bool) -> dict[str, Array]:
        """Views (B, length, heads, size) into what the projections made, (..., sum of heads times size).

        The projections work on rows in any order, so the layout of the inputs costs no copy on this side.
        """
        parts = {}
        for name, buffer in zip(names, buffers, strict=True):
            start = 0
            for letter in name:
                heads, size = self._heads_of(letter)
                stop = start + heads * size
                part = buffer[..., start:stop].reshape(*buffer.shape[:-1], heads, size)
                parts[letter] = as_batch(part, batched, self.batch_first)
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
        return check_hide(hide, (B, self.heads, T, parts["k"].shape[1]), WHO)

    def _merge(self, out: Array, batched: bool) -> Array:
        """(B, T, H, dv) -> (B, T, H dv), in the layout of the inputs."""
        out = as_given(out, batched, self.batch_first)
        return out.reshape(*out.shape[:-2], self.heads * self.value_head_dim)
