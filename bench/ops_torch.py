"""PyTorch's counterpart of an op as a subject for `bench.worker`."""

from typing import Any

import numpy as np
import torch

from bench.all_cases import CASES
from bench.cases import Case
from bench.ops_ours import Call


class Peer(Call):
    """`case.peer(torch, *tensors)` makes the function to time, anew for the check and for the timing."""

    def __init__(self, case: Case) -> None:
        super().__init__(case, lambda *arguments: _arrays(_build(case, arguments)()), written=(), whole=False)
        self.function, self.arguments = _build(case, case.fresh()), ()


def _build(case: Case, arguments: tuple[Any, ...]) -> Any:
    assert case.peer
    return case.peer(torch, *(torch.from_numpy(a) if isinstance(a, np.ndarray) else a for a in arguments))


def _arrays(found: Any) -> tuple[Any, ...]:
    found = found if isinstance(found, tuple | list) else (found,)
    return tuple(t.detach().numpy() if isinstance(t, torch.Tensor) else t for t in found)


def make(case: str, threads: int) -> Peer:
    torch.set_num_threads(threads)
    return Peer(CASES[case])
