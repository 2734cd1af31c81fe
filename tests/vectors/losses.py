"""cross_entropy with every combination of its options, and the other losses with theirs."""

import itertools

import numpy as np
import torch
import torch.nn.functional as F
from vectors.recorder import Recorder, gradient, leaf, numpy

ROWS, CLASSES = 9, 6
REDUCTIONS = ("mean", "sum", "none")


def write() -> None:
    r = Recorder(seed=3)
    cross_entropies(r)
    for reduction in ("mean", "sum", "none"):
        r.case(
            f"mse {reduction}",
            lambda x, target, reduction=reduction: F.mse_loss(x, target, reduction=reduction),
            [r.draw(4, 5), r.draw(4, 5)],
        )
    soft_targets(r)
    distances(r)
    two_classes(r)
    divergences(r)
    hinges(r)
    likelihoods(r)
    cosines(r)
    r.write("losses")


def soft_targets(r: Recorder) -> None:
    """(B, C, T) with the classes along axis 1: probabilities, ids, and capped logits."""
    logits, weight = r.draw(2, 5, 3, scale=3), np.abs(r.draw(5)) + np.float32(0.5)
    soft = F.softmax(torch.tensor(r.draw(2, 5, 3)), dim=1).numpy()
    ids = r.rng.randint(0, 5, (2, 3))
    ids[1, 2] = -100
    r.put(**{"layout/logits": logits, "layout/weight": weight, "layout/soft": soft, "layout/ids": ids})
    for kind, weighted, smoothing, cap, reduction in itertools.product(
        ("soft", "ids"), (False, True), (0.0, 0.1), (None, 2.0), REDUCTIONS
    ):
        x, target = leaf(logits), torch.tensor(soft, dtype=torch.float64) if kind == "soft" else torch.tensor(ids)
        z = x if cap is None else cap * torch.tanh(x / cap)
        w = torch.tensor(weight, dtype=torch.float64) if weighted else None
        loss = F.cross_entropy(z, target, w, label_smoothing=smoothing, reduction=reduction)
        loss.sum().backward()
        name = f"layout {kind} weight={weighted} smoothing={smoothing} cap={cap} {reduction}"
        r.put(**{f"{name}/loss": numpy(loss), f"{name}/dlogits": gradient(x)})


def distances(r: Recorder) -> None:
    x, target, weight = r.draw(4, 5, scale=2), r.draw(4, 5), np.abs(r.draw(4, 5)) + np.float32(0.25)
    x[0, 0] = target[0, 0]
    for loss, options in (
        ("mse", {}),
        ("l1", {}),
        ("huber", {"delta": 0.5}),
        ("huber", {}),
        ("smooth_l1", {"beta": 0.5}),
    ):
        for reduction, weighted in itertools.product(REDUCTIONS, (False, True)):
            if (weighted and loss == "smooth_l1") or (not weighted and loss == "mse"):
                continue
            case(r, f"{loss}_loss {options} {reduction}", [x, target], options, reduction, weight=weighted and weight)
    case(r, "smooth_l1_loss {'beta': 0} mean", [x, target], {"beta": 0}, "mean")


def two_classes(r: Recorder) -> None:
    shape = 3, 4, 5
    target = r.rng.choice(np.array([0, 1, 0.3], np.float32), shape)
    probability = r.rng.uniform(0, 1, shape).astype(np.float32)
    probability[0, 0, :2], target[0, 0, :3] = (0, 1), (0, 1, 1)  # certain, and right: a gradient of 0 over 1e-12
    logits = r.draw(*shape, scale=4)
    logits[0, 0, :4], target[0, 0, :4] = (1e4, 1e4, -1e4, -1e4), (0, 1, 0, 1)
    weight, row = np.abs(r.draw(4, 1)) + np.float32(0.25), np.abs(r.draw(5)) + np.float32(0.5)
    right = np.where(np.isin(probability, (0, 1)), probability, target).astype(np.float32)
    for reduction, weighted in itertools.product(REDUCTIONS, (False, True)):
        case(r, f"binary_cross_entropy {reduction}", [probability, right], {}, reduction, weight=weighted and weight)
        for pos in (False, True):
            name = f"binary_cross_entropy_with_logits pos={pos} {reduction}"
            case(r, name, [logits, target], {}, reduction, weight=weighted and weight, pos_weight=pos and row)


def divergences(r: Recorder) -> None:
    logits, others = r.draw(4, 5), r.draw(4, 5)
    x, log_p = (F.log_softmax(torch.tensor(a), dim=1).numpy() for a in (logits, others))
    p = np.exp(log_p)
    p[1, 2] = 0
    for reduction in (*REDUCTIONS, "batchmean"):
        case(r, f"kl_div {reduction}", [x, p], {}, reduction)
        case(r, f"kl_div log {reduction}", [x, log_p], {"log_target": True}, reduction)


def hinges(r: Recorder) -> None:
    x, target = r.draw(4, 5), r.rng.choice(np.array([-1, 1], np.float32), (4, 5))
    for reduction, margin in itertools.product(REDUCTIONS, (1.0, 0.25)):
        case(r, f"hinge_embedding_loss {margin} {reduction}", [x, target], {"margin": margin}, reduction)


def likelihoods(r: Recorder) -> None:
    """(N, C, d), as PyTorch lays it out."""
    x, weight = F.log_softmax(torch.tensor(r.draw(3, 5, 2)), dim=1).numpy(), np.abs(r.draw(5)) + np.float32(0.5)
    ids = r.rng.randint(0, 5, (3, 2))
    ids[0] = 2, -100
    for reduction, weighted, ignored in itertools.product(REDUCTIONS, (False, True), (-100, 2)):
        name = f"nll ignore={ignored} weight={weighted} {reduction}"
        options = {"weight": torch.tensor(weight, dtype=torch.float64) if weighted else None, "ignore_index": ignored}
        chosen = np.where(ids == -100, ignored, ids)
        r.case(name, lambda x, t, o=options, how=reduction: F.nll_loss(x, t, reduction=how, **o), [x, chosen])
    r.put(**{"nll/weight": weight})


def cosines(r: Recorder) -> None:
    x1, x2, target = r.draw(6, 4), r.draw(6, 4), r.rng.choice(np.array([-1, 1]), 6)
    x1[0], x2[1], target[1] = 0, x1[1], 1
    for reduction, margin in itertools.product(REDUCTIONS, (0.0, -0.5)):
        options = {"margin": margin, "reduction": reduction}
        name = f"cosine {margin} {reduction}"
        r.case(name, lambda a, b, t, o=options: F.cosine_embedding_loss(a, b, t, **o), [x1, x2, target])


def case(r: Recorder, name: str, inputs: list, options: dict, reduction: str, **weights) -> None:
    """One call of the function that the name begins with; weights: arrays, or False for none."""
    weights = {key: w for key, w in weights.items() if w is not False}
    name = " ".join((name, *weights))
    r.put(**{f"{name}/{key}": w for key, w in weights.items()})
    function = getattr(F, name.partition(" ")[0])
    constants = {key: torch.tensor(w, dtype=torch.float64) for key, w in weights.items()}
    r.case(name, lambda *x: function(*x, reduction=reduction, **options, **constants), inputs)
    r.arrays.pop(f"{name}/dx1")  # of the target, for which the library has none


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
