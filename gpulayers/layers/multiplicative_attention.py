"""MultiplicativeAttention: a query and a memory are compared by a product."""

from typing import Any, NamedTuple

from gpulayers.backend import Array
from gpulayers.initialize import Init, Rng
from gpulayers.layers.attention_weights import check_inputs, softmax_rows, softmax_rows_backward
from gpulayers.layers.layer import Layer, check_dtype, check_sizes, gradient_of
from gpulayers.layers.linear import Linear
from gpulayers.ops.matmul import matmul
from gpulayers.step import Train


class Look(NamedTuple):
    """What one look at the memory keeps."""

    query: Any  # what the query's Linear saved
    projected: Array  # (B, T, memory_size)
    memory: Array
    weights: Array  # (B, T, S)
    rows: Array


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
        check_dtype("MultiplicativeAttention", dtype)
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
    ) -> tuple[Array, tuple[Look, tuple[int, ...]]]:
        context, look = self.look(*self._checked(query, memory, hide))
        return context.reshape(*query.shape[:-1], self.memory_size), (look, query.shape)

    def backward(self, dy: Array, saved: tuple[Look, tuple[int, ...]]) -> tuple[Array, Array]:
        look, shape = saved
        gradient_of(dy, (*shape[:-1], self.memory_size), "MultiplicativeAttention")
        dquery, dmemory = self.look_backward(dy.reshape(look.projected.shape), look)
        return dquery.reshape(shape), dmemory

    def weights(self, query: Array, memory: Array, *, hide: Array = None) -> Array:
        """The weights in evaluation, (B, T, S) or, for queries (B, query_size), (B, S)."""
        _, look = self.look(*self._checked(query, memory, hide))
        return look.weights.reshape(*query.shape[:-1], memory.shape[1])

    def _checked(self, query: Array, memory: Array, hide: Array) -> tuple[Array, Array, Array]:
        return check_inputs(query, memory, hide, self.query_size, self.memory_size, "MultiplicativeAttention")

    # ------------------------------------------------------------------------------------------ one look

    def look(self, query: Array, memory: Array, rows: Array) -> tuple[Array, Look]:
        """context (B, T, memory_size), and what `look_backward` needs. query: (B, T, query_size). rows: the mask,
        `mask_rows`, or None; what it hides in the memory must be finite."""
        projected, saved_query = (query, None) if self.query is None else self.query.forward(query)
        weights = softmax_rows(matmul(projected, memory.swapaxes(1, 2)), rows)
        return matmul(weights, memory), Look(saved_query, projected, memory, weights, rows)

    def look_backward(self, dcontext: Array, look: Look) -> tuple[Array, Array]:
        """dquery and dmemory, both new arrays."""
        dmemory = matmul(look.weights.swapaxes(1, 2), dcontext)
        dweights = matmul(dcontext, look.memory.swapaxes(1, 2))
        dscores = softmax_rows_backward(dweights, look.weights, look.rows)
        dmemory += matmul(dscores.swapaxes(1, 2), look.projected)
        dquery = matmul(dscores, look.memory)
        return dquery if self.query is None else self.query.backward(dquery, look.query), dmemory
