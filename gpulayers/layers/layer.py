"""`Layer`: what all layers share. The contract itself is two methods that each layer writes by hand.

    y, saved = layer.forward(x, train=None)     # train=None means evaluation
    dx       = layer.backward(dy, saved)        # parameter gradients are added: p.grad += ...

Nothing stays in the layer between the two calls: `saved` holds all that backward needs, is used once, and may be
kept, counted, moved or dropped like any value. So one layer may stand in a network twice, be unrolled over time or
recomputed.
"""

import fnmatch
import math
import os
from collections.abc import Callable, Collection, Iterator
from numbers import Real
from typing import Any, NamedTuple, Self, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike

from gpulayers import storage
from gpulayers.backend import Array, array_module, is_array, is_floating, to_numpy
from gpulayers.parameter import Buffer, Parameter


class Unmatched(NamedTuple):
    """What `load_state_dict(strict=False)` passed over: names that the state lacks, names that the model lacks."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Layer:
    """Base of all layers. Attributes that are Parameters, Buffers, Layers, or lists, tuples and dicts of them make up
    the tree."""

    forward: Callable[..., tuple[Any, Any]]
    backward: Callable[..., Any]

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Evaluation: the output alone; nothing is kept for a backward pass."""
        return self.forward(*inputs, **options)[0]

    def __repr__(self) -> str:
        """The tree of layers with the shapes of their parameters and buffers; `summary` has the sums."""
        from gpulayers.layers.summary import tree

        return tree(self)

    # ------------------------------------------------------------------------------------------ the tree

    def _named_members(self, prefix: str = "") -> Iterator[tuple[str, Any]]:
        """Every Parameter, Buffer and Layer below this layer with its dotted name, in the order of definition."""
        for name, value in vars(self).items():
            yield from _members(prefix + name, value)

    def _unique(self, kind: type) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        for name, member in self._named_members():
            if isinstance(member, kind) and id(member) not in seen:
                seen.add(id(member))
                yield name, member

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """(dotted name, Parameter), each once: a tied one under its first name."""
        return self._unique(Parameter)

    def parameters(self) -> Iterator[Parameter]:
        return (parameter for _, parameter in self.named_parameters())

    def buffers(self) -> Iterator[Buffer]:
        """Every Buffer, each once."""
        return (buffer for _, buffer in self._unique(Buffer))

    def named_layers(self) -> Iterator[tuple[str, "Layer"]]:
        """(dotted name, layer) of every layer below this one."""
        return self._unique(Layer)

    def parameter_count(self, trainable_only: bool = False) -> int:
        """Number of trained values; a tied parameter counts once."""
        return sum(p.data.size for p in self.parameters() if p.trainable or not trainable_only)

    def freeze(self, match: str = "*") -> Self:
        """Freeze the parameters whose dotted names match a pattern with * and ?, all by default. Returns self.

        A frozen parameter collects no gradient, has no part in the norm and keeps every bit; what an optimizer
        remembers of it rests too. It may be frozen and thawed between any two steps. Raises ValueError if none matches.
        """
        return self._set_trainable("freeze", match, False)

    def unfreeze(self, match: str = "*") -> Self:
        """Train them again, from where parameter and moments were."""
        return self._set_trainable("unfreeze", match, True)

    def _set_trainable(self, who: str, match: str, trainable: bool) -> Self:
        found = [p for name, p in self.named_parameters() if fnmatch.fnmatchcase(name, match)]
        if not found:
            raise ValueError(f"{type(self).__name__}.{who}: no parameter matches {match!r}")
        for parameter in found:
            parameter.trainable = trainable
        return self

    def zero_grad(self) -> None:
        """Mark all gradients as zero, and drop what backward passes have queued for the buffers."""
        for parameter in self.parameters():
            parameter.zero_grad()
        for buffer in self.buffers():
            buffer.drop()

    def commit(self) -> None:
        """Do what backward passes have queued for the buffers, such as running statistics, in their order.

        The optimizers' `step` does it; this is for updates of one's own.
        """
        for buffer in self.buffers():
            buffer.commit()

    def to(self, device: str | None = None, dtype: DTypeLike | None = None) -> Self:
        """Move parameters and buffers to a device ('numpy', 'cupy') and / or floating type, in place. Returns self.

        Ties stay tied; gradients start at zero. Do it before an optimizer is made: its moments stay where they are.
        Raises TypeError for a dtype that is not floating.
        """
        if dtype is not None and not is_floating(dtype):
            raise TypeError(f"{type(self).__name__}.to takes a floating dtype, got {np.dtype(dtype)}")
        owners: dict[int, Any] = {}
        for _, member in self._named_members():
            if isinstance(member, Parameter):
                owner = member.flat or member
                owners[id(owner)] = owner
            elif isinstance(member, Buffer):
                owners[id(member)] = member
        for owner in owners.values():
            owner.move(device, dtype)
        return self

    # ------------------------------------------------------------------------------------------ state

    def _named_state(self) -> dict[str, Parameter | Buffer]:
        state: dict[str, Parameter | Buffer] = dict(self.named_parameters())
        state.update((name, buffer) for name, buffer in self._unique(Buffer) if buffer.persistent)
        return state

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of all parameters and persistent buffers in host memory, by dotted name; tied ones once.

        float16 and bfloat16 parameters that an optimizer trains are there as float32, in full (`Parameter.values`).
        """
        return {name: np.array(to_numpy(member.values)) for name, member in self._named_state().items()}

    def load_state_dict(self, state: dict[str, Any], strict: bool = True) -> Unmatched:
        """Copy arrays into the parameters and buffers of the same names.

        strict: every name must be there on both sides; otherwise only common names are loaded. Returns
        (missing_keys, unexpected_keys), both empty if strict. Shapes and kinds of dtype must agree. Raises ValueError
        before anything is changed, and names all that does not match.
        """
        unmatched = self.check_state_dict(state, strict)
        for name, member in self._named_state().items():
            if name in state:
                member.assign(storage.beside(state[name], member.data))
        return unmatched

    def check_state_dict(self, state: dict[str, Any], strict: bool = True) -> Unmatched:
        """What `load_state_dict` would return or refuse, with nothing loaded."""
        own = self._named_state()
        unmatched = Unmatched([n for n in own if n not in state], sorted(n for n in state if n not in own))
        if strict and (unmatched.missing_keys or unmatched.unexpected_keys):
            missing, unexpected = (names or "none" for names in unmatched)
            raise ValueError(f"load_state_dict: missing {missing}, unexpected {unexpected}")
        wrong = []
        for name in (name for name in own if name in state):
            given, wanted = (a if is_array(a) else np.asarray(a) for a in (state[name], own[name].data))
            if given.shape != wanted.shape:
                wrong.append(f"{name} has shape {given.shape}, this model has {wanted.shape}")
            elif _kind(given.dtype) != _kind(wanted.dtype):
                wrong.append(f"{name} has dtype {given.dtype}, this model has {wanted.dtype}")
        if wrong:
            more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
            raise ValueError(f"load_state_dict: {'; '.join(wrong[:3])}{more}")
        return unmatched

    def save(self, path: str | os.PathLike[str], metadata: dict[str, str] | None = None) -> None:
        """Write `state_dict()` to a safetensors file: beside it first, flushed, then renamed."""
        storage.save_tensors(path, self.state_dict(), metadata or {})

    def load(self, path: str | os.PathLike[str], strict: bool = True) -> Self:
        """Read what `save` wrote into this model. Raises `storage.FileError`, one sentence, nothing changed."""
        tensors, _ = storage.load_tensors(path)
        storage.refuse_not_finite(path, tensors)
        try:
            self.load_state_dict(tensors, strict)
        except ValueError as error:
            raise storage.FileError(f"{os.fspath(path)} does not fit this model: {error}") from error
        return self


class Once(list[Any]):
    """What forward keeps in a list for backward, which takes it from the end: good for one backward pass."""

    def pop(self, index: SupportsIndex = -1) -> Any:
        if not self:
            raise ValueError("this saved has been used: each forward pass is good for one backward pass")
        return super().pop(index)


def _kind(dtype: np.dtype) -> str:
    """Types of one kind may be converted into each other: floating ones, and integers."""
    return "floating" if is_floating(dtype) else {"u": "i"}.get(dtype.kind, dtype.kind)


def _members(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """`value` if it belongs to the tree, and what is below or inside it."""
    if isinstance(value, Parameter | Buffer | Layer):
        yield name, value
    if isinstance(value, Layer):
        yield from value._named_members(f"{name}.")
    elif isinstance(value, list | tuple | dict):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _members(f"{name}.{key}", item)


# ------------------------------------------------------------------------------------------ the door of constructors


def check_sizes(who: str, **sizes: int) -> None:
    """Refuse sizes that are no integers of at least 1."""
    for name, size in sizes.items():
        check_integer(who, **{name: size})
        if size < 1:
            raise ValueError(f"{who}: {name} must be at least 1, got {size}")


def check_integer(who: str, **values: int) -> None:
    for name, value in values.items():
        if isinstance(value, bool | np.bool) or not hasattr(value, "__index__"):
            raise TypeError(f"{who}: {name} must be an integer, got {value!r}")


def check_number(who: str, low: float = -math.inf, high: float = math.inf, **values: float) -> None:
    """Refuse what is no finite number from `low` to `high`."""
    for name, value in values.items():
        if isinstance(value, bool | np.bool) or not isinstance(value, Real):
            raise TypeError(f"{who}: {name} must be a number, got {value!r}")
        if not low <= value <= high or math.isinf(value):
            wanted = f"in {low:g}..{high:g}" if high < math.inf else f"{low:g} or more" if low > -math.inf else "finite"
            raise ValueError(f"{who}: {name} must be {wanted}, got {value}")


def check_positive(who: str, **values: float) -> None:
    """Refuse what is no finite number above 0."""
    check_number(who, **values)
    for name, value in values.items():
        if value <= 0:
            raise ValueError(f"{who}: {name} must be above 0, got {value}")


def check_flags(who: str, **flags: bool) -> None:
    """Refuse what is neither True nor False: "post" or "no" would count as True."""
    for name, flag in flags.items():
        if not isinstance(flag, bool | np.bool):
            raise TypeError(f"{who}: {name} must be True or False, got {flag!r}")


def check_choice(who: str, choices: Collection[str], **values: str) -> None:
    """Refuse what is not one of `choices`."""
    for name, value in values.items():
        if value not in tuple(choices):
            raise ValueError(f"{who}: {name} must be one of {', '.join(choices)}, got {value!r}")


def check_dtype(who: str, dtype: DTypeLike) -> None:
    """Refuse a dtype of parameters that is not floating."""
    try:
        floating = dtype is not None and is_floating(dtype)  # NumPy takes None for float64
    except TypeError:  # no name of a dtype at all
        floating = False
    if not floating:
        raise TypeError(f"{who}: dtype must be a floating type, got {dtype!r}")


# ------------------------------------------------------------------------------------------ the door of forward


def floating_input(x: Array, who: str) -> None:
    """Refuse what has no gradient (ids, counts, masks), and 0-d arrays, which NumPy's functions turn into scalars."""
    if not is_array(x) or not is_floating(x.dtype):
        raise TypeError(f"{who} takes a floating input, got {x.dtype if is_array(x) else type(x).__name__}")
    if x.ndim == 0:
        raise ValueError(f"{who} takes an input with at least one axis, got shape ()")


def floating_like(x: Array, parameter: Parameter, who: str) -> None:
    """Refuse an input whose dtype is not the parameters': a silent promotion would double the memory or lose digits.
    And one of another device."""
    if not is_array(x):
        raise TypeError(f"{who} takes an array, got {type(x).__name__}")
    if x.dtype != parameter.dtype:
        raise TypeError(
            f"{who} has {parameter.dtype} parameters and got a {x.dtype} input; "
            f"convert one of them: x.astype({str(parameter.dtype)!r}) or layer.to(dtype={str(x.dtype)!r})"
        )
    array_module(x, parameter.data)


def last_axis(x: Array, size: int, who: str) -> None:
    """Refuse an input whose last axis is not `size` long."""
    if x.ndim == 0 or x.shape[-1] != size:
        raise ValueError(f"{who} takes an input of shape (..., {size}), got {x.shape}")


def gradient_of(dy: Array, shape: tuple[int, ...], who: str) -> None:
    """Refuse a gradient of another shape than the output's, which might be broadcast, and one that is not floating."""
    if not is_array(dy) or dy.shape != shape:
        got = dy.shape if is_array(dy) else type(dy).__name__
        raise ValueError(f"{who}.backward takes a gradient of shape {shape}, got {got}")
    if not is_floating(dy.dtype):
        raise TypeError(f"{who}.backward takes a floating gradient, got {dy.dtype}")
