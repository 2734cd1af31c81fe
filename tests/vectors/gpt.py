"""A 2-layer GPT-2 in plain PyTorch: the loss, every gradient, and 20 AdamW steps."""

import numpy as np
import torch
import torch.nn.functional as F
from vectors.recorder import Recorder, gradient, leaf, numpy

VOCAB, CONTEXT, LAYERS, HEADS, DIM = 37, 12, 2, 2, 16
BATCH, STEPS = 3, 20
LR, BETAS, EPS, DECAY = 1e-2, (0.9, 0.95), 1e-8, 0.1


def draw_parameters(r: Recorder) -> dict[str, np.ndarray]:
    """Under our names; larger than GPT-2's initial values, and biases and gains too, so that nothing is nearly 0."""
    shapes = {"wte.weight": (VOCAB, DIM), "wpe.weight": (CONTEXT, DIM)}
    for i in range(LAYERS):
        block = f"blocks.{i}."
        shapes[block + "attention.qkv.weight"], shapes[block + "attention.qkv.bias"] = (DIM, 3 * DIM), (3 * DIM,)
        shapes[block + "attention.out.weight"], shapes[block + "attention.out.bias"] = (DIM, DIM), (DIM,)
        shapes[block + "feedforward.up.weight"], shapes[block + "feedforward.up.bias"] = (DIM, 4 * DIM), (4 * DIM,)
        shapes[block + "feedforward.down.weight"], shapes[block + "feedforward.down.bias"] = (4 * DIM, DIM), (DIM,)
    parameters = {name: r.draw(*shape, scale=0.2) for name, shape in shapes.items()}
    for norm in [f"blocks.{i}.ln_{k}" for i in range(LAYERS) for k in (1, 2)] + ["ln_f"]:
        parameters[norm + ".weight"], parameters[norm + ".bias"] = (
            r.draw(DIM, scale=0.2, shift=1),
            r.draw(DIM, scale=0.2),
        )
    return parameters


def logits(p: dict[str, torch.Tensor], ids: torch.Tensor) -> torch.Tensor:
    """(B, T) -> (B, T, V)"""

    def linear(x, name):
        return x @ p[name + ".weight"] + p[name + ".bias"]

    def norm(x, name):
        return F.layer_norm(x, (DIM,), p[name + ".weight"], p[name + ".bias"])

    b, t = ids.shape
    x = F.embedding(ids, p["wte.weight"]) + p["wpe.weight"][:t]
    for i in range(LAYERS):
        block = f"blocks.{i}."
        qkv = linear(norm(x, block + "ln_1"), block + "attention.qkv").view(b, t, 3, HEADS, DIM // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, H, T, d)
        scores = q @ k.transpose(-2, -1) / (DIM // HEADS) ** 0.5
        scores = scores.masked_fill(torch.triu(torch.ones(t, t, dtype=torch.bool), 1), float("-inf"))
        heads = (F.softmax(scores, dim=-1) @ v).transpose(1, 2).reshape(b, t, DIM)
        x = x + linear(heads, block + "attention.out")
        hidden = F.gelu(linear(norm(x, block + "ln_2"), block + "feedforward.up"), approximate="tanh")
        x = x + linear(hidden, block + "feedforward.down")
    return norm(x, "ln_f") @ p["wte.weight"].T


def write() -> None:
    r = Recorder(seed=5)
    parameters = draw_parameters(r)
    tokens = r.rng.randint(0, VOCAB, (STEPS, BATCH, CONTEXT + 1))
    p = {name: leaf(array) for name, array in parameters.items()}
    groups = [
        {"params": [t for t in p.values() if t.ndim >= 2], "weight_decay": DECAY},  # matrices and tables only
        {"params": [t for t in p.values() if t.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)
    losses, gradients, first_logits = [], {}, None
    for batch in torch.tensor(tokens):
        found = logits(p, batch[:, :-1])
        loss = F.cross_entropy(found.reshape(-1, VOCAB), batch[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        if not losses:
            first_logits, gradients = numpy(found), {name: gradient(t) for name, t in p.items()}
        optimizer.step()
        losses.append(loss.item())
    r.put(tokens=tokens.astype(np.int16), losses=losses, logits=first_logits[0])
    r.put(options=[LR, *BETAS, EPS, DECAY], sizes=[VOCAB, CONTEXT, LAYERS, HEADS, DIM])
    for name, tensor in p.items():
        r.put(**{f"parameter {name}": parameters[name], f"gradient {name}": gradients[name]})
        r.put(**{f"after {name}": numpy(tensor).ravel()[::7]})  # every seventh element: a small file
    r.write("gpt")
