"""Embedding: one row of a table for each id."""

from gpulayers import initialize
from gpulayers.backend import Array
from gpulayers.initialize import Init, Rng
from gpulayers.layers.layer import Layer, check_dtype, check_sizes, gradient_of
from gpulayers.ops.embedding import embedding, embedding_backward
from gpulayers.ops.op import as_rows
from gpulayers.parameter import Parameter
from gpulayers.step import Train


class Embedding(Layer):
    """y = weight[ids].

    ids: integers of any width and shape, 0..num_embeddings - 1. y: (*ids.shape, embedding_dim).
    weight: (num_embeddings, embedding_dim), normal(0, 1) at the start as in PyTorch; `init(shape, rng)` replaces that.
    padding_idx: this row starts at 0 and gets no gradient from here (it may from a head that shares the weight).
    saved: ids. backward returns None: ids have no gradient.

    Raises TypeError for ids that are no integers, ValueError for an id out of range, naming its position.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        init: Init | None = None,
        rng: Rng = None,
        dtype: str = "float32",
    ) -> None:
        check_sizes("Embedding", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        check_dtype("Embedding", dtype)
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"Embedding: padding_idx {padding_idx} is outside the {num_embeddings} embeddings")
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        init = init or initialize.normal
        weight = init((num_embeddings, embedding_dim), initialize.generator(rng)).astype(dtype)
        if self.padding_idx is not None:
            weight[self.padding_idx] = 0
        self.weight = Parameter(weight)

    def forward(self, ids: Array, train: Train | None = None) -> tuple[Array, Array]:
        return embedding(ids, self.weight.data), ids

    def backward(self, dy: Array, saved: Array) -> None:
        ids = saved
        gradient_of(dy, (*ids.shape, self.embedding_dim), "Embedding")
        embedding_backward(as_rows(dy), ids.reshape(-1), add_to=self.weight, padding_idx=self.padding_idx)
