"""The Vision Transformer, whole: patches, class token, encoder, pooling, classifier."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpulayers.models.vit import ViT, ViTConfig
from gpulayers.verify.case import Case, LayerCase, Maker
from gpulayers.verify.cases.layers import HALVES, TRAIN

SIZES: dict[str, Any] = {"image": (6, 6), "channels": 3, "patch": 3, "classes": 5, "dim": 16, "heads": 2, "layers": 2}


def vit_cases(rng: np.random.Generator) -> Iterator[Case]:
    forms: list[tuple[str, int, dict[str, Any]]] = [
        ("class token", 3, {}),
        ("mean", 3, {"pool": "mean"}),
        ("dropout", 3, {"dropout": 0.1, "hidden": 7}),
        ("one patch", 1, {"patch": 6}),
        ("empty batch", 0, {}),
    ]
    for name, count, options in forms:
        config = ViTConfig(**(SIZES | options))
        yield LayerCase(
            layer=ViT,
            name=name,
            make=lambda config=config: ViT(config, seed=0),
            inputs=(rng.normal(size=(count, 6, 6, 3)),),
            train=TRAIN,
            storages=HALVES,
            large=name == "dropout",
        )


MAKERS: list[Maker] = [vit_cases]
