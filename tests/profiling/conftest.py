import numpy as np
import pytest

import gpulayers as gl


class Run:
    """A tiny GPT, its optimizer, and a step by hand."""

    def __init__(self, device: str = "numpy") -> None:
        self.model = gl.GPT(gl.GPTConfig(vocab=16, context=8, layers=2, heads=2, dim=8)).to(device)
        self.optimizer = gl.AdamW(self.model)
        self.ids = gl.to_device(np.arange(8).reshape(1, 8), device)

    def step(self) -> None:
        logits, saved = self.model.forward(self.ids, gl.Train())
        _, dlogits = gl.cross_entropy(logits, self.ids)
        self.model.backward(dlogits, saved)
        self.optimizer.step()


@pytest.fixture
def run() -> Run:
    return Run()


@pytest.fixture(scope="session")
def run_on() -> type[Run]:
    return Run
