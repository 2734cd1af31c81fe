"""Sequential: one layer after the other."""

from collections.abc import Iterator
from typing import Any

from gpulayers.layers.layer import Layer, Once
from gpulayers.step import Train


class Sequential(Layer):
    """y = f_n(... f_2(f_1(x))).

    Layers of one input and one output. They are named layers.0, layers.1, ...; without any it is the identity.
    saved: a list of what each layer saved, emptied by backward from its end, so that memory falls on the way.
    """

    def __init__(self, *layers: Layer) -> None:
        for layer in layers:
            if not isinstance(layer, Layer):
                raise TypeError(f"Sequential takes layers, got {type(layer).__name__}: write Sequential(a, b, c)")
        self.layers = list(layers)

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x

    def forward(self, x: Any, train: Train | None = None) -> tuple[Any, list[Any]]:
        saved = Once()
        for layer in self.layers:
            x, its = layer.forward(x, train=train)
            saved.append(its)
        return x, saved

    def backward(self, dy: Any, saved: list[Any]) -> Any:
        for layer in reversed(self.layers):
            dy = layer.backward(dy, saved.pop())
        return dy

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def __getitem__(self, index: int) -> Layer:
        return self.layers[index]
