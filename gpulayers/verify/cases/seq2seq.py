"""Additive and multiplicative attention, and the recurrent encoder-decoder."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpulayers.layers.additive_attention import AdditiveAttention
from gpulayers.layers.layer import Layer
from gpulayers.layers.multiplicative_attention import MultiplicativeAttention
from gpulayers.masks import padding_mask
from gpulayers.models.seq2seq import Seq2Seq, Seq2SeqConfig
from gpulayers.ops.additive_scores import additive_scores, additive_scores_backward
from gpulayers.step import Train
from gpulayers.verify.case import Case, Function, GradientCase, LayerCase, Maker, OpCase, transposed
from gpulayers.verify.cases.inputs import normal

HALVES = ("float32", "float16", "bfloat16")
SUMS = "sums over the queries, the keys and the whole batch"

SHAPES = {
    "one of each": (1, 1, 1, 1),
    "primes": (3, 2, 5, 7),
    "1023 keys": (2, 1, 1023, 5),
    "A 1023": (2, 3, 2, 1023),
    "33 samples": (33, 1, 13, 130),
    "empty batch": (0, 2, 5, 7),
    "no queries": (2, 0, 5, 7),
    "no keys": (2, 3, 0, 7),
}


def additive_cases(rng: np.random.Generator) -> Iterator[Case]:
    for name, (B, T, S, A) in SHAPES.items():
        query, keys, v = normal(rng, B, T, A), normal(rng, B, S, A), normal(rng, A)
        yield OpCase(op=additive_scores, name=name, args=(query, keys, v))
        u, dscores = additive_scores.reference(query, keys, v)[1], normal(rng, B, T, S)
        yield OpCase(op=additive_scores_backward, name=name, args=(dscores, u, v), factor=2, why=SUMS)
    query, keys, v = normal(rng, 1, 5, 7), normal(rng, 1, 3, 7, mean=1e4), normal(rng, 7)
    yield OpCase(op=additive_scores, name="all saturated", args=(query, keys, v))
    wide = normal(rng, 13, 7)
    keys = normal(rng, 13, 2, 7)
    args = (query_view(wide), keys, v)
    yield OpCase(op=additive_scores, name="transposed view", args=args)

    def run(query: np.ndarray, keys: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
        scores, u = additive_scores(query, keys, v)
        return scores, (u, v)

    function = Function(run, lambda dscores, saved: additive_scores_backward(dscores, *saved))
    for name in ("one of each", "primes"):
        B, T, S, A = SHAPES[name]
        inputs = (rng.normal(size=(B, T, A)), rng.normal(size=(B, S, A)), rng.normal(size=A))
        ops = (additive_scores, additive_scores_backward)
        yield GradientCase(ops=ops, name=name, function=function, inputs=inputs)


def query_view(wide: np.ndarray):
    """(13, 7) values as queries (13, 1, 7), transposed in memory."""
    arg = transposed(wide)
    return arg._replace(view=lambda a: a.T[:, None])


def attention_cases(rng: np.random.Generator) -> Iterator[Case]:
    def additive() -> Layer:
        return AdditiveAttention(3, 8, 5, rng=0)

    def general() -> Layer:
        return MultiplicativeAttention(3, 8, rng=0)

    def dot() -> Layer:
        return MultiplicativeAttention(8, 8, "dot")

    padding = padding_mask(lengths=np.array([7, 3]), size=7)
    for kind, make, size in (("", additive, 3), (", general", general, 3), (", dot", dot, 8)):
        for name, query, S, hide in (
            ("one query", (2, size), 7, None),
            ("padding", (2, 5, size), 7, padding),
            ("all masked", (2, 5, size), 7, np.ones((1, 1, 1, 7), bool)),
            ("empty batch", (0, 5, size), 7, None),
            ("no queries", (2, 0, size), 7, None),
            ("no keys", (2, 5, size), 0, None),
        ):
            inputs = (rng.normal(size=query), rng.normal(size=(query[0], S, 8)))
            options = {} if hide is None else {"hide": hide}
            layer = type(make())
            yield LayerCase(layer=layer, name=name + kind, make=make, inputs=inputs, options=options, storages=HALVES)


def model_cases(rng: np.random.Generator) -> Iterator[Case]:
    """Whole models, with a source that is padded and one that is nothing else."""
    source, target_in = rng.integers(3, 9, (3, 5)), rng.integers(3, 8, (3, 4))
    source[1, 3:], source[2], target_in[:, 0], target_in[1, 2:] = 0, 0, 1, 0
    one_way = {"bidirectional": False, "context": "last"}
    forms: list[tuple[str, dict[str, Any]]] = [
        ("initial, LSTM", {"decoder": "initial", "cell": "lstm", "layers": 2, **one_way}),
        ("every step, GRU, mean", {"decoder": "every_step", "context": "mean"}),
        ("additive, GRU, dropout", {"decoder": "additive", "dropout": 0.2}),
        ("general, LSTM", {"decoder": "general", "cell": "lstm"}),
        ("dot, RNN, max", {"decoder": "dot", "cell": "rnn", "bidirectional": False, "context": "max"}),
    ]
    for name, options in forms:
        config = Seq2SeqConfig(source_vocab=9, target_vocab=8, dim=3, hidden=4, **options)
        yield LayerCase(
            layer=Seq2Seq,
            name=name,
            make=lambda config=config: Seq2Seq(config, seed=0),
            inputs=(source, target_in),
            train=Train(seed=3, step=7),
            storages=HALVES,
            large=True,
        )


MAKERS: list[Maker] = [additive_cases, attention_cases, model_cases]
