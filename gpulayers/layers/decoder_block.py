"""DecoderBlock: causal self-attention, attention over the encoder's output, then a feed-forward."""

from typing import Any, NamedTuple

from gpulayers import initialize
from gpulayers.backend import Array
from gpulayers.initialize import Rng
from gpulayers.layers.attention import Cache, MultiHeadAttention
from gpulayers.layers.dropout import Dropout
from gpulayers.layers.feedforward import FeedForward
from gpulayers.layers.layer import Layer, Once, check_flags
from gpulayers.layers.layernorm import LayerNorm
from gpulayers.layers.sublayers import Sublayers
from gpulayers.step import Train


class BlockCache(NamedTuple):
    """Keys and values of both attentions: those of the rows so far (None before the first), and the memory's."""

    rows: Cache | None
    memory: Cache


class DecoderBlock(Sublayers, Layer):
    """norm_first:  x = x + attention(norm_1(x))
                 x = x + cross(norm_2(x), memory)
                 y = x + feedforward(norm_3(x))
    otherwise:   x = norm_1(x + attention(x)) and so on.

    x, y: (B, T, dim). memory: (B, S, dim), the encoder's output. attention is causal.
    hide: keys among x that are hidden as well, broadcastable to (B, heads, T, T). hide_memory: those of memory,
    broadcastable to (B, heads, T, S). Boolean, True hides.
    hidden, activation, dropout, bias, initial values: as in `EncoderBlock`. backward returns (dx, dmemory).
    saved: a list of three lists, what the sub-layers saved.

    Parameters beside those of torch.nn.TransformerDecoderLayer, whose matrices are the transposes of these:

        norm_1.weight, .bias              (dim,)             norm1.weight, .bias
        attention.qkv.weight              (dim, 3 dim)       self_attn.in_proj_weight
        attention.out.weight              (dim, dim)         self_attn.out_proj.weight
        norm_2.weight, .bias              (dim,)             norm2.weight, .bias
        cross.q.weight                    (dim, dim)         multihead_attn.in_proj_weight[:dim]
        cross.kv.weight                   (dim, 2 dim)       multihead_attn.in_proj_weight[dim:]
        cross.out.weight                  (dim, dim)         multihead_attn.out_proj.weight
        norm_3.weight, .bias              (dim,)             norm3.weight, .bias
        feedforward.up.weight             (dim, hidden)      linear1.weight
        feedforward.down.weight           (hidden, dim)      linear2.weight

    and a `.bias` beside each `.weight`.
    Raises as the layers that it is made of. Source: see `sublayers`.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        hidden: int | None = None,
        activation: str = "gelu",
        norm_first: bool = True,
        dropout: float = 0.0,
        bias: bool = True,
        rng: Rng = None,
        dtype: str = "float32",
    ) -> None:
        rng = initialize.generator(rng)
        check_flags("DecoderBlock", norm_first=norm_first)
        self.norm_first = norm_first
        self.norm_1 = LayerNorm(dim, bias=bias, dtype=dtype)
        self.attention = MultiHeadAttention(dim, heads, bias=bias, dropout=dropout, rng=rng, dtype=dtype)
        self.norm_2 = LayerNorm(dim, bias=bias, dtype=dtype)
        self.cross = MultiHeadAttention(dim, heads, kdim=dim, bias=bias, dropout=dropout, rng=rng, dtype=dtype)
        self.norm_3 = LayerNorm(dim, bias=bias, dtype=dtype)
        self.feedforward = FeedForward(dim, hidden, activation, bias, rng=rng, dtype=dtype)
        self.dropout = Dropout(dropout)

    def forward(
        self, x: Array, memory: Array, hide: Array = None, hide_memory: Array = None, train: Train | None = None
    ) -> tuple[Array, list[Any]]:
        x, saved_attention = self._forward(self.norm_1, self.attention, x, hide=hide, causal=True, train=train)
        x, saved_cross = self._forward(self.norm_2, self.cross, x, memory, hide=hide_memory, train=train)
        y, saved_feedforward = self._forward(self.norm_3, self.feedforward, x, train=train)
        return y, Once([saved_attention, saved_cross, saved_feedforward])

    def backward(self, dy: Array, saved: list[Any]) -> tuple[Array, Array]:
        (dx,) = self._backward(self.norm_3, self.feedforward, dy, saved.pop())
        dx, dmemory = self._backward(self.norm_2, self.cross, dx, saved.pop())
        (dx,) = self._backward(self.norm_1, self.attention, dx, saved.pop())
        return dx, dmemory

    def __call__(self, x: Array, memory: Array, hide: Array = None, hide_memory: Array = None) -> Array:
        x = self._evaluate(self.norm_1, self.attention, x, hide=hide, causal=True)
        x = self._evaluate(self.norm_2, self.cross, x, memory, hide=hide_memory)
        return self._evaluate(self.norm_3, self.feedforward, x)

    def weights(self, x: Array, memory: Array, hide: Array = None, hide_memory: Array = None) -> Array:
        """The weights of the attention over memory in evaluation, (B, heads, T, S)."""
        x = self._evaluate(self.norm_1, self.attention, x, hide=hide, causal=True)
        return self.cross.weights(self._entry(self.norm_2, x), memory, hide=hide_memory)

    def start(self, memory: Array) -> BlockCache:
        """The cache before the first row: the keys and values of memory, projected once."""
        return BlockCache(None, self.cross.start(memory))

    def step(
        self, x: Array, cache: BlockCache, hide: Array = None, hide_memory: Array = None
    ) -> tuple[Array, BlockCache]:
        """Evaluation, piece by piece: the rows of x follow those that made `cache`. hide counts the cached rows too.

        Returns y, equal to the matching rows of a whole pass, and the cache with the new rows; the old one stays.
        """
        if not isinstance(cache, BlockCache):
            raise TypeError(f"DecoderBlock.step takes the cache that start or step gave, got {type(cache).__name__}")
        h, rows = self.attention.step(self._entry(self.norm_1, x), cache.rows, hide=hide)
        x = self._join(self.norm_1, x, h)
        h, memory = self.cross.step(self._entry(self.norm_2, x), cache.memory, hide=hide_memory)
        x = self._join(self.norm_2, x, h)
        return self._evaluate(self.norm_3, self.feedforward, x), BlockCache(rows, memory)
