"""One setting of each elementwise update rule, for the tests of their bodies."""

from typing import Any

import numpy as np

from gpulayers.ops.adam_rules import adamax, amsgrad, lamb, lion, nadam, radam
from gpulayers.ops.gradient_rules import adadelta, adagrad, asgd, muon, rmsprop, rprop
from gpulayers.ops.op import Op
from gpulayers.ops.update_control import Control

# name: (op, which of m, v, w it has, its numbers). An epsilon is so large that its place and sign show.
RULES: dict[str, tuple[Op, str, tuple[float, ...]]] = {
    "amsgrad": (amsgrad, "mvw", (0.9, 0.999, 1e-2)),
    "nadam": (nadam, "mv", (0.9, 0.999, 1e-2)),
    "radam": (radam, "mv", (0.9, 0.999, 1e-2)),
    "adamax": (adamax, "mv", (0.9, 0.999, 1e-2)),
    "lion": (lion, "m", (0.9, 0.99)),
    "lamb": (lamb, "mvw", (0.9, 0.999, 1e-2, 0.1)),
    "rmsprop": (rmsprop, "v", (0.99, 1e-2, 0.0)),
    "rmsprop momentum": (rmsprop, "mv", (0.99, 1e-2, 0.9)),
    "rmsprop centered": (rmsprop, "mvw", (0.9, 1e-2, 0.9)),
    "adagrad": (adagrad, "v", (0.1, 1e-2)),
    "adadelta": (adadelta, "mv", (0.9, 1e-2)),
    "rprop": (rprop, "mv", (0.5, 1.2, 1e-6, 50.0)),
    "asgd": (asgd, "m", (0.01, 0.75, 1e6)),
    "asgd averaging": (asgd, "m", (0.01, 0.75, 1.0)),
    "muon": (muon, "mw", (0.95, True)),
    "muon without nesterov": (muon, "mw", (0.95, False)),
}
STEP = Control(1, 0.5, np.inf, 1e-2, correction1=0.271, correction2=0.002997001, t=3, extra=0.4)
SKIP = STEP._replace(apply=0)  # the other numbers are there, and are not looked at


def state(name: str, rng: np.random.Generator, size: int) -> tuple[list[np.ndarray | None], np.ndarray]:
    """[p, m, v, w], g in float32; sizes of gradients are positive, as they are in a run."""
    p, m, w, g = rng.normal(size=(4, size)).astype(np.float32)
    v = rng.uniform(0.1, 2, size).astype(np.float32)
    m = abs(m) if name == "adadelta" else m  # a mean of squares
    w = w * 0.1 if name == "rmsprop centered" else w  # the mean's square is below the mean of squares
    has = RULES[name][1]
    return [p, *(a if letter in has else None for letter, a in zip("mvw", (m, v, w), strict=True))], g


def rule(name: str, **changes: Any) -> dict[str, Any]:
    plain = {"lr_scale": 1.0, "numbers": RULES[name][2], "weight_decay": 0.0, "decoupled": False, "l1": 0.0}
    return {**plain, **changes}
