"""How each layer of a network is doing in one step, and which one is sick first.

    gradient      norm of the mean gradient of the layer's own parameters, before clipping
    activation    root mean square of the layer's output
    dead          share of its units that say nothing in the whole batch: 0 after ReLU (GELU, SiLU), bent flat after
                  tanh and sigmoid
    saturated     share of single values that tanh and sigmoid have bent flat: |tanh| > 0.99, sigmoid likewise
    update        norm of the step's update of the parameters over their norm before it; 1e-3 is a usual size

What is not there is None: a layer without parameters has no gradient, one without such an activation no dead units.
`ledger.py` measures these; `first_sick` reads them by these rules, the first that finds something decides:

    not finite    an activation, a gradient or an update is NaN or infinite
    exploding     an activation above 1e3
    saturated     more than half of the values bent flat
    dead          more than nine tenths of the units dead
    vanishing     an activation below 1e-4
    exploding     a gradient norm above 1e3
    vanishing     a gradient norm below 1e-3 of the last layer's

Activations and units are looked through from the first layer to the last, gradients from the last to the first,
because this is how trouble spreads: the layer that is found is the first that it has reached. Activations come before
gradients, because a sick forward pass makes a sick backward pass, and the other way round takes a step.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from gpulayers.training.metrics import is_finite

EXPLODING = 1e3  # of a norm or root mean square; a healthy network keeps both near 1
SATURATED = 0.5
DEAD = 0.9
VANISHING_ACTIVATION = 1e-4
VANISHING_GRADIENT = 1e-3  # of the last layer's


class Row(NamedTuple):
    """One layer in one step, see above."""

    gradient: float | None = None
    activation: float | None = None
    dead: float | None = None
    saturated: float | None = None
    update: float | None = None


Rows = Mapping[str, Row]  # layer -> Row, in the order of the forward pass


class Sick(NamedTuple):
    """kind: one of the words above. why: the rest of the sentence, with the number."""

    layer: str
    kind: str
    why: str

    def __str__(self) -> str:
        return f"{self.kind} from {self.layer} on: {self.why}"


Rule = Callable[[Row], str | None]  # what is wrong with a row, None for nothing


def first_sick(rows: Rows) -> Sick | None:
    """The first sick layer and why; None for a network in good health, as far as these rules go."""
    forward, back = list(rows.items()), list(rows.items())[::-1]
    last = next((row.gradient for _, row in back if row.gradient is not None), None)
    for kind, order, rule in (
        ("not finite", forward, lambda row: _not_finite(row.activation, "an activation")),
        ("not finite", back, lambda row: _not_finite(row.gradient, "a gradient")),
        ("not finite", forward, lambda row: _not_finite(row.update, "an update")),
        ("exploding", forward, lambda row: _above(row.activation, "root mean square of the activation")),
        ("saturated", forward, lambda row: _share(row.saturated, SATURATED, "of the values are bent flat")),
        ("dead", forward, lambda row: _share(row.dead, DEAD, "of the units are dead")),
        ("vanishing", forward, _vanishing_activation),
        ("exploding", back, lambda row: _above(row.gradient, "norm of the gradient")),
        ("vanishing", back, lambda row: _vanishing_gradient(row, last)),
    ):
        if (found := _first(order, kind, rule)) is not None:
            return found
    return None


def _first(rows: Iterable[tuple[str, Row]], kind: str, rule: Rule) -> Sick | None:
    for layer, row in rows:
        if (why := rule(row)) is not None:
            return Sick(layer, kind, why)
    return None


def _not_finite(value: float | None, what: str) -> str | None:
    return None if value is None or math.isfinite(value) else f"{what} is NaN or infinite"


def _above(value: float | None, what: str) -> str | None:
    return f"{what} {value:.1e}, above {EXPLODING:.0e}" if value is not None and value > EXPLODING else None


def _share(value: float | None, most: float, what: str) -> str | None:
    return f"{100 * value:.0f} % {what}" if value is not None and value > most else None


def _vanishing_activation(row: Row) -> str | None:
    value = row.activation
    if value is None or not value < VANISHING_ACTIVATION:
        return None
    return f"root mean square of the activation {value:.1e}, below {VANISHING_ACTIVATION:.0e}"


def _vanishing_gradient(row: Row, last: float | None) -> str | None:
    value = row.gradient
    if value is None or not last or not value < VANISHING_GRADIENT * last:
        return None
    return f"norm of the gradient {value:.1e}, {value / last:.0e} of the last layer's"


# ------------------------------------------------------------------------------------------------ as JSON


def as_record(step: int, rows: Rows) -> dict[str, Any]:
    """A line of health.jsonl: {"step": 100, "layers": {"W.3": {"gradient": 0.5, ...}}, "sick": {...} or null}.

    What is not there is left out; `metrics.plain` writes what is not finite as null.
    """
    sick = first_sick(rows)
    layers = {name: {k: v for k, v in row._asdict().items() if v is not None} for name, row in rows.items()}
    return {"step": step, "layers": layers, "sick": None if sick is None else sick._asdict()}


def rows_of(record: Mapping[str, Any]) -> dict[str, Row]:
    """The rows of such a line; null is NaN again. What is none, in a file that was tampered with, is left out."""
    layers = record.get("layers")
    return {
        name: Row(**{key: math.nan if value is None else float(value) for key, value in values.items()})
        for name, values in (layers.items() if isinstance(layers, Mapping) else ())
        if isinstance(values, Mapping) and all(map(_is_measured, values.items()))
    }


def _is_measured(item: tuple[str, Any]) -> bool:
    key, value = item
    return key in Row._fields and (value is None or is_finite(value))
