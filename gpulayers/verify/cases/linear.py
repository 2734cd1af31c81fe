"""Matrix products, sums of rows, and the rows of a table."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpulayers.ops.embedding import embedding, scatter_add
from gpulayers.ops.matmul import product
from gpulayers.ops.sum_rows import sum_rows
from gpulayers.verify.case import Arg, Case, Function, GradientCase, Maker, OpCase, transposed, written
from gpulayers.verify.cases.inputs import VOCABULARY, normal, rows

LONG = "sums of many terms"


def product_cases(rng: np.random.Generator) -> Iterator[Case]:
    for name, n, k, m in (
        ("1 x 1", 1, 1, 1),
        ("primes", 13, 7, 11),
        ("long sum", 3, 1023, 5),
        ("empty batch", 0, 5, 3),
        ("nothing to sum", 3, 0, 4),
    ):
        a, b, bias = normal(rng, n, k), normal(rng, k, m), normal(rng, m)
        more = {"factor": 3, "why": LONG, "scale": 1e-3}
        yield OpCase(op=product, name=name, args=(a, b), **more)
        yield OpCase(op=product, name=f"{name}, bias", args=(a, b), options={"bias": bias}, **more)
        yield OpCase(op=product, name=f"{name}, transposed views", args=(transposed(a), transposed(b)), **more)
        out = written(np.full((n, 2 * m), 7, np.float32), view=lambda a, m=m: a[:, :m])
        yield OpCase(op=product, name=f"{name}, into a strided view", args=(a, b), options={"out": out}, **more)
    batch = (normal(rng, 2, 3, 5, 4), normal(rng, 2, 3, 4, 6))
    yield OpCase(op=product, name="batched", args=batch, factor=3, why=LONG)
    wide = (normal(rng, 2, 9), normal(rng, 9, VOCABULARY))
    yield OpCase(op=product, name=f"V {VOCABULARY}", args=wide, factor=3, why=LONG, large=True)

    function = Function(
        lambda a, b, bias: (product(a, b, bias=bias), (a, b)),
        lambda dy, saved: (product(dy, saved[1].T), product(saved[0].T, dy), sum_rows(dy)),
    )
    inputs = (rng.normal(size=(5, 7)), rng.normal(size=(7, 3)), rng.normal(size=3))
    yield GradientCase(ops=(sum_rows, product), name="x W + b", function=function, inputs=inputs)


def sum_rows_cases(rng: np.random.Generator) -> Iterator[Case]:
    for r in rows(rng):
        if r.name == "float16 extremes":
            continue  # their sum leaves float16
        yield OpCase(op=sum_rows, name=r.name, args=(r.arg(r.x),), scale=0.5, why="a sum may cancel", large=r.large)
    many = normal(rng, 1023, 5)
    yield OpCase(op=sum_rows, name="1023 rows", args=(many,), factor=3, scale=10, why=LONG)


def embedding_cases(rng: np.random.Generator) -> Iterator[Case]:
    for name, size, ids, dim in tables(rng):
        table, dy = normal(rng, size, dim), normal(rng, ids.size, dim)
        large = size == VOCABULARY
        yield OpCase(op=embedding, name=name, args=(ids, table), large=large)
        out = written(normal(rng, size, dim))
        args = (dy, ids.reshape(-1), out)
        yield OpCase(op=scatter_add, name=name, args=args, factor=4, why="an id's rows add up", large=large)
    ids, table = rng.integers(0, 6, (4, 3)), normal(rng, 6, 5)
    args = (Arg(ids, view=lambda a: a.T), Arg(table, view=lambda a: a[:, ::-1]))
    yield OpCase(op=embedding, name="strided views", args=args)
    args = (transposed(normal(rng, 12, 5)), ids.reshape(-1), written(table))
    yield OpCase(op=scatter_add, name="transposed view", args=args, factor=4, why="an id's rows add up")
    ids = np.array([2, 0, 2, 5])

    def backward(dy: Any, table: Any) -> Any:
        return scatter_add(dy, ids, np.zeros_like(table))

    function = Function(lambda table: (embedding(ids, table), table), backward)
    yield GradientCase(
        ops=(embedding, scatter_add), name="an id twice", function=function, inputs=(rng.normal(size=(6, 3)),)
    )


def tables(rng: np.random.Generator) -> Iterator[tuple[str, int, np.ndarray, int]]:
    yield "V 1", 1, np.zeros(7, np.int64), 3
    yield "V 5", 5, rng.integers(0, 5, (2, 9)), 4
    yield "one id many times", 9, np.minimum(rng.geometric(0.4, 200) - 1, 8), 5
    yield f"V {VOCABULARY}", VOCABULARY, rng.integers(0, VOCABULARY, 40), 3
    yield "32-bit ids", 7, rng.integers(0, 7, 5).astype(np.int32), 2
    yield "no ids", 5, np.zeros((0, 3), np.int64), 3


MAKERS: list[Maker] = [product_cases, sum_rows_cases, embedding_cases]
