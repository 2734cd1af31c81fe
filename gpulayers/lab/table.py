"""The results of a lab as a table."""

from collections.abc import Iterable, Mapping
from typing import Any

from gpulayers.lab.grid import AXES

HEADS = (*AXES, "loss", "first sick layer")


def table(results: Iterable[Mapping[str, Any]]) -> str:
    """A line for each combination: its words, the loss on the held-out part, what fell sick first."""
    lines = [HEADS, *((*result["cell"], loss_of(result), sick_of(result)) for result in results)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADS) - 1)]
    return "\n".join("  ".join([*map(str.ljust, line, widths), line[-1]]).rstrip() for line in lines)


def loss_of(result: Mapping[str, Any]) -> str:
    if result["stopped"] is not None:
        return f"stopped at step {result['stopped']}"
    return "not finite" if result["loss"] is None else f"{result['loss']:.3f}" if result["loss"] < 1e3 else "above 1000"


def sick_of(result: Mapping[str, Any]) -> str:
    """'W.13 saturated at step 1: 73 % of the values are bent flat'."""
    sick = result["sick"]
    if sick is None:
        return "none"
    later = "; well later" if result["well"] else ""
    return f"{sick['layer']} {sick['kind']} at step {sick['step']}: {sick['why']}{later}"
