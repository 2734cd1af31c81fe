"""A training step in PyTorch."""

import importlib
from typing import Any

import torch
import torch.nn.functional as F

from bench import gpt_case, machine
from bench.gpt_case import Steps
from bench.model_cases import KINDS


def make(kind: str, sizes: list[int], threads: int, compiled: bool = False, fused: bool = False) -> Steps:
    case, twin = KINDS[kind].Sizes(*sizes), importlib.import_module(f"bench.{kind}_torch")
    torch.set_num_threads(threads)
    model = twin.Model(case)
    model.load(KINDS[kind].parameters(case))
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": gpt_case.DECAY},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, gpt_case.LR, gpt_case.BETAS, gpt_case.EPS, fused=fused or None)
    forward: Any = torch.compile(model) if compiled else model

    def train_step(*batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        logits = forward(*batch[:-1])
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), batch[-1].view(-1))
        loss.backward()
        optimizer.step()
        return loss.detach()

    tensors = [twin.batch(arrays) for arrays in KINDS[kind].batches(case)]
    return Steps(train_step, tensors, {"torch": torch.__version__, "blas": machine.blas()})
