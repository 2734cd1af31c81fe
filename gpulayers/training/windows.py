"""What a model sees of texts that it writes on, and the logits of their next tokens.

A text longer than the model's context is seen through a window, its last tokens. For a model that keeps the keys and
values of what it has read (`model.step`), moving the window means to read all of it again: every position has changed,
and what was kept had seen tokens that have left. So when the window is full it moves on by `slide` tokens at once, and
then has room for as many. The window is a function of the text's length alone:

    start(n) = 0                                        n <= context
             = slide ceil((n - context) / slide)        n > context

with and without the cache, so both write the same text, and a text that is interrupted goes on as it would have.
slide 1 shows most, context tokens always, and costs a whole pass each; half of the context, the default, shows between
half of it and all of it, and costs one more pass of each token.

A model without `step` is shown its last `context` tokens.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpulayers.backend import device_of, to_device, to_numpy
from gpulayers.decoding import take_rows


def window_start(length: int, context: int, slide: int) -> int:
    """The first token in view of a text of `length` tokens."""
    return -(-max(0, length - context) // slide) * slide


def front_padded(texts: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """ids (N, longest), each text at the end of its row, and how many ids in front of it are padding, (N,)."""
    lengths = np.array([len(text) for text in texts])
    ids = np.zeros((len(texts), lengths.max()), np.int64)
    for row, text in zip(ids, texts, strict=True):
        row[len(row) - len(text) :] = text
    return ids, lengths.max() - lengths


class Windows:
    """Texts side by side. Write with `append`, read with `logits`, leave those that have ended with `keep`.

    texts: at least one, each at least one token long. slide: see above, None for the default. cache: False reads the
    whole window for every token.
    """

    def __init__(self, model: Any, texts: Sequence[Sequence[int]], slide: int | None = None, cache: bool = True):
        self.model, self.texts = model, [list(text) for text in texts]
        self.steps = hasattr(model, "step")
        self.cache = cache and self.steps
        self.context = model.config.context
        self.slide = slide or (max(1, self.context // 2) if self.steps else 1)
        self.device = device_of(next(model.parameters()).data)
        self.starts: list[int] = []  # of the windows that `state` has read
        self.state: Any = None

    def logits(self) -> np.ndarray:
        """Of each text's next token, (N, vocab) in host memory. Reads what was appended since the last time."""
        starts = [window_start(len(text), self.context, self.slide) for text in self.texts]
        if not self.cache:
            windows = [text[start:] for text, start in zip(self.texts, starts, strict=True)]
            return np.stack([to_numpy(self.model(self._there([window]))[0, -1]) for window in windows])
        if self.state is not None and starts == self.starts:
            found, self.state = self.model.step(self._there([text[-1] for text in self.texts]), self.state)
        else:
            ids, padding = front_padded([text[start:] for text, start in zip(self.texts, starts, strict=True)])
            self.state = None  # its memory is free before the new one takes some
            found, self.state = self.model.step(self._there(ids), padding=padding, last=True)
            self.starts = starts
        return to_numpy(found)

    def append(self, tokens: Sequence[int]) -> None:
        """One more token for each text."""
        for text, token in zip(self.texts, tokens, strict=True):
            text.append(token)

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with the texts `rows` alone."""
        self.texts = [self.texts[row] for row in rows]
        if self.state is not None:
            self.starts = [self.starts[row] for row in rows]
            self.state = take_rows(self.state, np.array(rows, np.int64))

    def _there(self, ids: Any) -> Any:
        return to_device(np.asarray(ids), self.device)
