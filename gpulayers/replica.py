"""`replica(model)`: the same parameters with gradients of their own, for threads and ranks to run on.

Layers hold no state between forward and backward, so all that two passes at the same time would write to together are
gradients and the queues of buffers. A replica has its own of both, and shares the rest.
"""

import copy
from collections.abc import Iterator
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

from numpy.typing import DTypeLike

from gpulayers.backend import Array, empty
from gpulayers.layers.layer import Layer
from gpulayers.parameter import Buffer, Flat, Parameter, Segment, pack

_originals: WeakKeyDictionary[Layer, Layer] = WeakKeyDictionary()  # layer of a replica -> layer of the model


def replica(model: Layer) -> Any:
    """A copy of the layer tree whose Parameters and Buffers share `data` with the model's.

    A Parameter's `grad` and what backward queues for a Buffer are the replica's own. Ties stay tied. The model is
    packed for it, as an optimizer does; `SharedFlat.sums` adds a replica's gradients to the model's, `Buffer.take`
    takes its queues over.

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
    """The flat memory of a replica: data and master are the model's.

    The gradients are not flat. Each is an array of its own from the pool, made by its first contribution and given back
    by `zero_grad` of this object: in a backward pass it takes the place of what forward had kept and backward needs no
    more, so that a replica costs hardly any memory.
    """

    def __init__(self, flat: Flat, copies: dict[int, Any]) -> None:
        """copies: id of a parameter of the model -> that of the replica."""
        self.segments = [Segment(name, copies[id(p)], start, stop) for name, p, start, stop in flat.segments]
        self.size, self.data, self.master, self._grad = flat.size, flat.data, flat.master, None
        self.buffers = []
        self._model = flat
        for mine, its in zip(self.segments, flat.segments, strict=True):
            mine.parameter.flat, mine.parameter._master = self, its.parameter._master

    def allocate_grad(self, first: Parameter | None = None) -> None:
        assert first is not None
        first._grad = empty(first.shape, first.dtype, like=first.data)

    @property
    def grad(self) -> NoReturn:
        raise AttributeError("a replica's gradients are no flat array: see SharedFlat.sums")

    def sums(self, size: int) -> Iterator[tuple[Array, Array]]:
        """(a stretch of the model's gradient, the replica's for it), of `size` elements at most, for all that the
        replica has: the former += the latter is what is left to do, in any order."""
        for own, its in zip(self._model.segments, self.segments, strict=True):
            if its.parameter._grad_is_zero:
                continue
            total, more = own.parameter.grad.reshape(-1), its.parameter.grad.reshape(-1)
            yield from ((total[at : at + size], more[at : at + size]) for at in range(0, len(total), size))

    def zero_grad(self) -> None:
        super().zero_grad()
        for segment in self.segments:
            segment.parameter._grad = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Flat:
        clone = super().__deepcopy__(memo)
        for its, own in zip(clone.segments, self.segments, strict=True):
            if not own.parameter._grad_is_zero:
                its.parameter.add_grad(own.parameter.grad)
        return clone

    def move(self, device: str | None = None, dtype: DTypeLike | None = None) -> NoReturn:
        raise RuntimeError("a replica cannot be moved: move the model, then make its replicas anew")
