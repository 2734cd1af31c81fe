"""`scaled_dot_product_attention`, PyTorch's function of this name, with the backward pass beside it.

>>> y, saved = scaled_dot_product_attention(query, key, value, is_causal=True)
>>> dquery, dkey, dvalue = scaled_dot_product_attention_backward(dy, saved)

Formulas and sources: gpulayers/ops/attention.py.
"""

from typing import Any, NamedTuple

from gpulayers.backend import Array, array_module, empty, is_array, is_floating
from gpulayers.layers.layer import check_flags, check_number, check_positive, gradient_of
from gpulayers.masks import check_hide, refuse_other_masks
from gpulayers.ops.attention import attention, attention_backward
from gpulayers.step import Key, Train

WHO = "scaled_dot_product_attention"


class Options(NamedTuple):
    """As the op takes them. hide: four dimensions or None."""

    hide: Array
    causal: bool
    scale: float
    p: float
    draw: Key | None


class Saved(NamedTuple):
    """q, k, v: (B, length, heads, size), views of the inputs. softcap: 0 for none. ndim: of the inputs."""

    q: Array
    k: Array
    v: Array
    out: Array
    weights: Array
    inverse: Array
    options: Options
    softcap: float
    ndim: int


def scaled_dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    hide: Array = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    softcap: float | None = None,
    train: Train | None = None,
    **other: Any,
) -> tuple[Array, Saved]:
    """(y, saved): y = dropout(softmax(scale query key')) value, for each head.

    query: (B, H, T, d). key: (B, K, S, d). value: (B, K, S, dv). y: (B, H, T, dv). Also without heads, (B, T, d), or
    without both, (T, d). One floating dtype; views of any strides.
    hide: boolean, **True hides** (PyTorch's boolean attn_mask says what to keep), broadcastable to (B, H, T, S). A
    query whose keys are all hidden gets exactly 0, in y and in the gradients; what hidden keys and values hold, NaN
    too, changes nothing. Three dimensions beside four of the query may mean (B, T, S) or (H, T, S), and are refused.
    is_causal: hides the future. With fewer queries than keys the last query sees all keys (bottom-right; PyTorch's
    is_causal is top-left there). It is combined with hide.
    scale: 1 / sqrt(d) by default. softcap: cap tanh(scores / cap) stands for the scaled scores (Gemma 2).
    enable_gqa: K may be less than H, of which it is a divisor: H / K query heads share one key and value head.
    dropout_p: probability to drop a weight, in training: `train` is given. Without it nothing is dropped.
    saved: views of the inputs, y and the weights (B, H, T, S), unless they are so many that backward makes them again;
    for one backward pass.

    Raises TypeError or ValueError, one sentence, for other shapes, dtypes and options, and for `attn_mask`.
    """
    refuse_other_masks(other, WHO)
    _check_arrays(query, key, value, enable_gqa)
    _check_options(dropout_p, is_causal, scale, enable_gqa, softcap)
    q, k, v = (_with_heads(x) for x in (query, key, value))
    if hide is not None and is_array(hide) and hide.ndim == query.ndim == 3:
        hide = hide[:, None]
    hide = check_hide(hide, (len(q), q.shape[2], q.shape[1], k.shape[1]), WHO)
    p = 0.0 if train is None else float(dropout_p)
    draw = train.draw() if train is not None and p else None
    factor, cap = float(query.shape[-1] ** -0.5 if scale is None else scale), float(softcap or 0.0)
    options = Options(hide, bool(is_causal), factor, p, draw)
    out, weights, inverse = attention(q, k, v, *options, softcap=cap)
    return _without_heads(out, query.ndim), Saved(q, k, v, out, weights, inverse, options, cap, query.ndim)


def scaled_dot_product_attention_backward(dy: Array, saved: Saved) -> tuple[Array, Array, Array]:
    """(dquery, dkey, dvalue), shaped as the inputs were. dy: like y.

    Raises ValueError for another shape than that of y, TypeError for another dtype.
    """
    q, k, v, out = saved[:4]
    y = _without_heads(out, saved.ndim)
    gradient_of(dy, y.shape, WHO)
    if dy.dtype != y.dtype:
        raise TypeError(f"{WHO}.backward takes a {y.dtype} gradient, as y is, got {dy.dtype}")
    gradients = [empty(x.shape, x.dtype, like=x) for x in (q, k, v)]
    arrays = (_with_heads(dy), q, k, v, out, saved.weights, saved.inverse)
    attention_backward(*arrays, *saved.options, *gradients, softcap=saved.softcap)
    dq, dk, dv = (_without_heads(gradient, saved.ndim) for gradient in gradients)
    return dq, dk, dv


def _with_heads(x: Array) -> Array:
    """(B, H, length, size), (B, length, size) or (length, size) -> (B, length, H, size), a view."""
    return x.swapaxes(1, 2) if x.ndim == 4 else x[:, :, None] if x.ndim == 3 else x[None, :, None]


def _without_heads(x: Array, ndim: int) -> Array:
    """Back again, to `ndim` dimensions, a view."""
    return x.swapaxes(1, 2) if ndim == 4 else x[:, :, 0] if ndim == 3 else x[0, :, 0]


def _check_arrays(query: Array, key: Array, value: Array, enable_gqa: bool) -> None:
    array_module(query, key, value)
    for name, x in {"query": query, "key": key, "value": value}.items():
        if not is_array(x) or not is_floating(x.dtype):
            raise TypeError(f"{WHO} takes a floating {name}, got {x.dtype if is_array(x) else type(x).__name__}")
        if x.dtype != query.dtype:
            raise TypeError(f"{WHO} takes query, key and value of one dtype, got {query.dtype} and {x.dtype} ({name})")
    shapes = [x.shape for x in (query, key, value)]
    if query.ndim not in (2, 3, 4) or any(len(shape) != query.ndim for shape in shapes) or query.shape[-1] == 0:
        raise ValueError(
            f"{WHO} takes three arrays (B, H, T, d), (B, T, d) or (T, d), got {', '.join(map(str, shapes))}"
        )
    *lead, _, d = query.shape
    if len(lead) == 2 and enable_gqa and key.shape[1] and lead[1] % key.shape[1] == 0:
        lead[1] = key.shape[1]
    wanted = f"({', '.join(map(str, (*lead, 'S', d)))})"
    if key.shape != (*lead, key.shape[-2], d):
        grouped = query.ndim == 4 and not enable_gqa and key.shape[1] != lead[1]
        more = "; enable_gqa=True lets query heads share key heads" if grouped else ""
        raise ValueError(f"{WHO}: a query {query.shape} takes a key {wanted}, got {key.shape}{more}")
    if value.shape[:-1] != key.shape[:-1]:
        wanted = f"({', '.join(map(str, (*key.shape[:-1], 'dv')))})"
        raise ValueError(f"{WHO}: a key {key.shape} takes a value {wanted}, got {value.shape}")


def _check_options(
    dropout_p: float, is_causal: bool, scale: float | None, enable_gqa: bool, softcap: float | None
) -> None:
    check_flags(WHO, is_causal=is_causal, enable_gqa=enable_gqa)
    check_number(WHO, dropout_p=dropout_p)
    if not 0 <= dropout_p < 1:
        raise ValueError(f"{WHO}: dropout_p must be in [0, 1), got {dropout_p}")
    for name, value in {"scale": scale, "softcap": softcap}.items():
        if value is not None:
            check_positive(WHO, **{name: value})
