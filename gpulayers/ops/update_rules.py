"""What the elementwise update rules share; the rules themselves are in `adam_rules.py` and `gradient_rules.py`.

Each rule is an `Op` of its own with the same arguments, and takes one launch of `kernels/update_rules.cu` over a
stretch of flat memory:

    rule(p, m, v, w, g, control, lr_scale, numbers, weight_decay, decoupled, l1, copy=None, clear=False)

    Written: p, and those of m, v, w that the rule has (None for the others), and copy unless it is None. Read: g,
    control. All but control are (n,). numbers: the rule's own, in the order of its functions. copy: p in its own dtype.
    clear: fill g with 0. A step that is not applied changes no bit of the others.

    d = clip(scale g) + weight_decay p + l1 sign(p)           (weight_decay only if it is not decoupled)
    p = p (1 - rate weight_decay) if it is decoupled          rate = control's, times lr_scale
    then the rule moves p and its state along d

See `update_control` for what changes from step to step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulayers.backend import Array, array_module, empty
from gpulayers.cuda import contiguous
from gpulayers.ops.op import BLOCK, Op
from gpulayers.ops.update import (
    clear_skipped,
    finish_block,
    finish_reference,
    gradient_cpu,
    gradient_reference,
    launch_update,
)
from gpulayers.ops.update_control import Control

State = tuple[Array, Array, Array, Array]  # p, m, v, w


@dataclass(frozen=True)
class Rule:
    """number: of the rule in the kernel.

    reference(xp, (p, m, v, w), d, c, rate, *numbers): their new values; c is the `Control`.
    cpu(p, m, v, w, d, u, s, c, rate, *numbers): the same in place on one block; d, u and s may be overwritten.
    scalars(*numbers): what the kernel takes, up to six floats; 1 - beta comes from here, where it has all its digits.
    moves: False for a rule that finds a direction only; it writes neither p nor copy, and takes no decoupled decay.
    """

    name: str
    number: int
    reference: Callable[..., State]
    cpu: Callable[..., None]
    scalars: Callable[..., tuple[float, ...]]
    moves: bool = True


RULES: dict[str, Rule] = {}  # by name


def rule_op(rule: Rule) -> Op:
    RULES[rule.name] = rule

    def reference(
        p: Array,
        m: Array,
        v: Array,
        w: Array,
        g: Array,
        control: Array,
        lr_scale: float,
        numbers: tuple[float, ...],
        weight_decay: float,
        decoupled: bool,
        l1: float,
        copy: Array = None,
        clear: bool = False,
    ) -> None:
        xp = array_module(p, m, v, w, g, control)
        c = Control(*control)
        apply, rate, wide_p = c.apply > 0, c.rate * lr_scale, p.astype(control.dtype)
        ones = {name: xp.where(apply, getattr(c, name), 1) for name in ("correction1", "correction2", "t")}
        d = gradient_reference(wide_p, g, c, 0.0 if decoupled else weight_decay, l1)
        if decoupled and rule.moves:
            wide_p = wide_p * (1 - rate * weight_decay)
        new = rule.reference(xp, (wide_p, m, v, w), d, c._replace(**ones), rate, *numbers)
        for old, value in zip((p, m, v, w), new, strict=True):
            if old is not None:
                old[...] = xp.where(apply, value, old)
        finish_reference(p, g, apply, copy if rule.moves else None, clear)

    def cpu(
        p: Array,
        m: Array,
        v: Array,
        w: Array,
        g: Array,
        control: Array,
        lr_scale: float,
        numbers: tuple[float, ...],
        weight_decay: float,
        decoupled: bool,
        l1: float,
        copy: Array = None,
        clear: bool = False,
    ) -> None:
        c = Control(*control.tolist())
        if not c.apply:
            return clear_skipped(g, clear)
        rate, decay = c.rate * lr_scale, 0.0 if decoupled else weight_decay
        work = empty((3, min(BLOCK, p.size)), control.dtype, like=p)
        for start in range(0, p.size, BLOCK):
            block = slice(start, min(start + BLOCK, p.size))
            state: list[Any] = [None if a is None else a[block] for a in (p, m, v, w)]
            d, u, s = work[:, : block.stop - start]
            gradient_cpu(d, state[0], g[block], c, decay, l1)
            if decoupled and weight_decay and rule.moves:
                state[0] *= 1 - rate * weight_decay
            rule.cpu(*state, d, u, s, c, rate, *numbers)
            finish_block(state[0], g[block], copy if rule.moves else None, block, clear)

    def cuda(
        p: Array,
        m: Array,
        v: Array,
        w: Array,
        g: Array,
        control: Array,
        lr_scale: float,
        numbers: tuple[float, ...],
        weight_decay: float,
        decoupled: bool,
        l1: float,
        copy: Array = None,
        clear: bool = False,
    ) -> None:
        own = rule.scalars(*numbers)
        floats = (np.float32(x) for x in (*own, *(0.0,) * (6 - len(own)), lr_scale, weight_decay, l1))
        scalars = (*floats, np.int32(decoupled), np.int32(rule.number), np.int32(clear))
        launch_update("update_rules", (p, m, v, w), copy, g if clear else contiguous(g), control, scalars)

    return Op(rule.name, reference=reference, cpu=cpu, cuda=cuda)


def mix(old: Array, new: Array, beta: float, work: Array) -> None:
    """old = beta old + (1 - beta) new, in place."""
    old *= beta
    np.multiply(new, 1 - beta, out=work)
    old += work
