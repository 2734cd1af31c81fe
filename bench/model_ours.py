"""A training step in gpulayers, the one of `gpulayers train`."""

import math
from typing import Any
from unittest.mock import patch

import numpy as np

from bench import gpt_case, machine
from bench.gpt_case import CHECKED, Steps
from bench.model_cases import KINDS
from gpulayers.backend import Array
from gpulayers.models.gpt import GPT, GPTConfig
from gpulayers.models.seq2seq import Seq2Seq, Seq2SeqConfig
from gpulayers.models.vit import ViT, ViTConfig
from gpulayers.optim import AdamW
from gpulayers.training.loop import train_step
from gpulayers.training.tasks.task import Part
from gpulayers.training.threads import Threads, long_enough


def make(kind: str, sizes: list[int], threads: int, dtype: str = "float32", side_by_side: bool | None = None) -> Steps:
    """side_by_side: whether pieces of the batch run on threads, which are BLAS's otherwise; None: as a run decides."""
    case = KINDS[kind].Sizes(*sizes)
    model = _model(kind, case, dtype)
    model.load_state_dict(KINDS[kind].parameters(case))
    optimizer = AdamW(
        model, lr=gpt_case.LR, betas=gpt_case.BETAS, eps=gpt_case.EPS, weight_decay=gpt_case.DECAY, threads=threads
    )
    if side_by_side is None:
        side_by_side = long_enough(case.batch // threads, case.grain)
    team = Threads(model, threads) if side_by_side and threads > 1 else None
    position = 0

    def step(*batch: Any) -> float:
        nonlocal position
        part = Part(0, batch[:-1], batch[-1])
        outcome = train_step(model, optimizer, [part], 0, position, threads=team)
        position += 1
        return optimizer.read(outcome).loss

    inputs = [tuple(_as(a, dtype) for a in batch) for batch in KINDS[kind].batches(case)]
    facts = {**machine.describe(threads), "pieces": team is not None}
    if dtype != "float64":
        return Steps(step, inputs, facts)
    with patch("gpulayers.ops.gelu.normal_cdf", _normal_cdf):  # ours is a sum of 80 terms, a minute for the ViT
        return Steps(step, inputs, facts, CHECKED)


def _normal_cdf(x: Array) -> Array:
    return np.asarray(np.frompyfunc(math.erfc, 1, 1)(x * -math.sqrt(0.5)), np.float64) / 2


def _model(kind: str, case: Any, dtype: str) -> Any:
    if kind == "gpt":
        return GPT(GPTConfig(case.vocab, case.length, case.layers, case.heads, case.dim), dtype=dtype)
    if kind == "vit":
        image = (case.side, case.side)
        sizes = ViTConfig(image, case.channels, case.patch, case.classes, case.dim, case.heads, case.layers)
        return ViT(sizes, dtype=dtype)
    plain = {"bidirectional": False, "context": "last", "decoder": "initial"}
    return Seq2Seq(Seq2SeqConfig(case.vocab, case.vocab, case.dim, case.hidden, **plain), dtype=dtype)


def _as(array: np.ndarray, dtype: str) -> np.ndarray:
    return array.astype(dtype) if array.dtype.kind == "f" else array
