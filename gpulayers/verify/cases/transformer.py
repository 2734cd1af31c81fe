"""The whole Transformer: both stacks, padding on both sides, and a source that is nothing but padding."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpulayers.models.transformer import Transformer, TransformerConfig
from gpulayers.step import Train
from gpulayers.verify.case import Case, LayerCase, Maker

TRAIN = Train(seed=3, step=7, first_sample=5)


def transformer_cases(rng: np.random.Generator) -> Iterator[Case]:
    source, target = rng.integers(3, 17, (3, 7)), rng.integers(3, 17, (3, 6))
    for n, (s, t) in enumerate(((7, 4), (3, 6), (0, 5))):
        source[n, s:], target[n, t:] = 0, 0
    forms: list[tuple[str, dict[str, Any]]] = [
        ("pre-norm", {"dropout": 0.1}),
        ("post-norm, tied, learned positions", {"norm_first": False, "tied": True, "positions": "learned"}),
    ]
    for name, options in forms:
        config = TransformerConfig(17, 17, dim=16, heads=2, layers=1, activation="gelu", longest=9, **options)
        yield LayerCase(
            layer=Transformer,
            name=name,
            make=lambda config=config: Transformer(config, seed=0),
            inputs=(source, target),
            train=TRAIN,
            storages=("float32", "float16", "bfloat16"),
            large=True,
        )


MAKERS: list[Maker] = [transformer_cases]
