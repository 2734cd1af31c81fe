"""Every optimizer over 5 steps, clipping, and the schedules that PyTorch has too."""

import warnings

import numpy as np
import torch
from vectors.recorder import Recorder, leaf, numpy

STEPS = 5
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
    for name, make in OPTIMIZERS.items():
        for key, steps in five_steps(make, start, gradients).items():
            r.put(**{f"{name}/{key}": steps})
    clipping(r, gradients)
    schedules(r)
    r.write("optimizers")


OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups(0), lr=0.1),
    "sgd momentum": lambda groups: torch.optim.SGD(groups(0), lr=0.1, momentum=0.9),
    "sgd nesterov": lambda groups: torch.optim.SGD(groups(0), lr=0.1, momentum=0.9, nesterov=True),
    "sgd decay": lambda groups: torch.optim.SGD(groups(DECAY), lr=0.1),
    "sgd momentum decay": lambda groups: torch.optim.SGD(groups(DECAY), lr=0.1, momentum=0.9),
    "sgd nesterov decay": lambda groups: torch.optim.SGD(groups(DECAY), lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda groups: torch.optim.Adam(groups(0), lr=0.01),
    "adam betas eps": lambda groups: torch.optim.Adam(groups(0), lr=0.01, betas=(0.8, 0.95), eps=1e-3),
    "adam decay": lambda groups: torch.optim.Adam(groups(DECAY), lr=0.01),
    "adamw": lambda groups: torch.optim.AdamW(groups(DECAY), lr=0.01),
    "adamw betas eps": lambda groups: torch.optim.AdamW(groups(DECAY), lr=0.01, betas=(0.8, 0.95), eps=1e-3),
}


def five_steps(make, start, gradients) -> dict[str, np.ndarray]:
    """The parameters after each step, (STEPS, *shape)."""
    p = {name: leaf(array) for name, array in start.items()}

    def groups(decay):  # vectors never decay
        matrices, vectors = [p["matrix"], p["table"]], [p["vector"]]
        return [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]

    optimizer, found = make(groups), {name: [] for name in p}
    for k in range(STEPS):
        for name, tensor in p.items():
            tensor.grad = torch.tensor(gradients[name][k], dtype=torch.float64)
        optimizer.step()
        for name, tensor in p.items():
            found[name].append(numpy(tensor))
    return {name: np.stack(steps) for name, steps in found.items()}


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


def schedules(r: Recorder, steps: int = 25) -> None:
    """The learning rate of each of 25 updates, lr = 0.5; "warm" ones rise linearly over the first 5."""
    s = torch.optim.lr_scheduler

    def warm(optimizer):
        rise = s.LinearLR(optimizer, start_factor=1 / 5, end_factor=1.0, total_iters=4)
        fall = s.CosineAnnealingLR(optimizer, T_max=10, eta_min=0.05)
        return s.SequentialLR(optimizer, [rise, fall], milestones=[5])

    for name, make in {
        "constant": lambda o: s.ConstantLR(o, factor=1.0),
        "linear": lambda o: s.LinearLR(o, start_factor=1.0, end_factor=0.1, total_iters=15),
        "cosine": lambda o: s.CosineAnnealingLR(o, T_max=15, eta_min=0.05),
        "warm cosine": warm,
        "step": lambda o: s.StepLR(o, step_size=4, gamma=0.5),
    }.items():
        optimizer = torch.optim.SGD([leaf(np.zeros(1, np.float32))], lr=0.5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # SequentialLR calls its parts in a way that torch deprecates
            schedule, rates = make(optimizer), []
            for _ in range(16 if "cosine" in name else steps):  # torch's cosine rises again after T_max
                rates.append(optimizer.param_groups[0]["lr"])
                optimizer.step()
                schedule.step()
        r.put(**{f"schedule {name}": rates})
