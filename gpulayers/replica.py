"""`replica(model)`: the same parameters with gradients of their own, for threads and ranks to run on.

Layers hold no state between forward and backward, so all that two passes at the same time would write to together are
gradients and the queues of buffers. A replica has its own of both, and shares the rest.
"""

import copy
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

from numpy.typing import DTypeLike

from gpulayers.layers.layer import Layer
from gpulayers.parameter import Buffer, Flat, Parameter, Segment, pack

_originals: WeakKeyDictionary[Layer, Layer] = WeakKeyDictionary()  # layer of a replica -> layer of the model


def replica(model: Layer) -> Any:
    """A copy of the layer tree whose Parameters and Buffers share `data` with the model's.

    A Parameter's `grad` and what backward queues for a Buffer are the replica's own. Ties stay tied. The gradients
    lie in one flat buffer laid out as the model's, so that `model_flat.grad += replica_flat.grad` adds them all; the
    model is packed for it, as an optimizer does. Queues are taken over by `Buffer.take`.

    An update of the model's values is one of the replica's too. A model that moves (`to`) leaves its replicas behind.
    """
    flat, memo = pack(model), {}
    for parameter in model.parameters():
        memo[id(parameter)] = Parameter(parameter.data, parameter.trainable)
    for buffer in model.buffers():
        memo[id(buffer)] = Buffer(buffer.data, buffer.persistent, buffer.keep_wide)
    shared = SharedFlat(flat, memo)
    made = copy.deepcopy(model, memo)
    shared.buffers = list(made.buffers())
    _originals.update((memo[id(layer)], layer) for layer in (model, *(layer for _, layer in model.named_layers())))
    return made


def original(layer: Layer) -> Layer:
    """The layer that `layer` is a replica's copy of; itself where it is none."""
    return _originals.get(layer, layer)


class SharedFlat(Flat):
    """The flat memory of a replica: data and master are the model's, the gradient its own."""

    def __init__(self, flat: Flat, copies: dict[int, Any]) -> None:
        """copies: id of a parameter of the model -> that of the replica."""
        self.segments = [Segment(name, copies[id(p)], start, stop) for name, p, start, stop in flat.segments]
        self.size, self.data, self.master, self._grad = flat.size, flat.data, flat.master, None
        self.buffers = []
        for mine, its in zip(self.segments, flat.segments, strict=True):
            mine.parameter.flat, mine.parameter._master = self, its.parameter._master

    def move(self, device: str | None = None, dtype: DTypeLike | None = None) -> NoReturn:
        raise RuntimeError("a replica cannot be moved: move the model, then make its replicas anew")
