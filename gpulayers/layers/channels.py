"""Where the channels of a normalisation lie: on `axis`, as (N, C, L), the positions being all other axes."""

import math

from gpulayers.backend import Array
from gpulayers.layers.layer import floating_input


def as_channels(x: Array, axis: int) -> Array:
    """(N, ..., C on `axis`, ...) -> (N, C, L)."""
    axis %= x.ndim
    moved = x.transpose(0, axis, *(a for a in range(1, x.ndim) if a != axis))
    return moved.reshape(*moved.shape[:2], math.prod(moved.shape[2:]))


def as_input(y: Array, shape: tuple[int, ...], axis: int) -> Array:
    """(N, C, L) -> `shape`, back again; a view where the channels are on another axis than 1."""
    axis %= len(shape)
    others = [a for a in range(1, len(shape)) if a != axis]
    moved = y.reshape(*y.shape[:2], *(shape[a] for a in others))
    places = {a: place for place, a in enumerate((0, axis, *others))}
    return moved.transpose(*(places[a] for a in range(len(shape))))


def check_channels(x: Array, channels: int, axis: int, least: int, who: str) -> None:
    """Refuse an input of fewer axes than `least`, or of other than `channels` channels; the first axis is the batch."""
    floating_input(x, who)
    if x.ndim < least or axis not in range(-x.ndim, x.ndim) or axis % x.ndim == 0 or x.shape[axis] != channels:
        wanted = f"a batch, at least {least} axes and {channels} channels on axis {axis}"
        raise ValueError(f"{who} takes an input with {wanted}, got {x.shape}")
