"""What `LayerNorm` and `RMSNorm` share: the shape over which they normalise, and their input as rows of that size."""

import math

from gpulayers.backend import Array
from gpulayers.layers.layer import check_sizes, floating_input, floating_like
from gpulayers.ops.op import as_rows
from gpulayers.parameter import Parameter


def as_shape(who: str, normalized_shape: int | tuple[int, ...]) -> tuple[int, ...]:
    """The shape as a tuple. Refuses what is neither a size nor several of them, each at least 1."""
    if not isinstance(normalized_shape, tuple | list):
        check_sizes(who, normalized_shape=normalized_shape)
        return (int(normalized_shape),)
    if not normalized_shape:
        raise ValueError(f"{who}: normalized_shape must have at least one size, got {normalized_shape}")
    for size in normalized_shape:
        check_sizes(who, normalized_shape=size)
    return tuple(map(int, normalized_shape))


def as_normalized(x: Array, shape: tuple[int, ...]) -> Array:
    """(..., *shape) -> (rows, D); right for empty arrays too."""
    if len(shape) == 1:
        return as_rows(x)
    return x.reshape(math.prod(x.shape[: x.ndim - len(shape)]), math.prod(shape))


def check_input(x: Array, shape: tuple[int, ...], weight: Parameter | None, who: str) -> None:
    """Refuse an input of another dtype than the weight's, and one whose last axes are not `shape`."""
    if weight is None:
        floating_input(x, who)
    else:
        floating_like(x, weight, who)
    if x.shape[max(0, x.ndim - len(shape)) :] != shape:
        raise ValueError(f"{who} takes an input of shape (..., {', '.join(map(str, shape))}), got {x.shape}")
