"""EncoderBlock: self-attention over a whole sequence, then a feed-forward, the block of BERT and of ViT."""

from typing import Any

from gpulayers import initialize
from gpulayers.backend import Array
from gpulayers.initialize import Rng
from gpulayers.layers.attention import MultiHeadAttention
from gpulayers.layers.dropout import Dropout
from gpulayers.layers.feedforward import FeedForward
from gpulayers.layers.layer import Layer, Once, check_flags
from gpulayers.layers.layernorm import LayerNorm
from gpulayers.layers.sublayers import Sublayers
from gpulayers.step import Train


class EncoderBlock(Sublayers, Layer):
    """norm_first:  x = x + attention(norm_1(x));     y = x + feedforward(norm_2(x))
    otherwise:   x = norm_1(x + attention(x));     y = norm_2(x + feedforward(x))

    x, y: (B, S, dim). hide: boolean, True hides, broadcastable to (B, heads, S, S): `padding_mask`.
    queries: how many of the first rows y has, None for all; then hide is (B, heads, queries, S). Where nobody reads the
        others, as in a last block whose class token alone is classified, only their keys and values have to be made.
    hidden: width of the feed-forward, by default as in `FeedForward`. activation: likewise.
    dropout: on the attention weights and at the end of both sub-layers. bias: of the linear layers and the norms.
    Initial values: those of `MultiHeadAttention` and `Linear`.
    saved: a list of two lists, what the sub-layers saved.

    Parameters beside those of torch.nn.TransformerEncoderLayer, whose matrices are the transposes of these:

        norm_1.weight, .bias              (dim,)             norm1.weight, .bias
        attention.qkv.weight              (dim, 3 dim)       self_attn.in_proj_weight
        attention.out.weight              (dim, dim)         self_attn.out_proj.weight
        norm_2.weight, .bias              (dim,)             norm2.weight, .bias
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
        check_flags("EncoderBlock", norm_first=norm_first)
        self.norm_first = norm_first
        self.norm_1 = LayerNorm(dim, bias=bias, dtype=dtype)
        self.attention = MultiHeadAttention(dim, heads, bias=bias, dropout=dropout, rng=rng, dtype=dtype)
        self.norm_2 = LayerNorm(dim, bias=bias, dtype=dtype)
        self.feedforward = FeedForward(dim, hidden, activation, bias, rng=rng, dtype=dtype)
        self.dropout = Dropout(dropout)

    def forward(
        self, x: Array, hide: Array = None, train: Train | None = None, *, queries: int | None = None
    ) -> tuple[Array, list[Any]]:
        x, saved_attention = self._forward(self.norm_1, self.attention, x, hide=hide, train=train, queries=queries)
        y, saved_feedforward = self._forward(self.norm_2, self.feedforward, x, train=train)
        return y, Once([saved_attention, saved_feedforward])

    def backward(self, dy: Array, saved: list[Any]) -> Array:
        (dx,) = self._backward(self.norm_2, self.feedforward, dy, saved.pop())
        (dx,) = self._backward(self.norm_1, self.attention, dx, saved.pop())
        return dx

    def __call__(self, x: Array, hide: Array = None, *, queries: int | None = None) -> Array:
        x = self._evaluate(self.norm_1, self.attention, x, hide=hide, queries=queries)
        return self._evaluate(self.norm_2, self.feedforward, x)

    def weights(self, x: Array, hide: Array = None) -> Array:
        """The attention weights in evaluation, (B, heads, S, S)."""
        return self.attention.weights(self._entry(self.norm_1, x), hide=hide)
