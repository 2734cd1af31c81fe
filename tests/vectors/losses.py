"""cross_entropy with every combination of its options, and mse_loss."""

import itertools

import numpy as np
import torch
import torch.nn.functional as F
from vectors.recorder import Recorder, gradient, leaf, numpy

ROWS, CLASSES = 9, 6


def write() -> None:
    r = Recorder(seed=3)
    cross_entropies(r)
    for reduction in ("mean", "sum", "none"):
        r.case(
            f"mse {reduction}",
            lambda x, target, reduction=reduction: F.mse_loss(x, target, reduction=reduction),
            [r.draw(4, 5), r.draw(4, 5)],
        )
    r.write("losses")


def cross_entropies(r: Recorder) -> None:
    logits = r.draw(ROWS, CLASSES, scale=3)
    logits[0] = [1000, 0, -1000, 3, 2, 1]  # a careless exp overflows
    targets = r.rng.randint(0, CLASSES, ROWS)
    targets[0], targets[1], targets[4] = 1, 2, 2
    weight = np.abs(r.draw(CLASSES)) + np.float32(0.5)
    weight[3] = 0
    r.put(logits=logits, targets=targets, weight=weight)
    for ignored, weighted, smoothing, z_loss, reduction in itertools.product(
        (None, 2, -100), (False, True), (0.0, 0.1), (0.0, 1e-3), ("mean", "sum", "none")
    ):
        chosen = targets.copy()
        if ignored == -100:
            chosen[[3, 8]] = -100
        x, w = leaf(logits), torch.tensor(weight, dtype=torch.float64) if weighted else None
        loss = cross_entropy(x, torch.tensor(chosen), ignored, w, smoothing, z_loss, reduction)
        loss.sum().backward()  # rows of "none" are independent: the sum's gradient holds each row's own
        name = f"ce ignore={ignored} weight={weighted} smoothing={smoothing} z={z_loss} {reduction}"
        r.put(**{f"{name}/loss": numpy(loss)})
        if reduction != "sum":  # the gradient of "sum" is that of "none"
            r.put(**{f"{name}/dlogits": gradient(x)})


def cross_entropy(x, targets, ignored, weight, smoothing, z_loss, reduction):
    """PyTorch's, and z_loss * logsumexp^2 of each counted row (no class weight), over the same denominator."""
    ignore_index = -100 if ignored is None else ignored
    loss = F.cross_entropy(
        x, targets, weight, ignore_index=ignore_index, label_smoothing=smoothing, reduction=reduction
    )
    if not z_loss:
        return loss
    counted = targets != ignore_index
    z = z_loss * torch.logsumexp(x, dim=1) ** 2 * counted
    if reduction == "none":
        return loss + z
    if reduction == "sum":
        return loss + z.sum()
    count = counted.sum() if weight is None else weight[targets[counted]].sum()
    return loss + z.sum() / count
