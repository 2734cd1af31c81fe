"""What additive and multiplicative attention share: their door, and the softmax of scores (B, T, S) under a mask."""

from gpulayers.backend import Array, array_module
from gpulayers.layers.layer import floating_input
from gpulayers.masks import check_hide
from gpulayers.ops.attention import blank_unseen
from gpulayers.ops.masked_softmax import masked_softmax, masked_softmax_backward


def check_inputs(
    query: Array, memory: Array, hide: Array, query_size: int, memory_size: int, who: str
) -> tuple[Array, Array, Array]:
    """Query (B, T, query_size), memory with zeros where nobody looks, and the mask's rows (`mask_rows`)."""
    floating_input(query, who)
    floating_input(memory, who)
    if query.ndim not in (2, 3) or query.shape[-1] != query_size:
        raise ValueError(f"{who} takes a query of shape (B, T, {query_size}) or (B, {query_size}), got {query.shape}")
    if memory.ndim != 3 or memory.shape[-1] != memory_size or len(memory) != len(query):
        raise ValueError(f"{who} takes a memory of shape ({len(query)}, S, {memory_size}), got {memory.shape}")
    if query.dtype != memory.dtype:
        raise TypeError(f"{who} takes a query and a memory of one dtype, got {query.dtype} and {memory.dtype}")
    queries = query if query.ndim == 3 else query[:, None]
    B, T, S = len(query), queries.shape[1], memory.shape[1]
    hide = check_hide(hide, (B, 1, T, S), who)
    # 0 NaN = NaN: what lies in padding must not come through the product with weights of 0.
    return queries, blank_unseen(memory[:, :, None], hide)[:, :, 0], mask_rows(hide, B, T, S)


def mask_rows(hide: Array, B: int, T: int, S: int) -> Array:
    """A mask (B or 1, 1, T or 1, S or 1) for each of B T rows of scores, (1, 1, B T, S). None stays None.

    With the batch among the queries, the softmax of many short rows is a few array operations, not a few a sample.
    """
    if hide is None:
        return None
    return array_module(hide).broadcast_to(hide[:, 0], (B, T, S)).reshape(1, 1, B * T, S)


def softmax_rows(scores: Array, rows: Array) -> Array:
    """Weights (B, T, S) of scores (B, T, S); 0 where `rows` hides."""
    B, T, S = scores.shape
    return masked_softmax(scores.reshape(1, 1, B * T, S), rows, 1.0, False).reshape(B, T, S)


def softmax_rows_backward(dweights: Array, weights: Array, rows: Array) -> Array:
    B, T, S = weights.shape
    flat = (1, 1, B * T, S)
    return masked_softmax_backward(dweights.reshape(flat), weights.reshape(flat), rows, 1.0, False).reshape(B, T, S)
