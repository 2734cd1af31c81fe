"""The cases, by subject. An op or layer that has none fails the tests: add its cases to one of the `MAKERS` lists."""

from gpulayers.verify.case import Maker
from gpulayers.verify.cases import (
    activations,
    attention,
    elementwise,
    feedforward,
    layers,
    linear,
    losses,
    normalisation,
    optimizers,
    recurrent,
    seq2seq,
    transformer,
    vit,
)

MAKERS: list[Maker] = [
    *linear.MAKERS,
    *activations.MAKERS,
    *elementwise.MAKERS,
    *normalisation.MAKERS,
    *attention.MAKERS,
    *losses.MAKERS,
    *optimizers.MAKERS,
    *layers.MAKERS,
    *feedforward.MAKERS,
    *recurrent.MAKERS,
    *seq2seq.MAKERS,
    *transformer.MAKERS,
    *vit.MAKERS,
]
