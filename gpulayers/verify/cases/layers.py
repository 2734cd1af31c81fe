"""Layers: each as a user would build it, and on shapes that hurt."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gpulayers.layers.attention import MultiHeadAttention
from gpulayers.layers.batchnorm import BatchNorm
from gpulayers.layers.decoder_block import DecoderBlock
from gpulayers.layers.dropout import Dropout
from gpulayers.layers.embedding import Embedding
from gpulayers.layers.encoder_block import EncoderBlock
from gpulayers.layers.feedforward import FeedForward
from gpulayers.layers.gelu import GELU
from gpulayers.layers.groupnorm import GroupNorm
from gpulayers.layers.instancenorm import InstanceNorm
from gpulayers.layers.layer import Layer
from gpulayers.layers.layernorm import LayerNorm
from gpulayers.layers.leaky_relu import LeakyReLU
from gpulayers.layers.linear import Linear
from gpulayers.layers.log_softmax import LogSoftmax
from gpulayers.layers.positions import LearnedPositions, SinusoidalPositions
from gpulayers.layers.prelu import PReLU
from gpulayers.layers.recompute import Recompute
from gpulayers.layers.relu import ReLU
from gpulayers.layers.residual import Residual
from gpulayers.layers.rmsnorm import RMSNorm
from gpulayers.layers.rotary import Rotary
from gpulayers.layers.sequential import Sequential
from gpulayers.layers.sigmoid import Sigmoid
from gpulayers.layers.silu import SiLU
from gpulayers.layers.softmax import Softmax
from gpulayers.layers.tanh import Tanh
from gpulayers.layers.tied_linear import TiedLinear
from gpulayers.masks import causal_mask, padding_mask
from gpulayers.models.gpt import GPT, GPTConfig
from gpulayers.step import Train
from gpulayers.verify.case import Case, LayerCase, Maker
from gpulayers.verify.cases.inputs import away_from_kinks

TRAIN = Train(seed=3, step=7, first_sample=5)
SHAPES = {"one element": (1, 1), "primes": (3, 5, 7), "1023 rows": (1023, 7), "empty batch": (0, 7)}
SMALL = {"one element": (1, 1), "primes": (3, 5, 7), "empty batch": (0, 7)}
HALVES = ("float32", "float16", "bfloat16")


def on_last_axis(*makers: Callable[[int], Layer], shapes: dict[str, tuple[int, ...]] = SHAPES) -> Maker:
    """Layers that take any shape; each of `makers` is given the size of the last axis."""

    def cases(rng: np.random.Generator) -> Iterator[Case]:
        for k, make in enumerate(makers):
            for name, shape in shapes.items():
                one, cols = make(shape[-1]), shape[-1]
                name = f"{name}, form {k + 1}" if len(makers) > 1 else name
                x = away_from_kinks(rng.normal(0, 2, shape))
                yield LayerCase(
                    layer=type(one), name=name, make=lambda make=make, cols=cols: make(cols), inputs=(x,), train=TRAIN
                )
            x = away_from_kinks(rng.normal(size=(5, 3, 7))).T
            name = f"transposed view, form {k + 1}" if len(makers) > 1 else "transposed view"
            yield LayerCase(layer=type(make(5)), name=name, make=lambda make=make: make(5), inputs=(x,), train=TRAIN)

    return cases


def normalisation_cases(rng: np.random.Generator) -> Iterator[Case]:
    for make in (lambda cols: LayerNorm(cols), lambda cols: LayerNorm(cols, bias=False), lambda cols: RMSNorm(cols)):
        kind = "" if getattr(make(2), "bias", True) is not None else ", no bias"
        for name, shape in (("D 5", (3, 5)), ("primes", (3, 5, 7)), ("D 1023", (2, 1023)), ("empty batch", (0, 7))):
            cols = shape[-1]
            yield LayerCase(
                layer=type(make(cols)),
                name=name + kind,
                make=lambda make=make, cols=cols: make(cols),
                inputs=(rng.normal(1, 2, shape),),
            )


def trailing_cases(rng: np.random.Generator) -> Iterator[Case]:
    """Norms over several axes, and without gain and bias."""
    forms: list[tuple[str, Callable[[], Layer], tuple[int, ...]]] = [
        ("two axes", lambda: LayerNorm((5, 7)), (3, 5, 7)),
        ("all axes", lambda: LayerNorm((3, 5, 7)), (3, 5, 7)),
        ("no weight", lambda: LayerNorm(7, elementwise_affine=False), (3, 5, 7)),
        ("two axes", lambda: RMSNorm((5, 7)), (3, 5, 7)),
        ("no weight", lambda: RMSNorm(7, elementwise_affine=False), (3, 5, 7)),
    ]
    for name, make, shape in forms:
        yield LayerCase(layer=type(make()), name=name, make=make, inputs=(rng.uniform(-2, 4, shape),))


def groupnorm_cases(rng: np.random.Generator) -> Iterator[Case]:
    def tracked() -> Layer:
        return InstanceNorm(5, affine=True, track_running_stats=True)

    forms: list[tuple[str, Callable[[], Layer], tuple[int, ...], Train | None]] = [
        ("channels last", lambda: GroupNorm(2, 6), (3, 5, 7, 6), TRAIN),
        ("channels first", lambda: GroupNorm(3, 6, axis=1), (3, 6, 5, 7), TRAIN),
        ("vectors", lambda: GroupNorm(2, 6), (5, 6), None),
        ("one value a group", lambda: GroupNorm(5, 5), (3, 5), None),
        ("no weight", lambda: GroupNorm(2, 6, affine=False), (3, 5, 6), None),
        ("empty batch", lambda: GroupNorm(2, 6), (0, 5, 6), TRAIN),
        ("channels last", lambda: InstanceNorm(5), (3, 7, 5), TRAIN),
        ("channels first", lambda: InstanceNorm(5, affine=True, axis=1), (3, 5, 2, 7), TRAIN),
        ("tracked", tracked, (3, 7, 5), TRAIN),
        ("tracked, evaluation", tracked, (3, 7, 5), None),
        ("empty batch", lambda: InstanceNorm(5), (0, 7, 5), TRAIN),
    ]
    for name, make, shape, train in forms:
        x = rng.uniform(-2, 4, shape)
        more: dict[str, Any] = {"storages": HALVES} if name == "channels first" else {}
        yield LayerCase(layer=type(make()), name=name, make=make, inputs=(x,), train=train, **more)


def batchnorm_cases(rng: np.random.Generator) -> Iterator[Case]:
    def tracked() -> Layer:
        layer = BatchNorm(7)
        seen = {"running_mean": np.linspace(-1, 1, 7), "running_var": np.linspace(0.5, 3, 7)}
        layer.load_state_dict(seen, strict=False)
        return layer

    forms: list[tuple[str, Callable[[], Layer], tuple[int, ...], Train | None]] = [
        ("D 1", lambda: BatchNorm(1), (5, 1), TRAIN),
        ("primes", lambda: BatchNorm(7), (3, 5, 7), TRAIN),
        ("1023 rows", lambda: BatchNorm(7), (1023, 7), TRAIN),
        ("D 1023", lambda: BatchNorm(1023), (3, 1023), TRAIN),
        ("channels first", lambda: BatchNorm(5, axis=1), (3, 5, 7), TRAIN),
        ("images", lambda: BatchNorm(5, axis=1), (3, 5, 2, 7), TRAIN),
        ("no weight", lambda: BatchNorm(7, affine=False), (3, 5, 7), TRAIN),
        ("no running statistics", lambda: BatchNorm(7, track_running_stats=False), (3, 5, 7), None),
        ("evaluation", tracked, (3, 5, 7), None),
        ("empty batch", lambda: BatchNorm(7), (0, 7), TRAIN),
    ]
    for name, make, shape, train in forms:
        x = rng.normal(1, 2, shape)
        more: dict[str, Any] = {"storages": HALVES} if name == "primes" else {}
        yield LayerCase(layer=BatchNorm, name=name, make=make, inputs=(x,), train=train, **more)


def linear_cases(rng: np.random.Generator) -> Iterator[Case]:
    for name, shape in (*SMALL.items(), ("a vector", (7,))):
        cols = shape[-1]
        for bias in (True, False):
            yield LayerCase(
                layer=Linear,
                name=name + ", no bias" * (not bias),
                make=lambda cols=cols, bias=bias: Linear(cols, 4, bias, rng=0),
                inputs=(rng.normal(size=shape),),
            )
    for name, shape in (("primes", (3, 5, 7)), ("empty batch", (0, 7))):
        x = rng.normal(size=shape)
        yield LayerCase(
            layer=TiedLinear, name=name, make=lambda: TiedLinear(Embedding(9, 7, rng=0).weight), inputs=(x,)
        )


def embedding_cases(rng: np.random.Generator) -> Iterator[Case]:
    for name, ids, size in (
        ("V 1", np.zeros((2, 3), np.int64), 1),
        ("repeated ids", rng.integers(0, 5, (4, 9)), 5),
        ("V 50257", rng.integers(0, 50257, (2, 3)), 50257),
        ("no ids", np.zeros((0, 3), np.int64), 5),
    ):
        yield LayerCase(
            layer=Embedding,
            name=name,
            make=lambda size=size: Embedding(size, 3, rng=0),
            inputs=(ids,),
            large=size == 50257,
        )


def position_cases(rng: np.random.Generator) -> Iterator[Case]:
    for name, shape in (("one position", (2, 1, 4)), ("primes", (3, 7, 4)), ("empty batch", (0, 3, 4))):
        x = rng.normal(size=shape)
        for start in (0, 2):
            more: dict[str, Any] = {"name": f"{name}, start {start}", "options": {"start": start}}
            yield LayerCase(layer=LearnedPositions, make=lambda: LearnedPositions(9, 4, rng=0), inputs=(x,), **more)
            yield LayerCase(layer=SinusoidalPositions, make=lambda: SinusoidalPositions(4), inputs=(x,), **more)
            heads = x[:, :, None].repeat(3, axis=2)
            yield LayerCase(layer=Rotary, make=lambda: Rotary(4), inputs=(heads,), **more)


def attention_cases(rng: np.random.Generator) -> Iterator[Case]:
    padding = padding_mask(lengths=np.array([3, 6]), size=6)
    for name, shape, options in (
        ("one token", (1, 1, 8), {"causal": True}),
        ("causal", (2, 6, 8), {"causal": True}),
        ("padding", (2, 6, 8), {"hide": padding}),
        ("padding and causal", (2, 6, 8), {"hide": padding | causal_mask(6, 6)}),
        ("all masked", (2, 6, 8), {"hide": np.ones((1, 1, 6, 6), bool)}),
        ("empty batch", (0, 6, 8), {"causal": True}),
        ("no tokens", (2, 0, 8), {"causal": True}),
    ):
        x = rng.normal(size=shape)
        yield LayerCase(
            layer=MultiHeadAttention,
            name=name,
            make=lambda: MultiHeadAttention(8, 4, rng=0),
            inputs=(x,),
            options=options,
        )
    x, memory, values = rng.normal(size=(2, 5, 8)), rng.normal(size=(2, 7, 3)), rng.normal(size=(2, 7, 5))
    forms: list[tuple[str, dict[str, Any], tuple[np.ndarray, ...]]] = [
        ("rotary, grouped heads, dropout", {"kv_heads": 2, "rotary": True, "dropout": 0.3}, (x,)),
        ("cross", {"kdim": 3, "bias": False}, (x, memory)),
        ("cross, own values", {"kdim": 3, "vdim": 5, "value_head_dim": 3}, (x, memory, values)),
        ("batch second", {"batch_first": False, "rotary": True, "head_dim": 4}, (x,)),
        ("cross, batch second", {"batch_first": False, "kdim": 3}, (x.swapaxes(0, 1), memory.swapaxes(0, 1))),
        ("cross, one sample", {"kdim": 3, "vdim": 5}, (x[0], memory[0], values[0])),
        ("soft cap, grouped heads", {"kv_heads": 1, "softcap": 0.7}, (x,)),
    ]
    for name, how, inputs in forms:
        yield LayerCase(
            layer=MultiHeadAttention,
            name=name,
            make=lambda how=how: MultiHeadAttention(8, 4, rng=0, **how),
            inputs=inputs,
            train=TRAIN,
        )


def feedforward_cases(rng: np.random.Generator) -> Iterator[Case]:
    for activation in ("gelu_tanh", "gelu", "relu", "sigmoid", "silu", "tanh"):
        yield LayerCase(
            layer=FeedForward,
            name=activation,
            make=lambda activation=activation: FeedForward(5, 12, activation, dropout=0.1, rng=0),
            inputs=(rng.normal(size=(3, 2, 5)),),
            train=TRAIN,
        )
    empty = np.zeros((0, 5))
    yield LayerCase(layer=FeedForward, name="empty batch", make=lambda: FeedForward(5, rng=0), inputs=(empty,))


def container_cases(rng: np.random.Generator) -> Iterator[Case]:
    def network() -> Layer:
        rng = np.random.default_rng(0)
        return Sequential(Linear(6, 9, rng=rng), GELU("tanh"), Dropout(0.2), Linear(9, 6, rng=rng))

    def around() -> Layer:
        return Residual(network())

    def again() -> Layer:
        return Recompute(network())

    for name, x in (("dropout inside", rng.normal(size=(4, 6))), ("empty batch", np.zeros((0, 6)))):
        for layer, make in ((Sequential, network), (Residual, around), (Recompute, again)):
            yield LayerCase(layer=layer, name=name, make=make, inputs=(x,), train=TRAIN)


def block_cases(rng: np.random.Generator) -> Iterator[Case]:
    x, memory = rng.normal(size=(2, 5, 8)), rng.normal(size=(2, 7, 8))
    hide, hide_memory = padding_mask(lengths=np.array([3, 5])), padding_mask(lengths=np.array([7, 0]), size=7)
    for norm_first in (True, False):
        options = {"norm_first": norm_first, "dropout": 0.2, "activation": "gelu" if norm_first else "relu"}

        def encoder(options: dict[str, Any] = options) -> Layer:
            return EncoderBlock(8, 2, hidden=12, rng=0, **options)

        def decoder(options: dict[str, Any] = options) -> Layer:
            return DecoderBlock(8, 2, hidden=12, rng=0, **options)

        order = "pre-norm" if norm_first else "post-norm"
        more: dict[str, Any] = {"options": {"hide": hide}, "train": TRAIN}
        yield LayerCase(layer=EncoderBlock, name=f"{order}, padding", make=encoder, inputs=(x,), **more)
        more["options"] = {"hide": hide, "hide_memory": hide_memory}  # the second memory is all padding
        yield LayerCase(layer=DecoderBlock, name=f"{order}, padding", make=decoder, inputs=(x, memory), **more)
        yield LayerCase(layer=EncoderBlock, name=f"{order}, empty batch", make=encoder, inputs=(x[:0],))
        yield LayerCase(layer=DecoderBlock, name=f"{order}, empty batch", make=decoder, inputs=(x[:0], memory[:0]))


def gpt_cases(rng: np.random.Generator) -> Iterator[Case]:
    """A whole model: every kernel that training needs, one after the other, with a tied head and with its own."""
    for name, options in (
        ("1 layer", {}),
        ("dropout, grouped heads, rotary", {"dropout": 0.1, "kv_heads": 1, "rotary": True, "bias": False}),
        ("a head of its own, exact GELU", {"tied": False, "activation": "gelu", "hidden": 24, "scale_by_layer": True}),
    ):
        config = GPTConfig(vocab=33, context=9, layers=1, heads=2, dim=16, **options)
        yield LayerCase(
            layer=GPT,
            name=name,
            make=lambda config=config: GPT(config, seed=0),
            inputs=(rng.integers(0, 33, (2, 9)),),
            train=TRAIN,
            storages=HALVES,
            large=True,
        )


MAKERS: list[Maker] = [
    on_last_axis(lambda cols: ReLU()),
    on_last_axis(lambda cols: LeakyReLU(0.2)),
    on_last_axis(lambda cols: PReLU(), lambda cols: PReLU(cols)),
    on_last_axis(lambda cols: GELU("none"), lambda cols: GELU("tanh")),
    on_last_axis(lambda cols: SiLU()),
    on_last_axis(lambda cols: Sigmoid()),
    on_last_axis(lambda cols: Tanh()),
    on_last_axis(lambda cols: Softmax(), lambda cols: Softmax(axis=0)),
    on_last_axis(lambda cols: LogSoftmax(), shapes=SMALL),
    on_last_axis(lambda cols: Dropout(0.3), lambda cols: Dropout(1.0)),
    normalisation_cases,
    trailing_cases,
    batchnorm_cases,
    groupnorm_cases,
    linear_cases,
    embedding_cases,
    position_cases,
    attention_cases,
    feedforward_cases,
    container_cases,
    block_cases,
    gpt_cases,
]
