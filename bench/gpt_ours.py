"""The GPT step in gpulayers."""

from typing import Any

from bench import gpt_case, machine
from bench.gpt_case import Sizes, Steps
from gpulayers.models.gpt import GPT, GPTConfig
from gpulayers.ops.cross_entropy import cross_entropy_inplace
from gpulayers.optim import AdamW
from gpulayers.step import Train


def make(sizes: list[int], threads: int, dtype: str = "float32") -> Steps:
    case = Sizes(*sizes)
    model = GPT(GPTConfig(case.vocab, case.length, case.layers, case.heads, case.dim), dtype=dtype)
    model.load_state_dict(gpt_case.parameters(case))
    optimizer = AdamW(model, lr=gpt_case.LR, betas=gpt_case.BETAS, eps=gpt_case.EPS, weight_decay=gpt_case.DECAY)
    position = 0

    def train_step(ids: Any, targets: Any) -> Any:
        nonlocal position
        model.zero_grad()
        logits, saved = model.forward(ids, Train(step=position))
        loss, dlogits = cross_entropy_inplace(logits, targets)
        model.backward(dlogits, saved)
        optimizer.step()
        position += 1
        return loss

    return Steps(train_step, gpt_case.batches(case), machine.describe(threads))
