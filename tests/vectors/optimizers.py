"""Every optimizer over 12 steps, clipping, and the schedules that PyTorch has too."""

import warnings

import numpy as np
import torch
from vectors.groups import GROUPS
from vectors.recorder import Recorder, leaf, numpy

STEPS = 12
SHAPES = {"matrix": (4, 3), "vector": (5,), "table": (2, 7)}
DECAY = 0.1


def write() -> None:
    r = Recorder(seed=4)
    start = {name: r.draw(*shape) for name, shape in SHAPES.items()}
    gradients = {name: r.draw(STEPS, *shape) for name, shape in SHAPES.items()}
    gradients["vector"][:, 0] = 0  # no gradient at all: the step is 0
    gradients["vector"][:, 1] = 1e-9  # below epsilon: shows where epsilon stands
    r.put(**{f"start {name}": array for name, array in start.items()})
    r.put(**{f"gradients {name}": array for name, array in gradients.items()})
    torch.set_default_dtype(torch.float64)  # or PyTorch rounds NAdam's product and ASGD's rate to float32
    for name, make in OPTIMIZERS.items():
        for key, steps in each_step(make, start, gradients).items():
            r.put(**{f"{name}/{key}": steps})
    for name, (kind, options, groups) in GROUPS.items():
        for key, steps in each_step(grouped(kind, options, groups), start, gradients).items():
            r.put(**{f"{name}/{key}": steps})
    torch.set_default_dtype(torch.float32)
    clipping(r, gradients)
    schedules(r)
    r.write("optimizers")


OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups(0), lr=0.1),
    "sgd momentum": lambda groups: torch.optim.SGD(groups(0), lr=0.1, momentum=0.9),
    "sgd nesterov": lambda groups: torch.optim.SGD(groups(0), lr=0.1, momentum=0.9, nesterov=True),
    "sgd dampening": lambda groups: torch.optim.SGD(groups(DECAY), lr=0.1, momentum=0.9, dampening=0.3),
    "adam decoupled": lambda groups: torch.optim.Adam(groups(DECAY), lr=0.01, decoupled_weight_decay=True),
    "sgd decay": lambda groups: torch.optim.SGD(groups(DECAY), lr=0.1),
    "sgd momentum decay": lambda groups: torch.optim.SGD(groups(DECAY), lr=0.1, momentum=0.9),
    "sgd nesterov decay": lambda groups: torch.optim.SGD(groups(DECAY), lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda groups: torch.optim.Adam(groups(0), lr=0.01),
    "adam betas eps": lambda groups: torch.optim.Adam(groups(0), lr=0.01, betas=(0.8, 0.95), eps=1e-3),
    "adam decay": lambda groups: torch.optim.Adam(groups(DECAY), lr=0.01),
    "adamw": lambda groups: torch.optim.AdamW(groups(DECAY), lr=0.01),
    "adamw betas eps": lambda groups: torch.optim.AdamW(groups(DECAY), lr=0.01, betas=(0.8, 0.95), eps=1e-3),
    "adam maximize": lambda groups: torch.optim.Adam(groups(DECAY), lr=0.01, maximize=True),
    "sgd maximize": lambda groups: torch.optim.SGD(groups(DECAY), lr=0.1, momentum=0.9, maximize=True),
    "amsgrad": lambda groups: torch.optim.Adam(groups(DECAY), lr=0.01, betas=(0.8, 0.6), amsgrad=True),
    "adamw amsgrad": lambda groups: torch.optim.AdamW(groups(DECAY), lr=0.01, betas=(0.8, 0.6), amsgrad=True),
    "nadam": lambda groups: torch.optim.NAdam(groups(0)),
    "nadam decay": lambda groups: torch.optim.NAdam(groups(DECAY), lr=0.01, betas=(0.8, 0.95), momentum_decay=0.1),
    "nadam decoupled": lambda groups: torch.optim.NAdam(groups(DECAY), lr=0.01, decoupled_weight_decay=True),
    "radam": lambda groups: torch.optim.RAdam(groups(0)),
    "radam decay": lambda groups: torch.optim.RAdam(groups(DECAY), lr=0.01, betas=(0.8, 0.95), eps=1e-3),
    "radam decoupled": lambda groups: torch.optim.RAdam(groups(DECAY), lr=0.01, decoupled_weight_decay=True),
    "adamax": lambda groups: torch.optim.Adamax(groups(0)),
    "adamax decay": lambda groups: torch.optim.Adamax(groups(DECAY), lr=0.01, betas=(0.8, 0.6), maximize=True),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups(0)),
    "rmsprop momentum": lambda groups: torch.optim.RMSprop(groups(DECAY), lr=0.01, alpha=0.8, momentum=0.9),
    "rmsprop centered": lambda groups: torch.optim.RMSprop(groups(DECAY), alpha=0.8, eps=1e-3, centered=True),
    "rmsprop both": lambda groups: torch.optim.RMSprop(groups(0), alpha=0.8, eps=1e-3, momentum=0.5, centered=True),
    "adagrad": lambda groups: torch.optim.Adagrad(groups(0)),
    "adagrad decay": lambda groups: torch.optim.Adagrad(
        groups(DECAY), lr=0.1, lr_decay=0.1, initial_accumulator_value=0.5, eps=1e-3
    ),
    "adadelta": lambda groups: torch.optim.Adadelta(groups(0)),
    "adadelta decay": lambda groups: torch.optim.Adadelta(groups(DECAY), lr=0.5, rho=0.8, eps=1e-2),
    "rprop": lambda groups: torch.optim.Rprop(groups(0)),
    "rprop bounds": lambda groups: torch.optim.Rprop(groups(0), lr=0.1, etas=(0.3, 1.5), step_sizes=(0.05, 0.2)),
    "asgd": lambda groups: torch.optim.ASGD(groups(0)),
    "asgd averaging": lambda groups: torch.optim.ASGD(groups(DECAY), lr=0.1, lambd=0.1, alpha=0.5, t0=3),
    "adafactor": lambda groups: torch.optim.Adafactor(groups(0)),
    "adafactor decay": lambda groups: torch.optim.Adafactor(
        groups(DECAY), lr=0.5, beta2_decay=-0.5, eps=(1e-4, 1e-2), d=1.5
    ),
}


def each_step(make, start, gradients) -> dict[str, np.ndarray]:
    """The parameters after each step, (STEPS, *shape)."""
    p = {name: leaf(array) for name, array in start.items()}

    def groups(decay):  # vectors never decay
        matrices, vectors = [p["matrix"], p["table"]], [p["vector"]]
        return [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]

    groups.parameters = p
    optimizer, found = make(groups), {name: [] for name in p}
    for k in range(STEPS):
        for name, tensor in p.items():
            tensor.grad = torch.tensor(gradients[name][k], dtype=torch.float64)
        optimizer.step()
        for name, tensor in p.items():
            found[name].append(numpy(tensor))
    averages = {name: optimizer.state[tensor].get("ax") for name, tensor in p.items()}
    found |= {f"average {name}": [numpy(ax)] for name, ax in averages.items() if ax is not None}
    return {name: np.stack(steps) for name, steps in found.items()}


def grouped(kind: str, options: dict, own: dict):
    """A group for each parameter; a vector decays only where its group says so."""

    def make(groups):
        decay = {} if kind == "Rprop" else {"weight_decay": 0.0}
        each = [
            {"params": [tensor], **(decay if name == "vector" else {}), **own.get(name, {})}
            for name, tensor in groups.parameters.items()
        ]
        return getattr(torch.optim, kind)(each, **options)

    return make


def clipping(r: Recorder, gradients) -> None:
    def fresh():
        tensors = {name: leaf(np.zeros(shape, np.float32)) for name, shape in SHAPES.items()}
        for name, tensor in tensors.items():
            tensor.grad = torch.tensor(gradients[name][0], dtype=torch.float64)
        return tensors

    for case, max_norm in (("clip norm 1", 1.0), ("clip norm 100", 100.0)):
        tensors = fresh()
        r.put(**{f"{case}/norm": numpy(torch.nn.utils.clip_grad_norm_(tensors.values(), max_norm))})
        r.put(**{f"{case}/{name}": numpy(t.grad) for name, t in tensors.items()})
    tensors = fresh()
    torch.nn.utils.clip_grad_value_(tensors.values(), 0.5)
    r.put(**{f"clip value 0.5/{name}": numpy(t.grad) for name, t in tensors.items()})


def schedules(r: Recorder, steps: int = 100) -> None:
    """The learning rate of each of 100 updates, lr = 0.5; "warm" ones rise linearly over the first 10."""
    s = torch.optim.lr_scheduler

    def cyclic(optimizer, mode):
        sizes = {"step_size_up": 14, "step_size_down": 9}
        return s.CyclicLR(optimizer, 0.1, 0.5, **sizes, mode=mode, gamma=0.98, cycle_momentum=False)

    def warm(optimizer):
        rise = s.LinearLR(optimizer, start_factor=1 / 10, end_factor=1.0, total_iters=9)
        fall = s.CosineAnnealingLR(optimizer, T_max=80, eta_min=0.05)
        return s.SequentialLR(optimizer, [rise, fall], milestones=[10])

    for name, make in {
        "constant": lambda o: s.ConstantLR(o, factor=1.0),
        "linear": lambda o: s.LinearLR(o, start_factor=1.0, end_factor=0.1, total_iters=60),
        "cosine": lambda o: s.CosineAnnealingLR(o, T_max=90, eta_min=0.05),
        "warm cosine": warm,
        "step": lambda o: s.StepLR(o, step_size=13, gamma=0.5),
        "polynomial": lambda o: s.PolynomialLR(o, total_iters=60, power=2),
        "exponential": lambda o: s.ExponentialLR(o, gamma=0.97),
        "multi_step": lambda o: s.MultiStepLR(o, [4, 33, 70], gamma=0.5),
        "restarts": lambda o: s.CosineAnnealingWarmRestarts(o, T_0=9, T_mult=2, eta_min=0.05),
        "equal restarts": lambda o: s.CosineAnnealingWarmRestarts(o, T_0=30),
        **{mode: lambda o, m=mode: cyclic(o, m) for mode in ("triangular", "triangular2", "exp_range")},
        "one_cycle": lambda o: s.OneCycleLR(o, max_lr=0.5, total_steps=steps, cycle_momentum=False),
        "one_cycle linear": lambda o: s.OneCycleLR(
            o,
            0.5,
            steps,
            pct_start=0.4,
            anneal_strategy="linear",
            cycle_momentum=False,
            div_factor=5,
            final_div_factor=10,
        ),
        "one_cycle three phases": lambda o: s.OneCycleLR(o, 0.5, steps, three_phase=True, cycle_momentum=False),
        "sequence": lambda o: s.SequentialLR(
            o, [s.ExponentialLR(o, 0.97), s.LinearLR(o, 1.0, 0.2, total_iters=40)], milestones=[37]
        ),
        "chained": lambda o: s.ChainedScheduler([s.StepLR(o, 20, 0.5), s.ExponentialLR(o, 0.97)]),
        "inverse_square_root": lambda o: s.LambdaLR(o, lambda k: min((k + 1) / 10, (10 / (k + 1)) ** 0.5)),
    }.items():
        optimizer = torch.optim.SGD([leaf(np.zeros(1, np.float32))], lr=0.5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # SequentialLR calls its parts in a way that torch deprecates
            schedule, rates = make(optimizer), []
            for _ in range(91 if name.endswith("cosine") else steps):  # torch's cosine rises again after T_max
                rates.append(optimizer.param_groups[0]["lr"])
                optimizer.step()
                schedule.step()
        r.put(**{f"schedule {name}": rates})
    plateau(r)


def plateau(r: Recorder) -> None:
    """The rate after each of 100 measurements, lr = 0.5."""
    metrics = np.round(np.exp(-np.arange(100) / 20) + 0.2 + 0.05 * r.rng.standard_normal(100), 3)
    r.put(metrics=metrics)
    for name, sign, options in (
        ("plateau", 1, {"patience": 2, "factor": 0.5}),
        ("plateau max abs", -1, {"mode": "max", "patience": 1, "factor": 0.3, "threshold_mode": "abs", "cooldown": 3}),
        ("plateau least", 1, {"patience": 0, "threshold": 0.1, "min_lr": 0.05}),
    ):
        optimizer = torch.optim.SGD([leaf(np.zeros(1, np.float32))], lr=0.5)
        schedule, rates = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **options), []
        for metric in metrics:
            optimizer.step()
            schedule.step(sign * metric)
            rates.append(optimizer.param_groups[0]["lr"])
        r.put(**{name: rates})
