"""The feed-forward network in plain PyTorch: logits and every gradient in each form, 20 steps of SGD and of Adam."""

import numpy as np
import torch
import torch.nn.functional as F
from vectors.recorder import Recorder, gradient, leaf, numpy

VOCAB, CONTEXT, DIM, WIDTHS = 13, 3, 5, (8, 8)
BATCH, STEPS = 6, 20
ACTIVATIONS = {
    "tanh": lambda x, p: torch.tanh(x),
    "relu": lambda x, p: torch.relu(x),
    "leaky_relu": lambda x, p: F.leaky_relu(x, 0.01),
    "prelu": lambda x, p: F.prelu(x, p["activation.weight"]),
    "gelu": lambda x, p: F.gelu(x),
}
FORMS = [
    *((activation, "plain") for activation in ACTIVATIONS),
    ("tanh", "residual"),
    ("relu", "layernorm"),
    ("gelu", "batchnorm"),
]
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.9, 0.99), eps=1e-8),
}


def draw_parameters(r: Recorder, activation: str, around: str) -> dict[str, np.ndarray]:
    """Under our names."""
    sizes = [CONTEXT * DIM, *WIDTHS]
    parameters = {"embedding.weight": r.draw(VOCAB, DIM)}
    for k, size, width in zip((3, 2), sizes, WIDTHS, strict=False):
        parameters[f"W.{k}.linear.weight"] = r.draw(size, width, scale=0.4)
        if around != "batchnorm":
            parameters[f"W.{k}.linear.bias"] = r.draw(width, scale=0.2)
        if around in ("batchnorm", "layernorm"):
            parameters[f"W.{k}.norm.weight"] = r.draw(width, scale=0.2, shift=1)
            parameters[f"W.{k}.norm.bias"] = r.draw(width, scale=0.2)
        if activation == "prelu":
            parameters[f"W.{k}.activation.weight"] = np.array([0.25], np.float32)
    parameters["W.1.weight"], parameters["W.1.bias"] = r.draw(sizes[-1], VOCAB, scale=0.4), r.draw(VOCAB, scale=0.2)
    return parameters


def logits(p: dict[str, torch.Tensor], ids: torch.Tensor, activation: str, around: str) -> torch.Tensor:
    """(B, n) -> (B, V), in training."""
    h = F.embedding(ids, p["embedding.weight"]).flatten(1)
    for k in (3, 2):
        own = {name.removeprefix(f"W.{k}."): t for name, t in p.items() if name.startswith(f"W.{k}.")}
        z = h @ own["linear.weight"] + own.get("linear.bias", 0)
        if around == "layernorm":
            z = F.layer_norm(z, z.shape[-1:], own["norm.weight"], own["norm.bias"])
        elif around == "batchnorm":
            z = F.batch_norm(z, None, None, own["norm.weight"], own["norm.bias"], training=True)
        z = ACTIVATIONS[activation](z, own)
        h = h + z if around == "residual" and h.shape == z.shape else z
    return h @ p["W.1.weight"] + p["W.1.bias"]


def write() -> None:
    r = Recorder(seed=11)
    ids = r.rng.randint(0, VOCAB, (STEPS, BATCH, CONTEXT))
    targets = r.rng.randint(0, VOCAB, (STEPS, BATCH))
    r.put(ids=ids.astype(np.int16), targets=targets.astype(np.int16), sizes=[VOCAB, CONTEXT, DIM, *WIDTHS])
    for activation, around in FORMS:
        name = f"{activation} {around}"
        parameters = draw_parameters(r, activation, around)
        p = {key: leaf(array) for key, array in parameters.items()}
        found = logits(p, torch.tensor(ids[0]), activation, around)
        F.cross_entropy(found, torch.tensor(targets[0])).backward()
        r.put(**{f"{name}/logits": numpy(found)})
        for key, tensor in p.items():
            r.put(**{f"{name}/parameter {key}": parameters[key], f"{name}/gradient {key}": gradient(tensor)})
    for name, make in OPTIMIZERS.items():
        start = "tanh plain/parameter "
        p = {key.removeprefix(start): leaf(array) for key, array in r.arrays.items() if key.startswith(start)}
        optimizer, losses = make(p.values()), []
        for k in range(STEPS):
            loss = F.cross_entropy(logits(p, torch.tensor(ids[k]), "tanh", "plain"), torch.tensor(targets[k]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        r.put(**{f"{name}/losses": losses, **{f"{name}/after {key}": numpy(t) for key, t in p.items()}})
    r.write("feedforward")
