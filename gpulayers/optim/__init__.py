"""Optimizers, clipping of gradients, learning rate schedules."""

import inspect
from typing import Any

from gpulayers.layers.layer import Layer
from gpulayers.optim.adafactor import Adafactor
from gpulayers.optim.adam import Adam, AdamW
from gpulayers.optim.adam_kin import Adamax, Lion, NAdam, RAdam
from gpulayers.optim.average import EMA
from gpulayers.optim.clip import clip_grad_norm, clip_grad_norm_per_parameter, clip_grad_value, grad_norm
from gpulayers.optim.gradient_kin import ASGD, Adadelta, Adagrad, RMSprop, Rprop
from gpulayers.optim.group import Group
from gpulayers.optim.lamb import LAMB
from gpulayers.optim.loss_scale import LossScale, LossScaleError
from gpulayers.optim.muon import Muon
from gpulayers.optim.optimizer import Optimizer
from gpulayers.optim.plateau import Plateau
from gpulayers.optim.schedule import SCHEDULES, Schedule, chained, make_schedule, sequence
from gpulayers.optim.sgd import SGD
from gpulayers.parameter import Flat

__all__ = [
    "ASGD",
    "EMA",
    "LAMB",
    "OPTIMIZERS",
    "SCHEDULES",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Group",
    "Lion",
    "LossScale",
    "LossScaleError",
    "Muon",
    "NAdam",
    "Optimizer",
    "Plateau",
    "RAdam",
    "RMSprop",
    "Rprop",
    "Schedule",
    "chained",
    "clip_grad_norm",
    "clip_grad_norm_per_parameter",
    "clip_grad_value",
    "grad_norm",
    "make_optimizer",
    "make_schedule",
    "sequence",
]

OPTIMIZERS: dict[str, type[Optimizer]] = {
    "sgd": SGD,
    "adam": Adam,
    "adamw": AdamW,
    "nadam": NAdam,
    "radam": RAdam,
    "adamax": Adamax,
    "lion": Lion,
    "rmsprop": RMSprop,
    "adagrad": Adagrad,
    "adadelta": Adadelta,
    "rprop": Rprop,
    "asgd": ASGD,
    "adafactor": Adafactor,
    "lamb": LAMB,
    "muon": Muon,
}


def make_optimizer(name: str, model: Layer | Flat, **options: Any) -> Optimizer:
    """The optimizer called `name`. Raises ValueError for a name or option that there is not."""
    if name not in OPTIMIZERS:
        raise ValueError(f"unknown optimizer {name!r}; there are {', '.join(OPTIMIZERS)}")
    kind = OPTIMIZERS[name]
    known = {k for cls in (kind, Optimizer) for k in inspect.signature(cls).parameters} - {"model", "options"}
    if unknown := [option for option in options if option not in known]:
        raise ValueError(f"{name} has no option {', '.join(unknown)}; it takes {', '.join(sorted(known))}")
    return kind(model, **options)
