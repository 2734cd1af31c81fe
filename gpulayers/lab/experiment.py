"""One combination of the lab: a deep feed-forward network, trained for some steps and watched by the ledger."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulayers.data import Batches, encode_split, load_corpus, make_tokenizer, validation_windows
from gpulayers.lab.grid import Cell
from gpulayers.layers.layer import Layer
from gpulayers.models.feedforward import FeedForwardConfig, FeedForwardNet
from gpulayers.ops.cross_entropy import cross_entropy_inplace
from gpulayers.optim import SGD
from gpulayers.step import Train
from gpulayers.training.health import as_record
from gpulayers.training.ledger import Ledger
from gpulayers.training.metrics import plain
from gpulayers.training.options import Options, option

MOST_SKIPPED = 3  # steps in a row


@dataclass(frozen=True)
class LabOptions(Options):
    """The network and how it is trained: the same for all combinations, so that only the combination differs.

    Plain SGD, because Adam's division by the gradient's size hides a vanishing gradient for a while.
    """

    full: bool = option(False, "all 360 combinations instead of a telling part")
    only: tuple[str, ...] = option(
        (), "only combinations with these words", metavar="WORD", default_text="all of the grid"
    )
    depth: int = option(12, "hidden layers", at_least=1, at_most=1000)
    width: int = option(48, "units of a hidden layer", at_least=1, at_most=2**20)
    context: int = option(8, "characters that the next one is predicted from", at_least=1)
    dim: int = option(8, "width of the embedding", at_least=1)
    steps: int = option(300, "steps of SGD", at_least=1)
    batch: int = option(64, "predictions in a step", at_least=2)
    lr: float = option(0.1, "learning rate", at_least=0, at_most=1e30)
    clip: float = option(1.0, "clip: largest norm of the whole gradient", above=0)
    l1: float = option(1e-4, "l1: factor of the penalty", at_least=0)
    l2: float = option(1e-3, "l2: factor of the penalty", at_least=0)
    look_every: int = option(10, "steps between two looks of the ledger", at_least=1)
    measure: int = option(2048, "predictions of the held-out part that the loss is a mean over", at_least=1)
    seed: int = option(0, "of the initial values and the batches", at_least=0, at_most=2**63 - 1)


class Text:
    """Python's documentation by characters: the next one from the `context` before it.

    Raises DataError if the text is too short.
    """

    def __init__(self, options: LabOptions) -> None:
        corpus = load_corpus()
        tokenizer = make_tokenizer("char", corpus)
        train, validation = encode_split(corpus, tokenizer)
        self.digest, self.vocab = corpus.digest, tokenizer.vocab_size
        self._batches = Batches(train, options.context, options.batch, options.seed)
        windows = validation_windows(validation, options.context, options.measure, options.measure)
        self.held_out = [(ids, targets[:, -1].copy()) for ids, targets in windows]

    def batch(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """ids (B, context), targets (B,)."""
        ids, targets = self._batches.batch(k)
        return ids, targets[:, -1].copy()


def run_cell(cell: Cell, options: LabOptions, text: Text) -> dict[str, Any]:
    """Train one combination. Returns JSON values:

    cell       the combination, a list of words
    first      loss before the first update, with the initial values
    loss       on the held-out part at the end; null where training stopped or the loss is not finite
    stopped    the step at which training stopped, because three steps in a row were not finite; or null
    sick       the first sickness that was seen: {"step", "layer", "kind", "why"}; or null
    well       whether the last look found every layer well
    health     what the ledger saw, `as_record` of each look
    """
    model = FeedForwardNet(config_of(cell, options, text.vocab), seed=options.seed)
    optimizer = SGD(
        model,
        options.lr,
        clip_norm=options.clip if cell.clip == "clip" else None,
        l1=options.l1 if cell.penalty == "l1" else 0.0,
        weight_decay=options.l2 if cell.penalty == "l2" else 0.0,
    )
    ledger, looks, first, skipped, stopped = Ledger(model, optimizer), [], math.nan, 0, None
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # the subject of the experiment
        for k in range(options.steps):
            due = k % options.look_every == 0 or k == options.steps - 1 or skipped == MOST_SKIPPED - 1
            if due:
                with ledger.watch():
                    loss = step(model, optimizer, k, options, text)
                looks.append(as_record(k + 1, ledger.rows))
            else:
                loss = step(model, optimizer, k, options, text)
            first = loss if k == 0 else first
            skipped = 0 if optimizer.last_step_applied and math.isfinite(loss) else skipped + 1
            if skipped == MOST_SKIPPED:
                stopped = k + 1
                break
        final = math.nan if stopped else held_out_loss(model, text)
    found = [{"step": look["step"], **look["sick"]} for look in looks if look["sick"]]
    result = {"cell": list(cell), "first": first, "loss": final, "stopped": stopped}
    result |= {"sick": found[0] if found else None, "well": looks[-1]["sick"] is None, "health": looks}
    return plain(rounded(result))


def config_of(cell: Cell, options: LabOptions, vocab: int) -> FeedForwardConfig:
    widths = (options.width,) * options.depth
    return FeedForwardConfig(vocab, options.context, options.dim, widths, cell.activation, cell.init, cell.around)


def step(model: Layer, optimizer: SGD, k: int, options: LabOptions, text: Text) -> float:
    """One step on batch k; the update is skipped where something is not finite. Returns the loss."""
    ids, targets = text.batch(k)
    logits, saved = model.forward(ids, train=Train(options.seed, k))
    loss, dlogits = cross_entropy_inplace(logits, targets)
    model.backward(dlogits, saved)
    optimizer.step()  # a gradient that is not finite is skipped, and with it a loss that is not
    return float(loss)


def held_out_loss(model: Layer, text: Text) -> float:
    total, count = 0.0, 0
    for ids, targets in text.held_out:
        loss, _ = cross_entropy_inplace(model(ids), targets, reduction="sum")
        total, count = total + float(loss), count + int((targets >= 0).sum())
    return total / max(1, count)


def rounded(value: Any) -> Any:
    """Floats to four digits: enough for a table and a picture, and a file of a quarter of the size."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value
