"""The Vision Transformer in PyTorch, as one would write it there: blocks of `gpt_torch` that see everything."""

import numpy as np
import torch
from torch import nn

from bench.gpt_torch import Block
from bench.vit_case import Sizes


class Model(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embed = nn.Conv2d(sizes.channels, sizes.dim, sizes.patch, sizes.patch)
        self.class_token = nn.Parameter(torch.zeros(sizes.dim))
        self.positions = nn.Parameter(torch.zeros(sizes.patches + 1, sizes.dim))
        self.blocks = nn.ModuleList(
            Block(sizes.dim, sizes.heads, causal=False, approximate="none") for _ in range(sizes.layers)
        )
        self.norm, self.head = nn.LayerNorm(sizes.dim), nn.Linear(sizes.dim, sizes.classes)
        self.sizes = sizes

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """(B, C, H, W) -> (B, classes)."""
        x = self.embed(pixels).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), 1, -1), x], 1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))

    def load(self, parameters: dict[str, np.ndarray]) -> None:
        own, s = dict(self.named_parameters()), self.sizes
        with torch.no_grad():
            for name, value in parameters.items():
                short = name.replace("attention.", "").replace("feedforward.", "").replace("norm_", "ln_")
                short = "positions" if name == "positions.weight" else short
                if name == "embed.weight":  # (patch, patch, C, dim) there
                    value = value.reshape(s.patch, s.patch, s.channels, s.dim).transpose(3, 2, 0, 1).copy()
                elif value.ndim == 2 and short != "positions":
                    value = value.T.copy()
                own[short].copy_(torch.from_numpy(value))


def batch(arrays: tuple[np.ndarray, ...]) -> tuple[torch.Tensor, ...]:
    pixels, labels = arrays
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))), torch.from_numpy(labels)
