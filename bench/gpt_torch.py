"""The GPT in PyTorch, as one would write it there: nn.Linear, fused causal attention, tied head."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from bench.gpt_case import Sizes


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, causal: bool = True, approximate: str = "tanh") -> None:
        super().__init__()
        self.heads, self.causal, self.approximate = heads, causal, approximate
        self.ln_1, self.ln_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (h.view(b, t, self.heads, -1).transpose(1, 2) for h in self.qkv(self.ln_1(x)).split(d, dim=2))
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(heads.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate=self.approximate))


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


Model = GPT


def batch(arrays: tuple[np.ndarray, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(a) for a in arrays)
