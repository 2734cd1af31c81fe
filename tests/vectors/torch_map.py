"""PyTorch's own modules with their `state_dict`, as it names and lays it out, and what they make of an input.

The GPT-2 is that of transformers, in its layout.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from vectors.recorder import Recorder, leaf, numpy

DIM, HEADS = 6, 2


class Own(nn.Module):
    """A module of one's own: a list, a dictionary, a parameter, a tie."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.blocks = nn.ModuleList([nn.Linear(4, 5), nn.LayerNorm(5)])
        self.towers = nn.ModuleDict({"left": nn.Linear(5, 4)})
        self.scale = nn.Parameter(torch.ones(4))
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.towers["left"](x) * self.scale)


def attend(module: nn.MultiheadAttention, *inputs: torch.Tensor) -> torch.Tensor:
    query, key, value = (*inputs, inputs[-1], inputs[-1])[:3]
    return module(query, key, value, need_weights=False)[0]


def write() -> None:
    r = Recorder(seed=13)
    x = r.draw(2, 3, DIM)
    many = {"batch_first": True, "dropout": 0.0}
    record(r, "Linear", nn.Linear(DIM, 4), [x])
    record(r, "Linear no bias", nn.Linear(DIM, 4, bias=False), [x])
    record(r, "Embedding", nn.Embedding(7, 4), [r.rng.randint(0, 7, (2, 5))])
    record(r, "LayerNorm", nn.LayerNorm(DIM), [x])
    record(r, "LayerNorm no bias", nn.LayerNorm(DIM, bias=False), [x])
    record(r, "LayerNorm two axes", nn.LayerNorm((3, DIM)), [x])
    record(r, "RMSNorm", nn.RMSNorm(DIM), [x])
    record(r, "BatchNorm", nn.BatchNorm1d(3), [x])
    record(r, "GroupNorm", nn.GroupNorm(2, 4), [r.draw(2, 4, 5)])
    record(r, "InstanceNorm", nn.InstanceNorm1d(3, affine=True, track_running_stats=True), [x])
    record(r, "PReLU", nn.PReLU(DIM), [r.draw(4, DIM)])
    for name in ("RNN", "GRU", "LSTM"):
        two = {"num_layers": 2, "bidirectional": True, "batch_first": True}
        record(r, name, getattr(nn, name)(DIM, 4, **two), [x], lambda m, x: m(x)[0])
        record(r, f"{name} no bias", getattr(nn, name)(DIM, 4, bias=False, batch_first=True), [x], lambda m, x: m(x)[0])
        one = (lambda m, x: m(x)[0]) if name == "LSTM" else None  # of (h, c)
        record(r, f"{name}Cell", getattr(nn, f"{name}Cell")(DIM, 4), [r.draw(5, DIM)], one)
    key, value = r.draw(2, 4, 5), r.draw(2, 4, 7)
    record(r, "attention", nn.MultiheadAttention(DIM, HEADS, batch_first=True), [x], attend)
    record(r, "attention no bias", nn.MultiheadAttention(DIM, HEADS, bias=False, batch_first=True), [x], attend)
    record(r, "attention cross", nn.MultiheadAttention(DIM, HEADS, batch_first=True), [x, r.draw(2, 4, DIM)], attend)
    record(r, "attention kdim", nn.MultiheadAttention(DIM, HEADS, kdim=5, vdim=5, **many), [x, key], attend)
    record(r, "attention vdim", nn.MultiheadAttention(DIM, HEADS, kdim=5, vdim=7, **many), [x, key, value], attend)
    three = [x, r.draw(2, 4, DIM), r.draw(2, 4, DIM)]
    record(r, "attention three", nn.MultiheadAttention(DIM, HEADS, **many), three, attend)
    for first in (False, True):
        options = {**many, "norm_first": first}
        record(r, f"encoder {first}", nn.TransformerEncoderLayer(DIM, HEADS, 10, **options), [x])
        decoder, hide = nn.TransformerDecoderLayer(DIM, HEADS, 10, **options), torch.triu(torch.ones(3, 3), 1).bool()
        record(r, f"decoder {first}", decoder, [x, r.draw(2, 4, DIM)], lambda m, x, y, h=hide: m(x, y, tgt_mask=h))
    record(r, "Sequential", nn.Sequential(nn.Linear(DIM, 4), nn.ReLU(), nn.Linear(4, 2)), [x])
    record(r, "a module of one's own", Own(), [r.rng.randint(0, 7, (2, 5))])
    for tied in (True, False):
        gpt2(r, tied)
    r.write("torch_map")


def gpt2(r: Recorder, tied: bool) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=11, n_positions=6, n_embd=8, n_layer=2, n_head=2, tie_word_embeddings=tied, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    record(r, f"GPT-2 {tied}", GPT2LMHeadModel(config), [r.rng.randint(0, 11, (2, 5))], lambda m, ids: m(ids).logits)


def record(r: Recorder, name: str, module: nn.Module, inputs: list, run: Callable[..., Any] | None = None) -> None:
    """State of drawn values, inputs, output in evaluation."""
    module = module.double().eval()
    state = {}
    for key, tensor in module.state_dict().items():
        if tensor.dtype == torch.float64:
            drawn = r.draw(*tensor.shape, scale=0.5, shift=0.1)
            state[key] = abs(drawn) + 0.5 if key.endswith("running_var") else drawn
        else:
            state[key] = numpy(tensor) + 3
    if "head.weight" in state and isinstance(module, Own):
        state["head.weight"] = state["table.weight"]
    if name == "GPT-2 True":
        state["lm_head.weight"] = state["transformer.wte.weight"]
    module.load_state_dict({key: torch.tensor(array) for key, array in state.items()})
    with torch.no_grad():
        y = (run or (lambda m, *x: m(*x)))(module, *(leaf(x).detach() for x in inputs))
    r.put(**{f"{name}/state {key}": array for key, array in state.items()})
    r.put(**{f"{name}/x{i}": x for i, x in enumerate(inputs)}, **{f"{name}/y": numpy(y)})
