"""The feed-forward network, whole: embedding, hidden layers with what is around them, logits."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpulayers.models.feedforward import FeedForwardConfig, FeedForwardNet
from gpulayers.verify.case import Case, LayerCase, Maker
from gpulayers.verify.cases.layers import HALVES, TRAIN


def feedforward_net_cases(rng: np.random.Generator) -> Iterator[Case]:
    forms: list[tuple[str, int, dict[str, Any]]] = [
        ("tanh", 6, {}),
        ("relu, residual", 6, {"activation": "relu", "around": "residual", "init": "he"}),
        ("gelu, batchnorm, dropout", 6, {"activation": "gelu", "around": "batchnorm", "dropout": 0.1}),
        ("prelu, layernorm", 6, {"activation": "prelu", "around": "layernorm", "init": "xavier"}),
        ("leaky_relu, no hidden layer", 6, {"activation": "leaky_relu", "widths": ()}),
        ("empty batch", 0, {}),
    ]
    for name, count, options in forms:
        config = FeedForwardConfig(**({"vocab": 11, "context": 3, "dim": 4, "widths": (8, 8)} | options))
        yield LayerCase(
            layer=FeedForwardNet,
            name=name,
            make=lambda config=config: FeedForwardNet(config, seed=1),
            inputs=(rng.integers(0, 11, (count, 3)),),
            train=TRAIN,
            storages=HALVES if name == "tanh" else ("float32",),
            large=name != "tanh",
        )


MAKERS: list[Maker] = [feedforward_net_cases]
