"""The recurrent encoder-decoder in PyTorch, with `nn.GRU`, time first: what it is fastest with."""

import numpy as np
import torch
from torch import nn

from bench.seq2seq_case import Sizes


class Model(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(sizes.vocab, sizes.dim), nn.Embedding(sizes.vocab, sizes.dim)
        self.encoder, self.decoder = nn.GRU(sizes.dim, sizes.hidden), nn.GRU(sizes.dim, sizes.hidden)
        self.head = nn.Linear(sizes.hidden, sizes.vocab)

    def forward(self, source: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """(S, B), (T, B) -> (T, B, V)."""
        _, state = self.encoder(self.source(source))
        return self.head(self.decoder(self.target(inputs), state)[0])

    def load(self, parameters: dict[str, np.ndarray]) -> None:
        names = {"encoder.embedding.weight": "source.weight", "embedding.weight": "target.weight"}
        own = dict(self.named_parameters())
        with torch.no_grad():
            for name, value in parameters.items():
                short = names.get(name, name.replace("network.cells.0.", ""))
                matrix = "embedding" not in name and value.ndim == 2  # (in, out) here, (out, in) there
                tensor = own[short if short in own else f"{short}_l0"]
                tensor.copy_(torch.from_numpy(value.T.copy() if matrix else value))


def batch(arrays: tuple[np.ndarray, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(np.ascontiguousarray(a.T)) for a in arrays)
