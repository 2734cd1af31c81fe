"""Residual: x + f(x)."""

from typing import Any

from gpulayers.backend import Array
from gpulayers.layers.layer import Layer
from gpulayers.ops.add import add
from gpulayers.step import Train


class Residual(Layer):
    """y = x + layer(x, *others, **options).

    x, y: the same shape, which the layer must keep. Further inputs (the memory of a cross-attention) and options
    (hide=, causal=) go to the layer; backward returns dx, or (dx, *the gradients of the others).
    saved: what the layer saved.
    Source: He et al., Deep residual learning for image recognition, 2015, equation 1.
    """

    def __init__(self, layer: Layer) -> None:
        self.layer = layer

    def __call__(self, x: Array, *others: Any, **options: Any) -> Array:
        return self._sum(x, self.layer(x, *others, **options))

    def forward(self, x: Array, *others: Any, train: Train | None = None, **options: Any) -> tuple[Array, Any]:
        y, saved = self.layer.forward(x, *others, train=train, **options)
        return self._sum(x, y), saved

    def _sum(self, x: Array, y: Array) -> Array:
        if y.shape != x.shape:
            raise ValueError(f"Residual: {type(self.layer).__name__} turned shape {x.shape} into {y.shape}")
        return add(x, y)

    def backward(self, dy: Array, saved: Any) -> Any:
        dx = self.layer.backward(dy, saved)
        if isinstance(dx, tuple):
            return (add(dy, dx[0]), *dx[1:])
        return add(dy, dx)
