"""Muon: momentum made orthogonal for the matrices inside a network, AdamW for all the rest."""

import fnmatch
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpulayers.backend import Array
from gpulayers.layers.embedding import Embedding
from gpulayers.layers.layer import Layer
from gpulayers.layers.positions import LearnedPositions
from gpulayers.ops.adam import adam, adam_scalars
from gpulayers.ops.gradient_rules import muon
from gpulayers.ops.move import move
from gpulayers.ops.newton_schulz import COEFFICIENTS, newton_schulz
from gpulayers.ops.update import Table, launch_model
from gpulayers.ops.update_rules import RULES
from gpulayers.optim.check import check_beta, check_betas, check_eps, check_not_negative
from gpulayers.optim.group import Group, Settings
from gpulayers.optim.optimizer import Optimizer
from gpulayers.parameter import Flat, Segment

ADJUST = {
    "original": lambda fan_in, fan_out: math.sqrt(max(1, fan_out / fan_in)),
    "match_rms_adamw": lambda fan_in, fan_out: 0.2 * math.sqrt(max(fan_in, fan_out)),
}


class Muon(Optimizer):
    """m = momentum m + (1 - momentum) g,  u = momentum m + (1 - momentum) g with nesterov, else m,
    p = p (1 - lr weight_decay) - lr adjust O(u),  O(u) about the nearest orthogonal matrix (`ops/newton_schulz.py`).

    That for every parameter of two axes, (fan_in, fan_out), but for tables (`Embedding`, `LearnedPositions`, heads tied
    to them) and those whose names match a pattern of `adamw`: heads, say. They and all others take AdamW's step with
    adamw_lr (by default lr), adamw_betas and adamw_eps.
    adjust_lr_fn: None or "original": sqrt(max(1, fan_out / fan_in)); "match_rms_adamw":
    0.2 sqrt(max(fan_in, fan_out)), so that AdamW's lr and weight_decay fit; Liu et al., Muon is scalable for LLM
    training, 2025, equation 4.

    PyTorch's names and defaults. There a Linear is (fan_out, fan_in) and the products run in bfloat16, here in float32.
    On a GPU a step is one launch for the moments of all matrices and one for all that AdamW trains, then for each
    matrix 3 ns_steps products, about 5 ns_steps array calls and one launch for the step. Source: Jordan et al., 2024.
    """

    moments = ("m", "v")
    squares = True

    def __init__(
        self,
        model: Layer | Flat,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = COEFFICIENTS,
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        adamw: Sequence[str] = (),
        adamw_lr: float | None = None,
        adamw_betas: tuple[float, float] = (0.9, 0.999),
        adamw_eps: float = 1e-8,
        **options: Any,
    ) -> None:
        if adjust_lr_fn is not None and adjust_lr_fn not in ADJUST:
            raise ValueError(f"Muon: adjust_lr_fn must be None or one of {', '.join(ADJUST)}, got {adjust_lr_fn!r}")
        if not 1 <= ns_steps < 100:
            raise ValueError(f"Muon: ns_steps must be in 1..99, got {ns_steps}")
        check_eps("Muon: eps", eps)
        if adamw_lr is not None:
            check_not_negative("Muon: adamw_lr", adamw_lr)
            if lr == 0:
                raise ValueError(
                    f"Muon: adamw_lr is kept as a multiple of lr, which must not be 0 then, got {adamw_lr}"
                )
        self.rule = {"momentum": momentum, "nesterov": nesterov, "adamw_betas": adamw_betas, "adamw_eps": adamw_eps}
        self.betas = adamw_betas
        self.orthogonal = {"coefficients": ns_coefficients, "steps": ns_steps, "eps": eps}
        self._adjust = ADJUST[adjust_lr_fn or "original"]
        super().__init__(model, lr, weight_decay=weight_decay, **options)
        tables = set() if isinstance(model, Flat) else _tables(model)
        self._is_muon = [_inside(segment, tables, adamw) for segment in self.flat.segments]
        others = 1.0 if adamw_lr is None else adamw_lr / lr
        self._settings = [
            self._of_kind(*each, others) for each in zip(self._settings, self._group_of, self._is_muon, strict=True)
        ]

    def _numbers(
        self, momentum: float, nesterov: bool, adamw_betas: tuple[float, float], adamw_eps: float
    ) -> tuple[float, ...]:
        check_beta("Muon: momentum", momentum)
        check_betas("Muon: adamw_betas", adamw_betas)
        check_eps("Muon: adamw_eps", adamw_eps)
        return (momentum, nesterov, *adamw_betas, adamw_eps)

    def _betas_of(self, rule: dict[str, Any]) -> tuple[float, float]:
        return rule["adamw_betas"]

    def _of_kind(self, settings: Settings, group: Group | None, is_muon: bool, others: float) -> Settings:
        """others: of AdamW's rate, unless a group has one of its own."""
        if is_muon:
            return settings._replace(kind="muon", numbers=settings.numbers[:2])
        scale = settings.lr_scale if group is not None and group.lr is not None else settings.lr_scale * others
        return settings._replace(kind="adamw", numbers=settings.numbers[2:], decoupled=True, lr_scale=scale)

    def _for_op(self, settings: Settings) -> Settings:
        """A matrix decays when it moves, after its direction is known."""
        return settings if settings.kind == "adamw" else settings._replace(weight_decay=0.0)

    def _update(self, at: slice, grad: Array, settings: Settings) -> None:
        """A matrix has no second moment; its direction lies where that would be."""
        p, copy = self._weights(at)
        m, v = self._moments["m"][at], self._moments["v"][at]
        along = grad[at], self._controls[settings.control], settings.lr_scale
        if settings.kind == "muon":
            muon(p, m, None, v, *along, settings.numbers, 0.0, False, settings.l1)
        else:
            adam(p, m, v, *along, *settings.numbers, settings.weight_decay, True, settings.l1, copy)

    def _update_all(self, kind: str, table: Table, grad: Array) -> None:
        (p, copy), m, v = self._weights(slice(None)), self._moments["m"], self._moments["v"]
        if kind == "muon":
            number = np.int32(RULES["muon"].number)
            launch_model("update_rules", (p, m, None, v), copy, grad, self._controls, table, number)
        else:
            launch_model("adam", (p, m, v), copy, grad, self._controls, table)

    def _scalars(self, settings: Settings) -> tuple[float, ...]:
        return (RULES["muon"].scalars if settings.kind == "muon" else adam_scalars)(*settings.numbers)

    def _apply(self, grad: Array) -> None:
        super()._apply(grad)
        for segment, settings, here in zip(self.flat.segments, self._settings, self._is_muon, strict=True):
            _, parameter, start, stop = segment
            if here and parameter.trainable and stop > start:
                p, copy = self._weights(slice(start, stop))
                u = newton_schulz(self._moments["v"][start:stop].reshape(parameter.shape), **self.orthogonal)
                factor = self._adjust(*parameter.shape)
                # .copy(): one that is higher than wide comes back as a transposed view
                along = u.copy(order="C").reshape(-1)
                move(
                    p,
                    along,
                    self._controls[settings.control],
                    settings.lr_scale,
                    factor,
                    settings.weight_decay,
                    None,
                    None,
                    copy,
                )

    def _decay_is_penalty(self) -> bool:
        return False

    def _named_state(self) -> dict[str, Array]:
        directions = {f"v.{s.name}" for s, here in zip(self.flat.segments, self._is_muon, strict=True) if here}
        return {name: array for name, array in super()._named_state().items() if name not in directions}


def _tables(model: Layer) -> set[int]:
    """Parameters of the tables, by identity."""
    kinds = (Embedding, LearnedPositions)
    layers = [model, *(layer for _, layer in model.named_layers())]
    return {id(p) for layer in layers if isinstance(layer, kinds) for p in layer.parameters()}


def _inside(segment: Segment, tables: set[int], patterns: Sequence[str]) -> bool:
    parameter = segment.parameter
    if parameter.data.ndim != 2 or id(parameter) in tables:
        return False
    return not any(fnmatch.fnmatchcase(segment.name, pattern) for pattern in patterns)
