"""Two tiny Vision Transformers in plain PyTorch, the patches by a convolution: logits, loss and every gradient."""

import numpy as np
import torch
import torch.nn.functional as F
from vectors.recorder import Recorder, gradient, leaf, numpy

IMAGE, CHANNELS, PATCH, CLASSES, LAYERS, HEADS, DIM, HIDDEN = (6, 8), 3, 2, 5, 2, 2, 8, 12
BATCH = 3
N = (IMAGE[0] // PATCH) * (IMAGE[1] // PATCH)


def draw_parameters(r: Recorder, pool: str) -> dict[str, np.ndarray]:
    """Under our names; large enough, biases and gains too, that nothing is nearly 0."""
    shapes = {"embed.weight": (PATCH * PATCH * CHANNELS, DIM), "embed.bias": (DIM,)}
    shapes["positions.weight"] = (N + (pool == "class"), DIM)
    if pool == "class":
        shapes["class_token"] = (DIM,)
    for i in range(LAYERS):
        block = f"blocks.{i}."
        shapes[block + "attention.qkv.weight"], shapes[block + "attention.qkv.bias"] = (DIM, 3 * DIM), (3 * DIM,)
        shapes[block + "attention.out.weight"], shapes[block + "attention.out.bias"] = (DIM, DIM), (DIM,)
        shapes[block + "feedforward.up.weight"], shapes[block + "feedforward.up.bias"] = (DIM, HIDDEN), (HIDDEN,)
        shapes[block + "feedforward.down.weight"], shapes[block + "feedforward.down.bias"] = (HIDDEN, DIM), (DIM,)
    shapes["head.weight"], shapes["head.bias"] = (DIM, CLASSES), (CLASSES,)
    parameters = {name: r.draw(*shape, scale=0.4) for name, shape in shapes.items()}
    for norm in [f"blocks.{i}.norm_{k}" for i in range(LAYERS) for k in (1, 2)] + ["norm"]:
        parameters[norm + ".weight"] = r.draw(DIM, scale=0.2, shift=1)
        parameters[norm + ".bias"] = r.draw(DIM, scale=0.2)
    return parameters


def logits(p: dict[str, torch.Tensor], pixels: torch.Tensor, pool: str) -> torch.Tensor:
    """(B, H, W, C) -> (B, classes)"""

    def linear(x, name):
        return x @ p[name + ".weight"] + p[name + ".bias"]

    def norm(x, name):
        return F.layer_norm(x, (DIM,), p[name + ".weight"], p[name + ".bias"])

    kernel = p["embed.weight"].reshape(PATCH, PATCH, CHANNELS, DIM).permute(3, 2, 0, 1)
    x = F.conv2d(pixels.permute(0, 3, 1, 2), kernel, p["embed.bias"], stride=PATCH).flatten(2).mT  # (B, N, D)
    if pool == "class":
        x = torch.cat([p["class_token"].expand(len(x), 1, DIM), x], dim=1)
    x = x + p["positions.weight"]
    for i in range(LAYERS):
        block = f"blocks.{i}."
        qkv = linear(norm(x, block + "norm_1"), block + "attention.qkv")
        q, k, v = qkv.view(len(x), -1, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)  # each (B, H, T, d)
        heads = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + linear(heads, block + "attention.out")
        x = x + linear(F.gelu(linear(norm(x, block + "norm_2"), block + "feedforward.up")), block + "feedforward.down")
    x = norm(x, "norm")
    return linear(x[:, 0] if pool == "class" else x.mean(dim=1), "head")


def write() -> None:
    r = Recorder(seed=7)
    r.put(sizes=[*IMAGE, CHANNELS, PATCH, CLASSES, DIM, HEADS, LAYERS, HIDDEN])
    for pool in ("class", "mean"):
        parameters, pixels = draw_parameters(r, pool), r.draw(BATCH, *IMAGE, CHANNELS)
        labels = r.rng.randint(0, CLASSES, BATCH)
        p, x = {name: leaf(array) for name, array in parameters.items()}, leaf(pixels)
        found = logits(p, x, pool)
        loss = F.cross_entropy(found, torch.tensor(labels))
        loss.backward()
        kept = {"pixels": pixels, "labels": labels, "logits": numpy(found), "loss": loss.item(), "dpixels": gradient(x)}
        for name, tensor in p.items():
            kept[f"parameter {name}"], kept[f"gradient {name}"] = parameters[name], gradient(tensor)
        r.put(**{f"{pool}/{name}": array for name, array in kept.items()})
    r.write("vit")
