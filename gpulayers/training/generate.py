"""Writing text with a language model, one token after the other; how a token is drawn is in `gpulayers/sampling.py`."""

import operator
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from gpulayers.backend import device_of, to_device, to_numpy
from gpulayers.data import Tokenizer
from gpulayers.layers.layer import Layer
from gpulayers.sampling import Sampling, pick

WAIT = 16  # tokens that a character may be spread over, at most


def generate(
    model: Layer,
    ids: Any,
    tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
) -> np.ndarray:
    """The `tokens` token ids that the model writes after `ids`.

    ids: at least one id, 1-D. A text longer than the model's context goes on with the last `context` tokens in view.
    Returns int64, (tokens,), in host memory. Raises ValueError for an empty prompt and for options out of range,
    FloatingPointError where the model's logits are NaN or infinite.
    """
    sampling = Sampling(float(temperature), top_k, None if top_p is None else float(top_p), seed)
    return np.fromiter(stream(model, ids, tokens, sampling), np.int64)


def stream(model: Any, ids: Any, tokens: int, sampling: Sampling | None = None) -> Iterator[int]:
    """`generate`, handing out each token as soon as it is drawn."""
    sampling = (sampling or Sampling()).checked()
    window = [operator.index(i) for i in to_numpy(np.asarray(ids) if isinstance(ids, list | tuple) else ids)]
    if not window:
        raise ValueError("generate: the prompt is empty; give at least one token")
    if tokens < 0:
        raise ValueError(f"generate: tokens must be at least 0, got {tokens}")
    return _stream(model, window, tokens, sampling)


def _stream(model: Any, window: list[int], tokens: int, sampling: Sampling) -> Iterator[int]:
    device = device_of(next(model.parameters()).data)
    for i in range(tokens):
        del window[: -model.config.context]
        logits = model(to_device(np.array([window]), device))[0, -1]  # (V,)
        window.append(pick(to_numpy(logits), i, sampling))
        yield window[-1]


def pieces(tokenizer: Tokenizer, ids: Iterable[int]) -> Iterator[str]:
    """The text of `ids`, piece by piece; a character that is cut across tokens waits for its end."""
    waiting: list[int] = []
    for token in ids:
        waiting.append(token)
        text = tokenizer.decode(waiting)
        if not text.endswith("\ufffd") or len(waiting) == WAIT:
            yield text
            waiting = []
    if waiting:
        yield tokenizer.decode(waiting)
