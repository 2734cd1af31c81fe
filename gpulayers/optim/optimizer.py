"""`Optimizer`: what SGD and Adam share. One step is: norm of all gradients, control, one update of each stretch."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from gpulayers.backend import Array, array_module, device_of, is_array, to_numpy, wide, zeros
from gpulayers.cuda import check_errors, error_flag
from gpulayers.layers.layer import Layer
from gpulayers.ops.sum_of_squares import sum_of_squares
from gpulayers.ops.update import Table, settings_row
from gpulayers.ops.update_control import CONTROL_SIZE, OUTCOME_SIZE, Outcome, update_control
from gpulayers.optim.check import check_limit, check_not_negative, check_state
from gpulayers.optim.group import Group, Settings, Stretch, decay_of, pieces, stretches
from gpulayers.optim.loss_scale import LossScale, LossScaleError
from gpulayers.parameter import Flat, pack
from gpulayers.share_out import share_out
from gpulayers.storage import beside

LARGEST_RATE = 1e30  # of learning rates; float32 holds what lies below
PIECE = 1 << 20  # elements that one thread updates in one go on the CPU, at most; a GPU takes a stretch whole
LEAST = 1 << 17  # elements for a thread of its own: with 2 threads Adam's 120,000 take 1.2 times as long, 640,000 0.7


class Optimizer:
    """Updates all trainable parameters of a model from their gradients.

    model: a Layer, packed into flat memory if it is not yet, or its Flat. lr: learning rate.
    weight_decay, l1: for matrices and tables; vectors (biases, gains) have none unless a group says so. l1 adds
        l1 sign(p) to the gradient.
    clip_value, clip_norm: limits for every element and for the global norm, in this order. They act on the mean
        gradient, before weight decay and l1 are added.
    schedule: k -> factor of the learning rate for update k (`gpulayers.optim.schedule`). One without a `steps`
        attribute is asked before every step, which on a GPU waits for the device.
    groups: parameters with settings of their own (`Group`); the first that matches holds. Norm, clipping and whether to
        go are the whole model's.
    threads: for the update on the CPU; the result does not depend on it.
    loss_scale: of float16 training. The gradients must then be those of `scale` times the loss.
    maximize: go up the gradient instead of down; weight decay and l1 shrink the parameters all the same.

    float16 and bfloat16 parameters are trained through float32 masters (see `Parameter`), and moments are float32.

    A step whose gradient norm is NaN or infinite, or so large that it would make a parameter or a moment infinite, is
    skipped: parameters, moments, running statistics and the count of applied updates keep every bit, `skipped` goes up
    by one. So is a step whose loss is NaN or infinite, if `step` is told the loss, and, on a GPU, one whose pass met a
    target or id out of range. A step never waits for the device. Reading what happened (`applied`, `skipped`,
    `last_step_applied`, `grad_norm`, `lr`, `read`) does, and raises ValueError for such a target or id, LossScaleError
    where no scale helps.
    """

    moments: tuple[str, ...] = ()  # names of the buffers in the checkpoint
    betas: tuple[float, float] = (0.0, 0.0)
    squares: bool = False  # whether a gradient's square has to fit into the moments
    decoupled: bool = False  # whether weight decay is apart from the gradient
    momentum_decay: float | None = None  # NAdam's
    rectify: bool = False  # RAdam's
    rule: dict[str, Any]  # what a group may have of its own: a subclass sets it before it calls `__init__`

    def __init__(
        self,
        model: Layer | Flat,
        lr: float,
        *,
        weight_decay: float = 0.0,
        l1: float = 0.0,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        schedule: Callable[[int], float] | None = None,
        groups: Sequence[Group] = (),
        threads: int = 1,
        loss_scale: LossScale | None = None,
        maximize: bool = False,
    ) -> None:
        for name, value in (("lr", lr), ("weight_decay", weight_decay), ("l1", l1)):
            check_not_negative(f"{type(self).__name__}: {name}", value)
        for name, limit in (("clip_norm", clip_norm), ("clip_value", clip_value)):
            check_limit(f"{type(self).__name__}: {name}", limit)
        if threads < 1:
            raise ValueError(f"{type(self).__name__}: threads must be at least 1, got {threads}")
        self.flat = model if isinstance(model, Flat) else pack(model)
        self.initial_lr, self.weight_decay, self.l1 = lr, weight_decay, l1
        self.clip_norm, self.clip_value = clip_norm, clip_value
        self.schedule, self.groups, self.loss_scale = schedule, tuple(groups), loss_scale
        self.maximize = bool(maximize)
        self._check_groups()
        self._make_settings()
        # On a GPU a thread of its own would have another current stream, and the launches no order.
        on_host = device_of(self.flat.data) == "numpy"
        self._thread_count = threads if on_host else 1  # the calling one among them
        self._threads = ThreadPoolExecutor(threads - 1) if self._thread_count > 1 else None
        self._make_arrays()

    def _check_groups(self) -> None:
        for group in self.groups:
            if not any(group.matches(s.name, s.parameter) for s in self.flat.segments):
                raise ValueError(f"{type(self).__name__}: no parameter matches Group({group.match!r})")

    def _numbers(self, **rule: Any) -> tuple[float, ...]:
        """The rule's own numbers, in the order of its op, from `self.rule` or a group's. Raises ValueError."""
        return ()

    def _make_settings(self) -> None:
        """The settings of each parameter, and what the rows of the control array are for."""
        own = {None: self._settings_of(None), **{group: self._settings_of(group) for group in self.groups}}
        controls = [self._control_of(None)]
        self._settings: list[Settings] = []
        self._group_of: list[Group | None] = []  # of each parameter, and its rule
        self._rules: list[dict[str, Any]] = []
        for segment in self.flat.segments:
            group = next((g for g in self.groups if g.matches(segment.name, segment.parameter)), None)
            if (control := self._control_of(group)) not in controls:
                controls.append(control)
            decay, l1 = decay_of(segment, group, self.weight_decay, self.l1)
            row = controls.index(control)
            self._settings.append(own[group]._replace(weight_decay=decay, l1=l1, control=row))
            self._group_of.append(group)
            self._rules.append(self.rule if group is None else self.rule | group.rule)
        self._control_rows = np.array(controls[1:], np.float64)

    def _settings_of(self, group: Group | None) -> Settings:
        """Those of a group but for the decay, which the parameter decides with it. Raises ValueError, TypeError."""
        name = type(self).__name__
        if group is None:
            return Settings(1.0, 0.0, 0.0, self._numbers(**self.rule), self.decoupled)
        if unknown := group.rule.keys() - self.rule.keys():
            takes = ", ".join(["lr", "lr_scale", "weight_decay", "l1", "maximize", *self.rule])
            raise TypeError(f"{name}: {group} has no option {', '.join(sorted(unknown))}; a group takes {takes}")
        if group.lr is not None and self.initial_lr == 0:
            raise ValueError(f"{name}: {group} keeps its lr as a multiple of the optimizer's, which must not be 0")
        scale = group.lr_scale if group.lr is None else group.lr / self.initial_lr
        rule = self.rule | group.rule
        try:
            numbers = self._numbers(**rule)
        except ValueError as error:
            raise ValueError(f"{error}, in {group}") from None
        return Settings(scale, 0.0, 0.0, numbers, bool(rule.get("decoupled_weight_decay", self.decoupled)))

    def _control_of(self, group: Group | None) -> tuple[float, ...]:
        """What of a group has a part in the control array: betas, momentum_decay, maximize."""
        rule = self.rule if group is None else self.rule | group.rule
        up = self.maximize if group is None or group.maximize is None else bool(group.maximize)
        return (*self._betas_of(rule), float(rule.get("momentum_decay", 0.0)), float(up))

    def _betas_of(self, rule: dict[str, Any]) -> tuple[float, float]:
        return tuple(rule.get("betas", self.betas))

    def _make_arrays(self) -> None:
        data = self.flat.data
        dtype = wide(data.dtype)
        self.flat.make_master()
        self._place = self._place_now()
        self._moments = {name: zeros(data.size, dtype, like=data) for name in self.moments}
        rows = 1 + len(self._control_rows)
        self._controls = zeros((rows, CONTROL_SIZE), dtype, like=data)  # a row for each kind of group
        self._control = self._controls[0]
        self._groups = self._array(self._control_rows, np.float64) if rows > 1 else None
        self._counters = zeros(2, np.int64, like=data)  # applied, skipped
        self._outcome = zeros(OUTCOME_SIZE, np.float64, like=data)
        self._one = self._array([1.0], np.float64)
        self._product = None if self.momentum_decay is None else self._array([1.0] * rows, np.float64)
        self._errors = None if array_module(data) is np else error_flag(data)
        scale = self.loss_scale
        self._loss_scale: Array = None if scale is None else self._array([scale.initial, 0, 0], np.float32)
        self._rates = None
        if self.schedule is None:
            self._rates = self._array([self.rate(0)], dtype)
        elif (steps := getattr(self.schedule, "steps", None)) is not None:
            self._rates = self._array([self.rate(k) for k in range(steps + 1)], dtype)
        self._trainable: tuple[bool, ...] | None = None  # for which `_pieces` were cut
        self._pieces: list[Stretch] = []  # to update
        self._norm_pieces: list[Stretch] = []  # to sum: neighbours need not share settings
        self._tables: dict[str, Table] = {}  # on a GPU: all stretches of a kind, for one launch

    def _array(self, values: Any, dtype: Any) -> Array:
        return beside(np.asarray(values, dtype), self.flat.data)

    # ------------------------------------------------------------------------------------------------ a step

    def step(self, count: Any = None, loss: Any = None) -> None:
        """One update from the gradients divided by `count` (and by `scale`); then all gradients are marked zero.

        count: the number of counted targets whose losses were summed, over all micro-batches, threads and ranks: a
        number, or an array of size 1 on the device. None and 0 count as 1.
        loss: that sum of losses, for `outcome`, and to skip the step where it is not finite; as count.

        Raises ValueError for a negative count, RuntimeError if the model was moved after the optimizer was made.
        """
        self._check_place()
        count, grad = self._count(count), self.flat.grad
        self._decide(grad, count, None if loss is None else self._number(loss))
        self._apply(grad)
        self.flat.commit(self._control)
        self.flat.zero_grad()

    def _decide(self, grad: Array, count: Array, loss: Array) -> None:
        """Norm, clipping, whether to go, rate and corrections, into the control array."""
        clipped_norm = self.clip_norm is not None and self.clip_value is not None
        scaling = self.loss_scale or LossScale()
        update_control(
            self._controls,
            self._counters,
            self._outcome,
            self._sums_of_squares(grad),
            self._sums_of_squares(grad, self._limit(count)) if clipped_norm else None,
            count,
            self._rates if self._rates is not None else self._array([self.lr], self._control.dtype),
            self.clip_norm,
            self.clip_value,
            *self.betas,
            self._largest(),
            self._errors,
            loss,
            self._loss_scale,
            scaling.growth_interval,
            scaling.floor,
            self._product,
            self.momentum_decay or 0.0,
            self.rectify,
            self.maximize,
            self._groups,
        )

    def _sums_of_squares(self, grad: Array, limit: Array = None) -> Array:
        """One for each piece, so that threads add in the same order as one alone."""
        self._todo()
        sums = zeros(max(1, len(self._norm_pieces)), np.float64, like=grad)
        self._each(self._norm_pieces, lambda i, s: sum_of_squares(grad[s.start : s.stop], limit, sums[i : i + 1]))
        return sums

    def _apply(self, grad: Array) -> None:
        """The update of all parameters, once `_decide` has written the control array.

        On a GPU one launch for each kind of rule: the kernel finds settings and control of an element in a table.
        """
        if device_of(grad) == "numpy" or self._control.dtype == np.float64:
            self._each(self._pieces, lambda _, s: self._update(slice(s.start, s.stop), grad, s.settings))
            return
        for kind, table in self._tables.items():
            ours = [piece for piece in self._pieces if piece.settings.kind == kind]
            if len(ours) == 1:
                self._update(slice(ours[0].start, ours[0].stop), grad, ours[0].settings)
            else:
                self._update_all(kind, table, grad)

    def _update_all(self, kind: str, table: Table, grad: Array) -> None:
        """The kernel of one kind of rule over all its stretches."""
        raise NotImplementedError  # not abstract: a rule may replace `_apply`, the one caller, as Adafactor does

    def _for_op(self, settings: Settings) -> Settings:
        """The settings as the op takes them."""
        return settings

    def _scalars(self, settings: Settings) -> tuple[float, ...]:
        """The rule's numbers as its kernel takes them."""
        return settings.numbers

    def _table(self, found: list[Stretch]) -> Table:
        kinds = list(dict.fromkeys(s.settings for s in found))
        ours = [self._for_op(settings) for settings in kinds]
        rows = [settings_row(s.control, *s[:3], s.decoupled, self._scalars(s)) for s in ours]
        places = [(s.start, s.stop, kinds.index(s.settings)) for s in found]
        return Table(self._array(places, np.int64), self._array(np.stack(rows), np.float32), found[-1].stop)

    def _update(self, at: slice, grad: Array, settings: Settings) -> None:
        """One update op over the elements `at`."""
        raise NotImplementedError  # as `_update_all`

    def _weights(self, at: slice) -> tuple[Array, Array]:
        """(what an update moves, the low-precision copy that it writes or None)."""
        master, data = self.flat.master, self.flat.data
        return (data[at], None) if master is None else (master[at], data[at])

    def _each(self, todo: list[Stretch], function: Callable[[int, Stretch], Any]) -> None:
        """function(index, piece) for every piece, on the threads if there are some and enough to do."""
        elements = sum(piece.stop - piece.start for piece in todo)
        helpers = min(self._thread_count, len(todo), elements // LEAST) - 1
        share_out(lambda pair: function(*pair), enumerate(todo), self._threads, helpers)

    def _todo(self) -> list[Stretch]:
        """The pieces of memory to update; cut anew when a parameter was frozen or thawed."""
        trainable = tuple(s.parameter.trainable for s in self.flat.segments)
        if trainable != self._trainable:
            self._trainable = trainable
            size = share = self._piece()
            if self._thread_count > 1:  # four pieces for each thread, so that none waits long for another
                share = min(size, LEAST * max(1, -(-self.flat.size // (4 * self._thread_count * LEAST))))
            self._pieces = pieces(self._stretches(), share)
            self._norm_pieces = pieces(stretches((s, Settings(1, 0, 0)) for s in self.flat.segments), size)
            if device_of(self.flat.data) != "numpy":
                kinds = dict.fromkeys(piece.settings.kind for piece in self._pieces)
                self._tables = {k: self._table([p for p in self._pieces if p.settings.kind == k]) for k in kinds}
        return self._pieces

    def _piece(self) -> int:
        """Elements of a piece whatever the threads: sums that do not depend on them are sums of such pieces."""
        return PIECE if device_of(self.flat.data) == "numpy" else max(1, self.flat.size)

    def _stretches(self) -> list[Stretch]:
        return stretches(zip(self.flat.segments, self._settings, strict=True))

    def _count(self, count: Any) -> Array:
        """(1,) float64 on the device."""
        if count is None:
            return self._one
        if not self._is_here(count):
            check_not_negative(f"{type(self).__name__}.step: count", float(count))
        return self._number(count)

    def _number(self, value: Any) -> Array:
        """(1,) float64 on the device."""
        if self._is_here(value):
            return value.reshape(1).astype(np.float64)
        return self._array([float(value)], np.float64)

    def _is_here(self, value: Any) -> bool:
        return is_array(value) and array_module(value) is array_module(self.flat.data)

    def _limit(self, count: Array) -> Array:
        """The limit of an element before the division by count and scale."""
        limit = self.clip_value * array_module(count).where(count == 0, 1.0, count)
        return limit if self._loss_scale is None else limit * self._loss_scale[:1]

    def _largest(self) -> float:
        """The largest norm after clipping that the dtype of the moments takes, squared where Adam squares it."""
        largest = float(np.finfo(self._control.dtype).max)
        return math.sqrt(largest) if self.squares else largest

    def _check_place(self) -> None:
        place = self._place_now()
        if place != self._place:
            raise RuntimeError(
                f"{type(self).__name__}: the model was {' on '.join(self._place)} and is {' on '.join(place)} now; "
                "make the optimizer after model.to(...)"
            )

    def _place_now(self) -> tuple[str, str]:
        """dtype and device of the model."""
        return str(self.flat.data.dtype), device_of(self.flat.data)

    # ------------------------------------------------------------------------------------------------ what happened

    def check(self) -> None:
        """Raise what a step could not: ValueError for a bad target or id, LossScaleError. Waits for the device."""
        check_errors(self.flat.data)
        if self.loss_scale is not None:
            self._check_scale(self.loss_scale, int(self._loss_scale[2]))

    def _check_scale(self, scale: LossScale, stuck: int) -> None:
        if stuck >= scale.patience:
            raise LossScaleError(
                f"the gradient was not finite in {stuck} steps in a row at the lowest loss scale, {scale.floor:g}: the "
                "model diverges; lower the learning rate, or use bfloat16 or float32"
            )

    def outcome(self) -> Array:
        """What came of the last step, on the device: a copy, (8,) float64, that `read` understands. Does not wait."""
        return self._outcome.copy()

    def read(self, outcome: Array) -> Outcome:
        """`outcome()`, on the host by now or fetched here, as numbers. Raises what the step could not, see `check`."""
        found = Outcome(*to_numpy(outcome).tolist())
        if found.error:
            check_errors(self.flat.data)
        if self.loss_scale is not None:
            self._check_scale(self.loss_scale, int(found.stuck))
        return found

    @property
    def applied(self) -> int:
        """Updates applied so far; what the schedule is a function of."""
        self.check()
        return int(self._counters[0])

    @property
    def skipped(self) -> int:
        """Steps skipped so far."""
        self.check()
        return int(self._counters[1])

    @property
    def last_step_applied(self) -> bool:
        """False if the last step was skipped, and before the first."""
        self.check()
        return bool(self._outcome[2])

    @property
    def grad_norm(self) -> float:
        """Global norm of the last step's gradient, after the division by count and scale, before clipping."""
        self.check()
        return float(self._outcome[0])

    @property
    def scale(self) -> Array:
        """By what the loss's gradient has to be multiplied: a scalar array on the device, None without loss scaling.

        It is a view of what the next step adapts; `float(optimizer.scale)` waits for the device.
        """
        return None if self._loss_scale is None else self._loss_scale[:1].reshape(())

    @property
    def lr(self) -> float:
        """The learning rate of the next update."""
        return self.rate(self.applied)

    def rate(self, k: int) -> float:
        """The learning rate of update k."""
        rate = self.initial_lr * (1.0 if self.schedule is None else self.schedule(k))
        if not 0 <= rate <= LARGEST_RATE:
            name = type(self).__name__
            raise ValueError(f"{name}: the learning rate of update {k} must be in 0..{LARGEST_RATE:g}, got {rate}")
        return rate

    def zero_grad(self) -> None:
        self.flat.zero_grad()

    def penalty(self) -> float:
        """sum of l1 |p| + weight_decay / 2 p^2, whose gradient a step adds: report it beside the loss.

        Decoupled weight decay (AdamW) is the gradient of nothing and is not in it.
        """
        total = 0.0
        for start, stop, settings in pieces(self._stretches(), self._piece()):
            p, _ = self._weights(slice(start, stop))
            if settings.l1:
                total += settings.l1 * float(abs(p).sum(dtype=np.float64))
            if settings.weight_decay and not settings.decoupled and self._decay_is_penalty():
                total += settings.weight_decay / 2 * float(sum_of_squares(p)[0])
        return total

    def _decay_is_penalty(self) -> bool:
        return True

    # ------------------------------------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies in host memory: `m.<parameter>` and so on, `optimizer.applied`, `optimizer.skipped` (int64, ()).

        With loss scaling also `optimizer.loss_scale`: scale, applied steps since it changed, skips at the floor. With
        NAdam `optimizer.mu_product`. With a schedule that has a state (`Plateau`) `optimizer.schedule`.
        Masters are the model's: its `state_dict` has them.
        """
        return {name: np.array(to_numpy(view)) for name, view in self._named_state().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`, bit for bit. Raises ValueError before anything is changed if it does not fit."""
        own = self._named_state()
        check_state(type(self).__name__, own, state)
        for name, view in own.items():
            view[...] = beside(state[name], view)

    def _named_state(self) -> dict[str, Array]:
        """Views of everything that a resumed run needs."""
        state = {
            f"{moment}.{name}": buffer[start:stop].reshape(parameter.shape)
            for moment, buffer in self._moments.items()
            for name, parameter, start, stop in self.flat.segments
        }
        counters = {"optimizer.applied": self._counters[:1], "optimizer.skipped": self._counters[1:]}
        more = {
            "optimizer.loss_scale": self._loss_scale,
            "optimizer.mu_product": self._product,
            "optimizer.schedule": getattr(self.schedule, "state", None),
        }
        state |= {name: view.reshape(()) for name, view in counters.items()}
        return state | {name: array for name, array in more.items() if array is not None}
