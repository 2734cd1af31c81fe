"""AdditiveAttention: a query and a memory are compared by a hidden layer."""

from typing import Any, NamedTuple

from gpulayers import initialize
from gpulayers.backend import Array
from gpulayers.initialize import Init, Rng
from gpulayers.layers.attention_weights import check_inputs, softmax_rows, softmax_rows_backward
from gpulayers.layers.layer import Layer, check_dtype, check_sizes, gradient_of
from gpulayers.layers.linear import Linear
from gpulayers.ops.additive_scores import additive_scores, additive_scores_backward, exp_of
from gpulayers.ops.matmul import matmul
from gpulayers.parameter import Parameter
from gpulayers.step import Train


class Keys(NamedTuple):
    """What a memory is to queries: memory W_key (B, S, hidden_size), and `exp_of` it."""

    values: Array
    exp: Array


class Look(NamedTuple):
    """What one look at the memory keeps."""

    query: Any  # what the query's Linear saved
    u: Array  # (B, T, S, hidden_size)
    weights: Array  # (B, T, S)
    rows: Array


class Saved(NamedTuple):
    memory: Array
    look: Look
    shape: tuple[int, ...]  # of the query


class AdditiveAttention(Layer):
    """context = weights memory, where a weight is large if a hidden layer finds that query and memory fit.

        scores[t, s] = v' tanh(query[t] W_query + memory[s] W_key)
        weights      = softmax of scores[t] over the s that are not hidden
        context[t]   = sum over s of weights[t, s] memory[s]

    query: (B, T, query_size), or (B, query_size) for one query a sample. memory: (B, S, memory_size).
    context: (B, T, memory_size) or (B, memory_size).
    hide: boolean mask, True hides, broadcastable to (B, 1, T, S) (`masks.padding_mask`). A query that sees nothing gets
    zeros; what is hidden has weight 0 and no gradient, whatever it holds.
    Parameters: query.weight (query_size, hidden_size), key.weight (memory_size, hidden_size), v (hidden_size,).
    Initial values: uniform in +-1/sqrt(inputs), as `Linear`; `init(shape, rng)` replaces those of the matrices.
    saved: query, memory, tanh's output (B, T, S, hidden_size) and the weights.

    A decoder that looks at one memory again and again makes its `keys` once, and calls `look`.

    Raises ValueError for a size below 1 or a wrong shape, TypeError for another dtype or a mask that is not boolean.
    Source: Bahdanau, Cho and Bengio, Neural machine translation by jointly learning to align and translate, 2015,
    section 3.1 and appendix A.1.2.
    """

    def __init__(
        self,
        query_size: int,
        memory_size: int,
        hidden_size: int,
        *,
        init: Init | None = None,
        rng: Rng = None,
        dtype: str = "float32",
    ) -> None:
        check_sizes("AdditiveAttention", query_size=query_size, memory_size=memory_size, hidden_size=hidden_size)
        check_dtype("AdditiveAttention", dtype)
        self.query_size, self.memory_size, self.hidden_size = query_size, memory_size, hidden_size
        rng = initialize.generator(rng)
        self.query = Linear(query_size, hidden_size, bias=False, init=init, rng=rng, dtype=dtype)
        self.key = Linear(memory_size, hidden_size, bias=False, init=init, rng=rng, dtype=dtype)
        self.v = Parameter(initialize.fan_in_uniform((hidden_size,), rng, fan_in=hidden_size).astype(dtype))

    def forward(
        self, query: Array, memory: Array, *, hide: Array = None, train: Train | None = None
    ) -> tuple[Array, Saved]:
        queries, memory, rows = self._checked(query, memory, hide)
        context, look = self.look(queries, self.keys(memory), memory, rows)
        return context.reshape(*query.shape[:-1], self.memory_size), Saved(memory, look, query.shape)

    def backward(self, dy: Array, saved: Saved) -> tuple[Array, Array]:
        memory, look, shape = saved
        gradient_of(dy, (*shape[:-1], self.memory_size), "AdditiveAttention")
        dcontext = dy.reshape(*look.weights.shape[:2], self.memory_size)
        dquery, dkeys = self.look_backward(dcontext, memory, look)
        dmemory = self.key.backward(dkeys, memory)
        dmemory += matmul(look.weights.swapaxes(1, 2), dcontext)  # a product that was just made: nobody else has it
        return dquery.reshape(shape), dmemory

    def weights(self, query: Array, memory: Array, *, hide: Array = None) -> Array:
        """The weights in evaluation, (B, T, S) or, for queries (B, query_size), (B, S)."""
        queries, memory, rows = self._checked(query, memory, hide)
        _, look = self.look(queries, self.keys(memory), memory, rows)
        return look.weights.reshape(*query.shape[:-1], memory.shape[1])

    def _checked(self, query: Array, memory: Array, hide: Array) -> tuple[Array, Array, Array]:
        return check_inputs(query, memory, hide, self.query_size, self.memory_size, "AdditiveAttention")

    # ------------------------------------------------------------------------------------------ one look

    def keys(self, memory: Array) -> Keys:
        """For looks at this memory (B, S, memory_size). Their dkeys go through `key.backward(dkeys, memory)`."""
        values = self.key(memory)
        return Keys(values, exp_of(values))

    def look(self, query: Array, keys: Keys, memory: Array, rows: Array) -> tuple[Array, Look]:
        """context (B, T, memory_size), and what `look_backward` needs.

        query: (B, T, query_size). keys: `keys(memory)`. rows: the mask, `mask_rows`, or None; what it
        hides in the memory must be finite.
        """
        projected, saved_query = self.query.forward(query)
        scores, u = additive_scores(projected, keys.values, self.v.data, keys.exp)
        weights = softmax_rows(scores, rows)
        return matmul(weights, memory), Look(saved_query, u, weights, rows)

    def look_backward(self, dcontext: Array, memory: Array, look: Look) -> tuple[Array, Array]:
        """dquery and dkeys. The caller adds what the memory gets as a sum's term, weights' dcontext: one product can
        do that for all looks."""
        dweights = matmul(dcontext, memory.swapaxes(1, 2))
        dscores = softmax_rows_backward(dweights, look.weights, look.rows)
        dprojected, dkeys, dv = additive_scores_backward(dscores, look.u, self.v.data)
        self.v.add_grad(dv)
        return self.query.backward(dprojected, look.query), dkeys
