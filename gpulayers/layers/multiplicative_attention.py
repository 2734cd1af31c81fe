"""MultiplicativeAttention: a query and a memory are compared by a product."""

from typing import Any, NamedTuple

from gpulayers.backend import Array
from gpulayers.initialize import Init, Rng
from gpulayers.layers.attention_weights import check_inputs, check_sizes, softmax_rows, softmax_rows_backward
from gpulayers.layers.layer import Layer
from gpulayers.layers.linear import Linear
from gpulayers.ops.matmul import matmul
from gpulayers.step import Train


class Saved(NamedTuple):
    query: Any  # what the query's Linear saved
    projected: Array  # (B, T, memory_size)
    memory: Array
    weights: Array  # (B, T, S)
    rows: Array
    shape: tuple[int, ...]  # of the query


class MultiplicativeAttention(Layer):
    """context = weights memory, where a weight is large if the product of query and memory is.

        scores[t, s] = query[t] W memory[s]'      score="general"
                       query[t] memory[s]'        score="dot", needs query_size = memory_size
        weights      = softmax of scores[t] over the s that are not hidden
        context[t]   = sum over s of weights[t, s] memory[s]

    query: (B, T, query_size), or (B, query_size) for one query a sample. memory: (B, S, memory_size).
    context: (B, T, memory_size) or (B, memory_size).
    hide: boolean mask, True hides, broadcastable to (B, 1, T, S) (`masks.padding_mask`). A query that sees nothing gets
    zeros; what is hidden has weight 0 and no gradient, whatever it holds.
    Parameters: query.weight (query_size, memory_size) for "general", none for "dot".
    Initial values: uniform in +-1/sqrt(query_size), as `Linear`; `init(shape, rng)` replaces them.
    saved: query, query W, memory and the weights (B, T, S).

    Raises ValueError for a size below 1, another score or a wrong shape, TypeError for another dtype or a mask that is
    not boolean.
    Source: Luong, Pham and Manning, Effective approaches to attention-based neural machine translation, 2015,
    equation 8.
    """

    def __init__(
        self,
        query_size: int,
        memory_size: int,
        score: str = "general",
        *,
        init: Init | None = None,
        rng: Rng = None,
        dtype: str = "float32",
    ) -> None:
        check_sizes("MultiplicativeAttention", query_size=query_size, memory_size=memory_size)
        if score not in ("dot", "general"):
            raise ValueError(f"MultiplicativeAttention: score must be 'dot' or 'general', got {score!r}")
        if score == "dot" and query_size != memory_size:
            raise ValueError(
                "MultiplicativeAttention: score 'dot' needs query_size = memory_size, "
                f"got {query_size} and {memory_size}; 'general' takes any sizes"
            )
        self.query_size, self.memory_size, self.score = query_size, memory_size, score
        self.query = None
        if score == "general":
            self.query = Linear(query_size, memory_size, bias=False, init=init, rng=rng, dtype=dtype)

    def forward(
        self, query: Array, memory: Array, *, hide: Array = None, train: Train | None = None
    ) -> tuple[Array, Saved]:
        queries, memory, rows = check_inputs(
            query, memory, hide, self.query_size, self.memory_size, "MultiplicativeAttention"
        )
        projected, saved_query = (queries, None) if self.query is None else self.query.forward(queries)
        weights = softmax_rows(matmul(projected, memory.swapaxes(1, 2)), rows)
        context = matmul(weights, memory).reshape(*query.shape[:-1], self.memory_size)
        return context, Saved(saved_query, projected, memory, weights, rows, query.shape)

    def backward(self, dy: Array, saved: Saved) -> tuple[Array, Array]:
        saved_query, projected, memory, weights, rows, shape = saved
        dcontext = dy.reshape(projected.shape)
        dmemory = matmul(weights.swapaxes(1, 2), dcontext)
        dscores = softmax_rows_backward(matmul(dcontext, memory.swapaxes(1, 2)), weights, rows)
        dmemory += matmul(dscores.swapaxes(1, 2), projected)
        dquery = matmul(dscores, memory)
        if self.query is not None:
            dquery = self.query.backward(dquery, saved_query)
        return dquery.reshape(shape), dmemory

    def weights(self, query: Array, memory: Array, *, hide: Array = None) -> Array:
        """The weights in evaluation, (B, T, S) or, for queries (B, query_size), (B, S)."""
        _, saved = self.forward(query, memory, hide=hide)
        return saved.weights.reshape(*query.shape[:-1], memory.shape[1])
