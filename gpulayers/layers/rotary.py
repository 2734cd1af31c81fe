"""Rotary: positions as rotations of queries and keys."""

from gpulayers.backend import Array
from gpulayers.layers.layer import Layer, check_number, check_sizes, floating_input, last_axis
from gpulayers.ops.rotary import rotary, rotary_tables
from gpulayers.step import Train


class Rotary(Layer):
    """Turns the channel pair (i, i + dim / 2) at position t by the angle t / base^(2 i / dim).

    x, y: (B, T, H, dim); dim is even. The product of a turned query and a turned key depends on their positions only
    by the difference. start: position of the first row (with a cache of keys, the number of rows before it).
    saved: start.
    Raises ValueError for a wrong shape or a negative start, TypeError for an input that is not floating.
    Source: Su et al., RoFormer, 2021, equation 34; see `gpulayers.ops.rotary` for the order of channels.
    """

    def __init__(self, dim: int, base: float = 10000.0) -> None:
        check_sizes("Rotary", dim=dim)
        check_number("Rotary", 1, base=base)
        if dim % 2:
            raise ValueError(f"Rotary turns pairs of channels: dim must be even, got {dim}")
        self.dim, self.base = dim, float(base)

    def forward(self, x: Array, train: Train | None = None, *, start: int = 0) -> tuple[Array, int]:
        floating_input(x, "Rotary")
        last_axis(x, self.dim, "Rotary")
        if x.ndim != 4:
            raise ValueError(f"Rotary takes an input of shape (B, T, H, {self.dim}), got {x.shape}")
        cos, sin = rotary_tables(x.shape[1], self.dim, self.base, like=x, start=start)
        return rotary(x, cos, sin), start

    def backward(self, dy: Array, saved: int) -> Array:
        cos, sin = rotary_tables(dy.shape[1], self.dim, self.base, like=dy, start=saved)
        return rotary(dy, cos, -sin)
