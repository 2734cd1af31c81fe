"""The training steps that `bench.train` measures, and what they are meant to reach beside PyTorch.

A kind of model is a module `<kind>_case` beside this one, which has `Sizes` (with `count`, what a step works through,
and `flops`), `parameters` and `batches`, the same for every variant.
"""

from types import ModuleType
from typing import Any, NamedTuple

from bench import gpt_case, seq2seq_case, vit_case

KINDS: dict[str, ModuleType] = {"gpt": gpt_case, "seq2seq": seq2seq_case, "vit": vit_case}
UNITS = {"gpt": "tokens", "seq2seq": "tokens", "vit": "images"}
TITLES = {"gpt": "GPT step", "seq2seq": "recurrent encoder-decoder step", "vit": "ViT step"}


class ModelCase(NamedTuple):
    kind: str
    sizes: Any


CASES = {name: ModelCase(kind, sizes) for kind, module in KINDS.items() for name, sizes in module.CASES.items()}


class Target(NamedTuple):
    """The most that our time, or peak memory, may be of the peer's. threads: for which number, None for any."""

    case: str
    peer: str
    time: float | None = None
    memory: float | None = None
    threads: int | None = None


TARGETS = (
    Target("base", "torch", 0.82, 0.50, threads=2),
    Target("base", "torch malloc-tuned", 0.97, threads=2),
    Target("base", "torch compile", 0.95, threads=2),
    Target("base", "torch", 0.83, threads=1),
    Target("small", "torch", 0.95, 0.25),
    Target("middle", "torch", 1.0, 0.75),
    Target("large", "torch", 0.80, 0.65),
    Target("seq2seq", "torch", 1.0, 0.50),
    Target("vit", "torch", 0.9, 0.6),
)


def targets(case: str, threads: int) -> list[Target]:
    return [t for t in TARGETS if t.case == case and t.threads in (None, threads)]
