"""The GPT step in PyTorch, as one would write it there: nn.Linear, fused causal attention, tied head, AdamW."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from bench import gpt_case, machine
from bench.gpt_case import Sizes, Steps


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (h.view(b, t, self.heads, -1).transpose(1, 2) for h in self.qkv(self.ln_1(x)).split(d, dim=2))
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(sizes.vocab, sizes.dim), nn.Embedding(sizes.length, sizes.dim)
        self.blocks = nn.ModuleList(Block(sizes.dim, sizes.heads) for _ in range(sizes.layers))
        self.ln_f = nn.LayerNorm(sizes.dim)
        self.head = nn.Linear(sizes.dim, sizes.vocab, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))

    def load(self, parameters: dict[str, np.ndarray]) -> None:
        own = dict(self.named_parameters())
        with torch.no_grad():
            for name, value in parameters.items():
                short = name.replace("attention.", "").replace("feedforward.", "")
                tensor, linear = own[short], short.split(".")[-2] in ("qkv", "out", "up", "down")
                tensor.copy_(torch.from_numpy(value.T if linear and value.ndim == 2 else value))  # nn.Linear: (out, in)


def make(sizes: list[int], threads: int, compiled: bool = False, fused: bool = False) -> Steps:
    case = Sizes(*sizes)
    torch.set_num_threads(threads)
    model = GPT(case)
    model.load(gpt_case.parameters(case))
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": gpt_case.DECAY},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, gpt_case.LR, gpt_case.BETAS, gpt_case.EPS, fused=fused or None)
    forward: Any = torch.compile(model) if compiled else model

    def train_step(ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        logits = forward(ids)
        loss = F.cross_entropy(logits.view(-1, case.vocab), targets.view(-1))
        loss.backward()
        optimizer.step()
        return loss.detach()

    tensors = [(torch.from_numpy(ids), torch.from_numpy(targets)) for ids, targets in gpt_case.batches(case)]
    return Steps(train_step, tensors, {"torch": torch.__version__, "blas": machine.blas()})
