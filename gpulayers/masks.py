"""Masks of attention: boolean, **True hides**, broadcastable to (B, H, T, S), combined with `|`.

>>> hide = padding_mask(ids, pad_id=0) | causal_mask(T, T)         # (B, 1, T, T)
>>> y = attention(x, hide=hide)
"""

from typing import Any

import numpy as np

from gpulayers.backend import Array, array_module, is_array

CONVENTION = "masks are boolean, True hides, and are given as hide= (padding_mask, causal_mask, combined with |)"


def padding_mask(
    ids: Array = None, pad_id: int | None = None, *, lengths: Any = None, size: int | None = None
) -> Array:
    """Hide padding: (B, 1, 1, S), True where a key is padding.

    Either ids (B, S) and the id that stands for padding, `padding_mask(ids, 0)`, or lengths (B,),
    `padding_mask(lengths)`: keys from the length on are padding, and `size` is S (by default the largest length; on a
    GPU, giving it saves a wait).

    Raises TypeError unless exactly one of the two is given, or for floats; ValueError for a wrong number of dimensions.
    """
    if pad_id is None and lengths is None and not (is_array(ids) and ids.ndim > 1):  # one axis: no ids, but lengths
        ids, lengths = None, ids
    if (ids is None) == (lengths is None) or (ids is None) != (pad_id is None):
        raise TypeError("padding_mask takes either ids and pad_id, or lengths=")
    try:
        given = ids if lengths is None else lengths if is_array(lengths) else np.asarray(lengths)
    except ValueError:  # rows of unequal lengths
        raise TypeError(f"padding_mask takes integer lengths of shape (B,), got {lengths!r}") from None
    wanted = "ids of shape (B, S)" if lengths is None else "lengths of shape (B,)"
    xp = array_module(given)
    if given.dtype.kind not in "iu":
        raise TypeError(f"padding_mask takes integer {wanted}, got {given.dtype}")
    if given.ndim != (2 if lengths is None else 1):
        raise ValueError(f"padding_mask takes {wanted}, got shape {given.shape}")
    if lengths is None:
        return (given == pad_id)[:, None, None, :]
    if size is not None:
        _check_size("padding_mask", size=size)
    else:
        size = int(given.max()) if given.size else 0
    return (xp.arange(size) >= given[:, None])[:, None, None, :]


def _check_size(who: str, **sizes: int) -> None:
    for name, size in sizes.items():
        if not hasattr(size, "__index__"):
            raise TypeError(f"{who}: {name} must be an integer, got {size!r}")
        if size < 0:
            raise ValueError(f"{who}: {name} must be 0 or more, got {size}")


def causal_mask(queries: int, keys: int, *, like: Array = None) -> Array:
    """Hide the future: (T, S), True where key j > i + S - T, so that the last query sees all keys (bottom-right).

    like: an array on whose device the mask is made.
    """
    _check_size("causal_mask", queries=queries, keys=keys)
    xp = array_module(like)
    return xp.arange(keys) > xp.arange(queries)[:, None] + (keys - queries)


def refuse_other_masks(names: dict[str, Any], who: str) -> None:
    """TypeError for any keyword, with the convention for those that other libraries use for masks."""
    for name in names:
        if "mask" in name or "causal" in name:
            raise TypeError(f"{who} takes no {name}=: {CONVENTION}")
        raise TypeError(f"{who} got an unexpected keyword argument {name!r}")


def check_hide(hide: Array, shape: tuple[int, int, int, int], who: str) -> Array:
    """`hide` as a view of four dimensions that broadcasts to `shape` = (B, H, T, S); None stays None.

    Raises TypeError for a mask that is not boolean, ValueError for one that does not fit or has three dimensions.
    """
    if hide is None:
        return None
    if not is_array(hide) or hide.dtype != np.bool_:
        kind = f"{hide.dtype} array" if is_array(hide) else type(hide).__name__
        raise TypeError(f"{who} got a mask that is a {kind}: {CONVENTION}")
    if hide.ndim == 3:
        raise ValueError(
            f"{who} got a mask of shape {hide.shape}, which may mean (B, T, S) or (H, T, S): "
            "write hide[:, None] for the first, hide[None] for the second"
        )
    fits = hide.ndim <= 4 and all(
        a in (1, b) for a, b in zip(hide.shape[::-1], shape[::-1], strict=False)
    )  # aligned at the last axis, as in broadcasting
    if not fits:
        keys = "; for a mask (B, S) of keys write hide[:, None, None]" if hide.shape == (shape[0], shape[3]) else ""
        raise ValueError(f"{who} takes a mask that broadcasts to (B, H, T, S) = {shape}, got {hide.shape}{keys}")
    return hide.reshape((1,) * (4 - hide.ndim) + hide.shape)
