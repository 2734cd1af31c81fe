"""Continuation: a GPT as the decoders of `gpulayers/decoding.py` want a model; the source is a prompt.

best = beam_search(Continuation(gpt, longest=20), prompts, width=4)
"""

from typing import NamedTuple

import numpy as np

from gpulayers.backend import Array, to_numpy
from gpulayers.layers.layer import check_integer, check_sizes
from gpulayers.models.gpt import GPT
from gpulayers.models.gpt import State as Read


class Ids(NamedTuple):
    """What the decoders ask of a model; -1 is no token: nothing begins a continuation, and pad follows it."""

    longest: int
    eos: int
    pad: int = -1
    bos: int = -1


class State(NamedTuple):
    """logits: of the first token, (B, vocab), which reading the prompts gave; None when they have been handed out."""

    logits: Array
    read: Read


class Continuation:
    """What follows prompts (B, S), each at the end of its row with -1 in front of it where it is shorter than S.

    longest: ids of a continuation at most, `end` included. end: the id that ends it; None: nothing does.
    Raises ValueError for prompts that do not fit into the context together with `longest` ids.
    """

    def __init__(self, model: GPT, longest: int, end: int | None = None) -> None:
        check_sizes("Continuation", longest=longest)
        if end is not None:
            check_integer("Continuation", end=end)
            if not 0 <= end < model.config.vocab:
                raise ValueError(f"Continuation: end must be an id in 0..{model.config.vocab - 1}, got {end}")
        self.model, self.config = model, Ids(longest, -1 if end is None else end)

    def start(self, source: Array) -> State:
        """Read the prompts."""
        padding = front_padding(to_numpy(source))
        if (length := source.shape[1] + self.config.longest - 1) > self.model.config.context:
            raise ValueError(
                f"Continuation: prompts of {source.shape[1]} ids and {self.config.longest} more do not fit into "
                f"the context of {self.model.config.context}: {length - self.model.config.context} too many"
            )
        return State(*self.model.step(source.clip(0, None), padding=padding, last=True))

    def step(self, ids: Array, state: State) -> tuple[Array, State]:
        """The last ids (N,), at first whatever they are -> logits (N, vocab) of the next ones."""
        if state.logits is not None:
            return state.logits, State(None, state.read)
        logits, read = self.model.step(ids, state.read)
        return logits, State(None, read)


def front_padding(ids: np.ndarray) -> np.ndarray:
    """How many -1 stand in front of each row, (B,). Raises ValueError for an empty prompt or one with a gap."""
    hidden = ids == -1
    counts = hidden.sum(axis=1)
    if ids.shape[1] == 0 or (counts == ids.shape[1]).any():
        row = int((counts == ids.shape[1]).argmax())
        raise ValueError(f"Continuation: prompt {row} is empty; give at least one token")
    if (hidden != (np.arange(ids.shape[1]) < counts[:, None])).any():
        raise ValueError("Continuation: -1 pads a prompt in front, and stands nowhere else")
    return counts
