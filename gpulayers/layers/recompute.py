"""Recompute: activation checkpointing."""

from typing import Any, NamedTuple

from gpulayers.layers.layer import Layer
from gpulayers.step import Train


class Saved(NamedTuple):
    inputs: tuple[Any, ...]
    options: dict[str, Any]
    train: Train | None


class Recompute(Layer):
    """y = layer(*inputs, **options); backward runs the layer's forward again instead of keeping what it saved.

    The second run starts from a snapshot of `train` and so draws the same random bits: gradients are bit-identical to
    the plain layer's. One more forward pass is the price.
    saved: the inputs, the options and the snapshot. The inputs must not change until backward.
    Source: Chen et al., Training deep nets with sublinear memory cost, 2016.
    """

    def __init__(self, layer: Layer) -> None:
        self.layer = layer

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        return self.layer(*inputs, **options)

    def forward(self, *inputs: Any, train: Train | None = None, **options: Any) -> tuple[Any, Saved]:
        saved = Saved(inputs, options, None if train is None else train.snapshot())
        return self.layer.forward(*inputs, train=train, **options)[0], saved

    def backward(self, dy: Any, saved: Saved) -> Any:
        inputs, options, train = saved
        _, again = self.layer.forward(*inputs, train=train, **options)
        return self.layer.backward(dy, again)
