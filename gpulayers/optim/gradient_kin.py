"""RMSprop, Adagrad, Adadelta, Rprop and ASGD. The formulas stand in `gpulayers/ops/gradient_rules.py`.

Each takes the arguments of `Optimizer` besides; names and defaults are PyTorch's.
"""

from typing import Any

from gpulayers.backend import Array
from gpulayers.layers.layer import Layer
from gpulayers.ops import gradient_rules
from gpulayers.optim.average import replace
from gpulayers.optim.check import any_group, check_beta
from gpulayers.optim.rule import RuleOptimizer
from gpulayers.parameter import Flat


class RMSprop(RuleOptimizer):
    """v = alpha v + (1 - alpha) g^2,  p = p - lr g / (sqrt(v) + eps);  with momentum
    m = momentum m + g / (sqrt(v) + eps),  p = p - lr m.

    centered: v less mean^2 in the place of v, mean = alpha mean + (1 - alpha) g.
    Sources: Tieleman and Hinton, 2012; Graves, 2013.
    """

    op = gradient_rules.rmsprop
    squares = True

    def __init__(
        self,
        model: Layer | Flat,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        **options: Any,
    ) -> None:
        self.rule = {"alpha": alpha, "eps": eps, "momentum": momentum}
        moves = any_group(options, "momentum", momentum)
        self.slots = ("m" if moves else None, "v", "mean" if centered else None)
        super().__init__(model, lr, weight_decay=weight_decay, **options)

    def _numbers(self, alpha: float, eps: float, momentum: float) -> tuple[float, ...]:
        self._check(alpha=alpha, eps=eps, momentum=momentum)
        return alpha, eps, momentum


class Adagrad(RuleOptimizer):
    """v = v + g^2,  p = p - lr / (1 + (t - 1) lr_decay) g / (sqrt(v) + eps): the rate of an element only falls.

    v starts at initial_accumulator_value. Source: Duchi, Hazan and Singer, 2011.
    """

    op = gradient_rules.adagrad
    slots = (None, "v", None)
    squares = True

    def __init__(
        self,
        model: Layer | Flat,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        **options: Any,
    ) -> None:
        self.rule = {"lr_decay": lr_decay, "initial_accumulator_value": initial_accumulator_value, "eps": eps}
        super().__init__(model, lr, weight_decay=weight_decay, **options)

    def _numbers(self, lr_decay: float, initial_accumulator_value: float, eps: float) -> tuple[float, ...]:
        self._check(lr_decay=lr_decay, eps=eps, initial_accumulator_value=initial_accumulator_value)
        return lr_decay, eps

    def _make_arrays(self) -> None:
        super()._make_arrays()
        self._moments["v"].fill(self.rule["initial_accumulator_value"])
        for (_, _, start, stop), rule in zip(self.flat.segments, self._rules, strict=True):
            self._moments["v"][start:stop] = rule["initial_accumulator_value"]


class Adadelta(RuleOptimizer):
    """v = rho v + (1 - rho) g^2,  step = sqrt(m + eps) / sqrt(v + eps) g,  m = rho m + (1 - rho) step^2,
    p = p - lr step.

    The step has the unit of the parameter, so lr = 1 fits; it starts near sqrt(eps). Source: Zeiler, 2012, algorithm 1.
    """

    op = gradient_rules.adadelta
    slots = ("m", "v", None)
    squares = True

    def __init__(
        self,
        model: Layer | Flat,
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        **options: Any,
    ) -> None:
        self.rule = {"rho": rho, "eps": eps}
        super().__init__(model, lr, weight_decay=weight_decay, **options)

    def _numbers(self, rho: float, eps: float) -> tuple[float, ...]:
        self._check(rho=rho, eps=eps)
        return rho, eps


class Rprop(RuleOptimizer):
    """Each element has a step size of its own, v, that grows by etas[1] while its gradient keeps the sign, and shrinks
    by etas[0] when the sign turns (that step is left out): p = p - v sign(g). For whole batches: with small ones the
    sign is noise.

    lr is the first step size, within step_sizes; no schedule, for nothing reads the rate later. lr = 0 does not stand
    still (nor does PyTorch's): its steps are step_sizes[0]. Freeze what is to stay.
    Source: Riedmiller and Braun, 1993, without its step back.
    """

    op = gradient_rules.rprop
    slots = ("m", "v", None)

    def __init__(
        self,
        model: Layer | Flat,
        lr: float = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50.0),
        **options: Any,
    ) -> None:
        if options.get("schedule") is not None:
            raise ValueError("Rprop: it finds its own step sizes and takes no schedule")
        self.rule = {"etas": etas, "step_sizes": step_sizes}
        super().__init__(model, lr, **options)

    def _numbers(self, etas: tuple[float, float], step_sizes: tuple[float, float]) -> tuple[float, ...]:
        if len(etas) != 2 or not 0 < etas[0] < 1 < etas[1]:
            raise ValueError(f"Rprop: etas must be two numbers, one in 0..1 and one above 1, got {etas}")
        if len(step_sizes) != 2 or not 0 <= step_sizes[0] <= step_sizes[1]:
            raise ValueError(f"Rprop: step_sizes must be two numbers, the lower one first, got {step_sizes}")
        return (*etas, *step_sizes)

    def _make_arrays(self) -> None:
        super()._make_arrays()
        for (_, _, start, stop), settings in zip(self.flat.segments, self._settings, strict=True):
            self._moments["v"][start:stop] = self.initial_lr * settings.lr_scale


class ASGD(RuleOptimizer):
    """SGD whose answer is the mean of the parameters on its way: eta = lr / (1 + lambd lr (t - 1))^alpha,
    p = p (1 - lambd eta) - eta g,  average = average + (p - average) / max(1, t - 1 - t0).

    `swap` exchanges parameters and average. lambd decays vectors too, as in PyTorch: it is part of the rule.
    Source: Polyak and Juditsky, 1992; the falling rate: Bottou, Large-scale machine learning with SGD, 2010.
    """

    op = gradient_rules.asgd
    slots = ("average", None, None)

    def __init__(
        self,
        model: Layer | Flat,
        lr: float = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0.0,
        **options: Any,
    ) -> None:
        self.rule = {"lambd": lambd, "alpha": alpha, "t0": t0}
        self._swapped = False
        super().__init__(model, lr, weight_decay=weight_decay, **options)

    def _numbers(self, lambd: float, alpha: float, t0: float) -> tuple[float, ...]:
        check_beta("ASGD: lambd", lambd)
        if not 0 <= alpha <= 1:
            raise ValueError(f"ASGD: alpha must be in 0..1, got {alpha}")
        self._check(t0=t0)
        return lambd, alpha, t0

    def _make_arrays(self) -> None:
        super()._make_arrays()
        # No update writes the average of a frozen parameter, nor any before the first: `swap` must not bring zeros.
        self._moments["average"][...], _ = self._weights(slice(None))

    def swap(self) -> None:
        """Exchange parameters and their average; a second call puts them back, and no update comes between."""
        average = self._moments["average"]
        average[...] = replace(self.flat, average)
        self._swapped = not self._swapped

    def _check_place(self) -> None:
        super()._check_place()
        if self._swapped:
            raise RuntimeError("ASGD: the model holds the average now; swap back before the next step")

    def _named_state(self) -> dict[str, Array]:
        if self._swapped:  # whoever went on from such a state would train the average
            raise RuntimeError("ASGD: the model holds the average now; swap back before the state is saved or loaded")
        return super()._named_state()
