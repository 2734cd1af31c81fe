"""What the elementwise layers share: the check at the door."""

from gpulayers.backend import Array, is_floating


def floating_input(x: Array, who: str) -> None:
    """Refuse what has no gradient (ids, counts, masks), and 0-d arrays, which NumPy's functions turn into scalars."""
    if not is_floating(x.dtype):
        raise TypeError(f"{who} takes a floating input, got {x.dtype}")
    if x.ndim == 0:
        raise ValueError(f"{who} takes an input with at least one axis, got shape ()")
