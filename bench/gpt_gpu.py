"""The GPT step on a GPU as subjects for `bench.worker`: ours on any device, and PyTorch's."""

import platform
import statistics
import time
from typing import Any

import numpy as np

from bench import gpt_case
from bench.gpt_case import Sizes
from bench.gpu_timing import counted_launches
from gpulayers.backend import device_of, to_device, use
from gpulayers.models.gpt import GPT, GPTConfig
from gpulayers.ops.cross_entropy import cross_entropy_inplace
from gpulayers.optim import AdamW
from gpulayers.step import Train

STEPS = 10  # of one call of `step`: nobody reads the loss of every step, and nobody waits for it


class Steps:
    """A subject whose `step` is `steps` calls of `train_step(ids, targets) -> loss` and one wait at their end."""

    def __init__(self, train_step: Any, batches: list, wait: Any, steps: int, warm_up: int, facts: dict) -> None:
        self.train_step, self.batches, self.wait = train_step, batches, wait
        self.steps, self.count = steps, 0
        losses = [float(self._next()) for _ in range(warm_up)]
        with counted_launches() as names:
            self._next()
        self.facts = {
            "losses": losses[: gpt_case.CHECKED],
            "enqueue_seconds": self._enqueue(1 if steps == 1 else 5),
            "kernels": len(names),
            **facts,
        }

    def _next(self) -> Any:
        self.count += 1
        return self.train_step(*self.batches[(self.count - 1) % len(self.batches)])

    def _enqueue(self, repeats: int) -> float:
        """Seconds that Python needs for a step, the device not being waited for."""
        seconds = []
        for _ in range(repeats):
            self.wait()
            start = time.perf_counter()
            self._next()
            seconds.append(time.perf_counter() - start)
        self.wait()
        return statistics.median(seconds)

    def step(self) -> None:
        for _ in range(self.steps):
            self._next()
        self.wait()


def ours(sizes: list[int], device: str, dtype: str = "float32", steps: int = STEPS, warm_up: int = 6) -> Steps:
    """float64: for the losses to compare with. It takes the reference bodies, so it is array code on every device."""
    case, xp = Sizes(*sizes), use(device)
    model = GPT(GPTConfig(case.vocab, case.length, case.layers, case.heads, case.dim), dtype=dtype)
    model.load_state_dict(gpt_case.parameters(case))
    model.to(device)
    optimizer = AdamW(model, lr=gpt_case.LR, betas=gpt_case.BETAS, eps=gpt_case.EPS, weight_decay=gpt_case.DECAY)
    position = 0

    def train_step(ids: Any, targets: Any) -> Any:
        nonlocal position
        model.zero_grad()
        logits, saved = model.forward(ids, Train(step=position))
        loss, dlogits = cross_entropy_inplace(logits, targets)
        model.backward(dlogits, saved)
        optimizer.step()
        position += 1
        return loss

    batches = [tuple(to_device(a, device) for a in pair) for pair in gpt_case.batches(case)]
    wait = (lambda: None) if device == "numpy" else xp.cuda.get_current_stream().synchronize
    facts = {"library": f"{xp.__name__.split('.')[-1]} {xp.__version__}", "python": platform.python_version()}
    subject = Steps(train_step, batches, wait, steps, warm_up, facts)
    subject.facts["pool_bytes"] = _pool_bytes(model, xp)
    return subject


def _pool_bytes(model: Any, xp: Any) -> int | None:
    """Memory that CuPy's pool holds: nothing was given back, so it is the most that was needed."""
    on_host = device_of(next(iter(model.parameters())).data) == "numpy"
    return None if on_host else xp.get_default_memory_pool().total_bytes()


def torch(sizes: list[int], dtype: str = "float32", compiled: bool = False, steps: int = STEPS) -> Steps:
    """As one would write it there: fused AdamW, fused attention; bfloat16 by autocast, around float32 parameters."""
    import torch as library
    import torch.nn.functional as F

    from bench.gpt_torch import GPT as TorchGPT

    case = Sizes(*sizes)
    model = TorchGPT(case)
    model.load(gpt_case.parameters(case))
    model.to("cuda")
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": gpt_case.DECAY},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = library.optim.AdamW(groups, gpt_case.LR, gpt_case.BETAS, gpt_case.EPS, fused=True)
    low = library.bfloat16 if dtype == "bfloat16" else None

    def loss_of(ids: Any, targets: Any) -> Any:
        with library.autocast("cuda", dtype=low, enabled=low is not None):
            logits = model(ids)
        return F.cross_entropy(logits.view(-1, case.vocab).float(), targets.view(-1))

    forward: Any = library.compile(loss_of) if compiled else loss_of

    def train_step(ids: Any, targets: Any) -> Any:
        optimizer.zero_grad()
        loss = forward(ids, targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = [tuple(library.from_numpy(np.ascontiguousarray(a)).to("cuda") for a in p) for p in gpt_case.batches(case)]
    facts = {"library": f"torch {library.__version__}", "python": platform.python_version()}
    subject = Steps(train_step, batches, library.cuda.synchronize, steps, gpt_case.WARM_UP, facts)
    return _with_torch_memory(subject, library)


def _with_torch_memory(subject: Steps, library: Any) -> Steps:
    subject.facts["pool_bytes"] = library.cuda.max_memory_allocated()
    subject.facts["kernels"] = None  # none of ours
    return subject


def ceilings(device: str, copy_bytes: int, product: int) -> dict[str, Any]:
    """Of the card, in a process that then ends."""
    from bench import gpu_ceilings
    from bench.gpu import describe
    from bench.gpu_cases import FULL, Draw
    from bench.gpu_timing import Protocol, Timer

    xp = use(device)
    timer = Timer(xp, Protocol(flush_bytes=4, warm_ups=5, repeats=20))
    with timer.current():
        found = gpu_ceilings.measure(timer, Draw(xp, FULL._replace(period=4099)), copy_bytes, product)
    return {**found._asdict(), "machine": describe(xp, None)}
