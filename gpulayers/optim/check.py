"""Checks of hyperparameters: one sentence with the name, what it got and what it takes."""

import math


def check_not_negative(name: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be 0 or more, and finite, got {value}")


def check_limit(name: str, value: float | None) -> None:
    if value is not None and not value > 0:
        raise ValueError(f"{name} must be above 0, got {value}")


def check_beta(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be in 0..1, without 1, got {value}")
