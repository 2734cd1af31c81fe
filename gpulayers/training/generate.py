"""Writing text with a language model: as token ids, one or several texts at a time, or as text, piece by piece.

How a token is drawn is in `gpulayers/sampling.py`, what the model sees of a long text in `windows.py`.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from gpulayers.backend import is_array, to_numpy
from gpulayers.data import Tokenizer
from gpulayers.layers.layer import check_flags, check_integer
from gpulayers.sampling import Sampling, pick
from gpulayers.training.options import ConfigError
from gpulayers.training.windows import Windows

WAIT = 16  # tokens that a character may be spread over, at most

# ------------------------------------------------------------------------------------------------ token ids


def generate(
    model: Any,
    ids: Any,
    tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    repetition_penalty: float = 1.0,
    **options: Any,
) -> np.ndarray:
    """The `tokens` token ids that the model writes after `ids`, or fewer where `end` comes.

    ids: at least one id, 1-D. Other options, and what is raised: as `stream_batch`.
    Returns int64, (tokens,), in host memory.
    """
    sampling = _sampling(temperature, top_k, top_p, seed, repetition_penalty)
    return np.fromiter(stream(model, ids, tokens, sampling, **options), np.int64)


def generate_batch(
    model: Any,
    prompts: Sequence[Any],
    tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    repetition_penalty: float = 1.0,
    **options: Any,
) -> list[np.ndarray]:
    """What the model writes after each of several prompts, which may differ in length.

    Text number `row` is the one that `stream_batch` writes with draws of its own: the first is what `generate` gives.
    Other options, and what is raised: as `stream_batch`. Returns an int64 array for each prompt, in host memory.
    """
    sampling = _sampling(temperature, top_k, top_p, seed, repetition_penalty)
    texts: list[list[int]] = [[] for _ in prompts]
    for step in stream_batch(model, prompts, tokens, sampling, **options):
        for row, token in step:
            texts[row].append(token)
    return [np.array(text, np.int64) for text in texts]


def stream(model: Any, ids: Any, tokens: int, sampling: Sampling | None = None, **options: Any) -> Iterator[int]:
    """`generate`, handing out each token as soon as it is drawn. options: as `stream_batch`."""
    return (token for step in stream_batch(model, [ids], tokens, sampling, **options) for _, token in step)


def stream_batch(
    model: Any,
    prompts: Sequence[Any],
    tokens: int,
    sampling: Sampling | None = None,
    *,
    end: int | None = None,
    slide: int | None = None,
    cut_prompt: bool = False,
    cache: bool = True,
) -> Iterator[list[tuple[int, int]]]:
    """Several texts side by side: for each step, (row, token) of every text that goes on.

    end: the id that ends a text; it is not handed out, and the other texts go on without it. slide: tokens that leave
    the model's view at once when it is full, by default half of the context (`windows.py`). cut_prompt: what is too
    long for the context is read from its end. cache: False reads the whole view for every token; the text is the same
    but for draws within rounding of a boundary.

    Each text is what it is alone (with the same `row`), whatever is written beside it.
    Raises, before the first step, ConfigError, a ValueError, for an empty prompt, one that is longer than the context,
    an id or an option out of range; later FloatingPointError where the model's logits are NaN or infinite.
    """
    sampling = (sampling or Sampling()).checked()
    config = model.config
    check_integer("generate", tokens=tokens)
    check_flags("generate", cut_prompt=cut_prompt, cache=cache)
    if tokens < 0:
        raise ConfigError(f"generate: tokens must be at least 0, got {tokens}")
    for name, value, low, high in (("end", end, 0, config.vocab - 1), ("slide", slide, 1, config.context)):
        if value is not None:
            check_integer("generate", **{name: value})
            if not low <= value <= high:
                raise ConfigError(f"generate: {name} must be in {low}..{high}, got {value}")
    texts = [_prompt(ids, config.vocab) for ids in prompts]
    longest = max(map(len, texts), default=0)
    if longest > config.context and hasattr(model, "step") and not cut_prompt:
        raise ConfigError(
            f"generate: the prompt has {longest} tokens and the model sees {config.context}: shorten it, or read its "
            "end alone with cut_prompt=True (--cut-prompt)"
        )
    return _stream(Windows(model, texts, slide, cache), tokens, sampling, end)


def _stream(windows: Windows, tokens: int, sampling: Sampling, end: int | None) -> Iterator[list[tuple[int, int]]]:
    rows = list(range(len(windows.texts)))
    for i in range(tokens if rows else 0):
        logits = windows.logits()
        drawn = []
        for row, text, z in zip(rows, windows.texts, logits, strict=True):
            seen = np.array(text) if sampling.repetition_penalty != 1 else None
            drawn.append(pick(z, i, sampling, row, seen))
        windows.append(drawn)
        yield [(row, token) for row, token in zip(rows, drawn, strict=True) if token != end]
        if end in drawn:
            going = [k for k, token in enumerate(drawn) if token != end]
            rows = [rows[k] for k in going]
            if not rows:
                return
            windows.keep(going)


def _prompt(ids: Any, vocab: int) -> list[int]:
    """One prompt, checked."""
    array = to_numpy(ids if is_array(ids) else np.asarray(ids))
    if array.size == 0:
        raise ConfigError("generate: the prompt is empty; give at least one token")
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise ConfigError(f"generate takes a prompt of integer ids, 1-D, got {array.dtype} of shape {array.shape}")
    text = array.tolist()
    if outside := [k for k, i in enumerate(text) if not 0 <= i < vocab]:
        k = outside[0]
        raise ConfigError(f"generate: the prompt's id {text[k]} at position {k} is outside 0..{vocab - 1}")
    return text


def _sampling(
    temperature: float, top_k: int | None, top_p: float | None, seed: int, repetition_penalty: float
) -> Sampling:
    top_p = None if top_p is None else float(top_p)
    return Sampling(float(temperature), top_k, top_p, seed, float(repetition_penalty))


# ------------------------------------------------------------------------------------------------ text


def write(
    model: Any,
    tokenizer: Tokenizer,
    prompt: str,
    tokens: int,
    sampling: Sampling | None = None,
    *,
    stop: str | Sequence[str] = (),
    **options: Any,
) -> Iterator[str]:
    """The text that the model writes after `prompt`, in pieces that are whole characters, as soon as they are there.

    stop: texts before which it ends, wherever tokens begin and end; the prompt does not count. options: as
    `stream_batch`, which says what is raised; ConfigError for an empty stop too. end: by default what the tokenizer
    sets between two texts, if it has such a token.
    """
    stops = check_stops(stop)
    options.setdefault("end", end_of(tokenizer))
    ids = tokenizer.encode(prompt)
    return until(pieces(tokenizer, stream(model, ids, tokens, sampling, **options), ids), stops)


def check_stops(stop: str | Sequence[str]) -> tuple[str, ...]:
    stops: tuple[str, ...] = (stop,) if isinstance(stop, str) else tuple(stop)
    if not all(isinstance(text, str) and text for text in stops):
        raise ConfigError(f"generate: stop takes texts of at least one character, got {stop!r}")
    return stops


def end_of(tokenizer: Tokenizer) -> int | None:
    """The id that stands between two texts; bytes and characters have none."""
    return getattr(tokenizer, "end", None)


def pieces(tokenizer: Tokenizer, ids: Iterable[int], prompt: Sequence[int] | np.ndarray = ()) -> Iterator[str]:
    """The text of `ids`, piece by piece; a character that is cut across tokens waits for its end.

    prompt: what stands in front of them. There are tokenizers that set a blank between two words, and none in front of
    the first: so a token is decoded behind the one before it, whose text is then taken off again.
    """
    before, waiting = [int(i) for i in prompt[-1:]], []
    shown = tokenizer.decode(before)
    for token in ids:
        waiting.append(token)
        text = tokenizer.decode([*before, *waiting])[len(shown) :]
        if text and not text.endswith("\ufffd"):
            yield text
            before, waiting = waiting[-1:], []
            shown = tokenizer.decode(before)
        elif len(waiting) == WAIT:
            yield text
            before, waiting, shown = [], [], ""
    if waiting:
        yield tokenizer.decode([*before, *waiting])[len(shown) :]


def until(texts: Iterable[str], stops: Sequence[str]) -> Iterator[str]:
    """The text before the first of `stops`, the one that is complete first; how it is cut into pieces changes nothing.

    What may be the beginning of a stop waits. Nothing is taken from `texts` after the stop.
    """
    waiting = ""
    for text in texts:
        waiting += text
        ends = [(at + len(stop), at) for stop in stops if (at := waiting.find(stop)) >= 0]
        if ends:
            waiting = waiting[: min(ends)[1]]
            break
        held = max((_overlap(waiting, stop) for stop in stops), default=0)
        if text := waiting[: len(waiting) - held]:
            yield text
        waiting = waiting[len(waiting) - held :]
    if waiting:
        yield waiting


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` with which `stop` begins, all of it excepted."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
