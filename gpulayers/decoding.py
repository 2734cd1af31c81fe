"""Writing a target with a model that decodes by steps: greedy, by sampling, by beam search.

    state = model.start(source)               # encodes the sources (B, S) once
    logits, state = model.step(ids, state)    # the last ids (N,) -> logits (N, V) of the next ones

is all that they use, so they serve recurrent decoders and transformers alike, and GPTs (`models/continuation.py`).
state is a tree of arrays whose first axis is the batch (see `take_rows`); the one before a step stays valid.
model.config has the ids `bos` (the first one that is fed), `eos` (ends a row) and `pad`, -1 where there is none, and
`longest`, the most ids that a target may have, its eos included.

With log p(y | x) = sum_t log p(y_t | y_1 .. y_t-1, x) over the ids of a target, eos included,

    greedy     y_t = argmax log p(y_t | ...)
    sampling   y_t drawn from softmax(logits / temperature), cut down by top_k and top_p (`gpulayers/sampling.py`)
    beam       of all continuations of the open hypotheses, the `width` best stay; those that end in eos are finished.
               The best finished one by log p(y | x) / penalty wins, penalty = ((5 + length of y) / 6)^length_penalty.

Log-probabilities are added up in float64 in host memory. pad and bos are never chosen: no target holds them. Of equally
good continuations, that of the better hypothesis comes first, and of one hypothesis, the lower id.

Sources: Sutskever, Vinyals and Le, Sequence to sequence learning with neural networks, 2014, section 3.2 (beam);
Wu et al., Google's neural machine translation system, 2016, equation 14 (penalty).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gpulayers.backend import Array, device_of, is_array, to_device, to_numpy
from gpulayers.growing import Growing
from gpulayers.layers.layer import check_integer, check_number, check_sizes
from gpulayers.ops.embedding import check_integers
from gpulayers.sampling import Sampling, pick


class Decoded(NamedTuple):
    """ids: (B, T) int64, without bos; a row ends with eos, unless `longest` cut it off, and pad follows.

    scores: (B,) float64, log p(y | x) of each row; of `beam_search`, divided by the penalty. Both in host memory.
    """

    ids: np.ndarray
    scores: np.ndarray


def greedy_decode(model: Any, source: Array, longest: int | None = None) -> Decoded:
    """The likeliest next id, step by step.

    source: (B, S) integers on the model's device, one row for each text. longest: most ids of a row, eos included; by
    default what the model can take.

    Raises TypeError, ValueError for other arguments; FloatingPointError where logits are NaN or infinite.
    """
    return _row_by_row("greedy_decode", model, source, longest, lambda i, rows, log_p, totals: totals.argmax(axis=1))


def sample_decode(
    model: Any,
    source: Array,
    longest: int | None = None,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
) -> Decoded:
    """Draw every id from its probabilities. Id i of row b depends on seed, b and i alone among all random draws.

    temperature: 0 is `greedy_decode`. scores are those of the model, whatever temperature, top_k and top_p cut off.
    Other arguments, and what is raised: as `greedy_decode`.
    """
    check_number("sample_decode", temperature=temperature)
    check_integer("sample_decode", seed=seed)
    if top_p is not None:
        check_number("sample_decode", top_p=top_p)
    sampling = Sampling(float(temperature), top_k, None if top_p is None else float(top_p), seed).checked()
    if sampling.temperature == 0:
        return greedy_decode(model, source, longest)

    def choose(i: int, rows: np.ndarray, log_p: np.ndarray, totals: np.ndarray) -> np.ndarray:
        return np.array([pick(p, i, sampling, int(row)) for p, row in zip(log_p, rows, strict=True)])

    return _row_by_row("sample_decode", model, source, longest, choose)


def _row_by_row(who: str, model: Any, source: Array, longest: int | None, choose: Callable[..., np.ndarray]) -> Decoded:
    """One hypothesis a source; choose(i, rows, log_p (N, V), totals (N, V)) -> ids (N,)."""
    longest = _check(who, model, source, longest)
    c, count = model.config, len(source)
    ids, scores = np.full((count, longest), c.pad), np.zeros(count)
    rows, last, length = np.arange(count), np.full(count, c.bos), 0  # rows: those that are not finished
    state = model.start(source) if count else None
    while len(rows) and length < longest:
        logits, state = model.step(to_device(last, device_of(source)), state)
        log_p = log_probabilities(who, logits, c)
        totals = scores[rows, None] + log_p
        last = choose(length, rows, log_p, totals)
        ids[rows, length], scores[rows] = last, totals[np.arange(len(rows)), last]
        length += 1
        going = np.flatnonzero(last != c.eos)
        if len(going) < len(rows):
            state, rows, last = take_rows(state, going), rows[going], last[going]
    return Decoded(ids[:, :length].copy(), scores)


# ------------------------------------------------------------------------------------------------ beam search


class _Open(NamedTuple):
    """Hypotheses that are not finished, of all sources side by side, those of one source together, best first."""

    owner: np.ndarray  # (N,) which source
    ids: np.ndarray  # (N, length)
    total: np.ndarray  # (N,) log p


class _Finished:
    """The best finished hypothesis of each source so far. The earlier one stays where two are as good."""

    def __init__(self, sources: int) -> None:
        self.ids = [np.zeros(0, np.int64)] * sources
        self.scores = np.full(sources, -np.inf)

    def offer(self, hypotheses: _Open, which: np.ndarray, penalty: float) -> None:
        """which: (N,), True where a hypothesis is finished."""
        for i in np.flatnonzero(which):
            owner, score = hypotheses.owner[i], hypotheses.total[i] / penalty
            if score > self.scores[owner]:
                self.ids[owner], self.scores[owner] = hypotheses.ids[i], score


def beam_search(
    model: Any, source: Array, longest: int | None = None, *, width: int = 4, length_penalty: float = 0.0
) -> Decoded:
    """The best target found when the `width` best hypotheses of each source are followed.

    width: 1 is `greedy_decode`. length_penalty: 0 compares log-probabilities; the larger, the longer the target. The
    search for a source ends when no open hypothesis can win any more: log p only falls, and no penalty is larger than
    that of `longest` ids. A target that is cut off at `longest` counts only where none is finished.

    Other arguments, and what is raised: as `greedy_decode`.
    """
    longest = _check("beam_search", model, source, longest)
    check_sizes("beam_search", width=width)
    check_number("beam_search", 0, 10, length_penalty=length_penalty)  # far beyond it every penalty is infinite
    c, count = model.config, len(source)
    penalty = ((5 + np.arange(longest + 1)) / 6) ** length_penalty  # by length
    hypotheses = _Open(np.arange(count), np.zeros((count, 0), np.int64), np.zeros(count))
    finished = _Finished(count)
    last, state = np.full(count, c.bos), model.start(source) if count else None
    for length in range(1, longest + 1):
        if not len(last):
            break
        logits, state = model.step(to_device(last, device_of(source)), state)
        parents, hypotheses = _extended(hypotheses, log_probabilities("beam_search", logits, c), width)
        ends = hypotheses.ids[:, -1] == c.eos
        finished.offer(hypotheses, ends, penalty[length])
        if length == longest:
            finished.offer(hypotheses, finished.scores[hypotheses.owner] == -np.inf, penalty[length])
            break
        going = ~ends & (hypotheses.total / penalty[longest] > finished.scores[hypotheses.owner])
        hypotheses = _Open(*(part[going] for part in hypotheses))
        last, state = hypotheses.ids[:, -1], take_rows(state, parents[going])
    return Decoded(_padded(finished.ids, c.pad), finished.scores)


def _extended(hypotheses: _Open, log_p: np.ndarray, width: int) -> tuple[np.ndarray, _Open]:
    """The `width` best continuations of each source, and which hypothesis each of them continues."""
    totals = hypotheses.total[:, None] + log_p  # (N, V)
    starts = np.flatnonzero(np.diff(hypotheses.owner, prepend=-1))
    best = [
        start * log_p.shape[1] + _largest(rows.ravel(), width)
        for start, rows in zip(starts, np.split(totals, starts[1:]), strict=True)
    ]
    parents, ids = np.divmod(np.concatenate(best), log_p.shape[1])
    longer = np.concatenate([hypotheses.ids[parents], ids[:, None]], axis=1)
    return parents, _Open(hypotheses.owner[parents], longer, totals[parents, ids])


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Where the `count` largest values stand, largest first, of equal ones the first; -inf is none of them."""
    at = np.flatnonzero(values > -np.inf)
    if len(at) > count:
        limit = np.partition(values, -count)[-count]
        at = np.flatnonzero(values >= limit)
    return at[np.argsort(-values[at], kind="stable")][:count]


def _padded(rows: list[np.ndarray], pad: int) -> np.ndarray:
    ids = np.full((len(rows), max(map(len, rows), default=0)), pad)
    for row, values in zip(ids, rows, strict=True):
        row[: len(values)] = values
    return ids


# ------------------------------------------------------------------------------------------------ shared


def take_rows(state: Any, rows: np.ndarray) -> Any:
    """`state` with rows `rows` (integers in host memory) of its arrays, in that order; a row may be taken twice.

    state: an array, a `Growing`, None, an int, or tuples, NamedTuples and lists of states. Axis 0 of every array is the
    batch.
    Raises TypeError for anything else.
    """
    if state is None or isinstance(state, int):
        return state
    if isinstance(state, Growing):
        return state.take(rows)
    if is_array(state):
        return state[to_device(rows, device_of(state))]
    if isinstance(state, list):
        return [take_rows(part, rows) for part in state]
    if isinstance(state, tuple):
        parts = [take_rows(part, rows) for part in state]
        return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    raise TypeError(f"take_rows takes arrays, ints and None in tuples and lists, got {type(state).__name__}")


def log_probabilities(who: str, logits: Array, config: Any) -> np.ndarray:
    """log softmax(logits), (N, V) float64 in host memory, with -inf for pad and bos. Raises FloatingPointError."""
    z = to_numpy(logits).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):  # what is not finite is found below
        z -= z.max(axis=1, keepdims=True)
        z -= np.log(np.exp(z).sum(axis=1, keepdims=True))
    z[:, [i for i in (config.pad, config.bos) if i >= 0]] = -np.inf
    if not np.isfinite(z.max(axis=1)).all():  # a single -inf is an id that cannot come
        raise FloatingPointError(f"{who}: the model's logits are not finite (NaN or inf)")
    return z


def _check(who: str, model: Any, source: Array, longest: int | None) -> int:
    check_integers(source, who)
    if source.ndim != 2:
        raise ValueError(f"{who} takes sources of shape (B, S), got {source.shape}")
    most = model.config.longest
    if longest is not None:
        check_integer(who, longest=longest)
    if longest is not None and not 1 <= longest <= most:
        raise ValueError(f"{who}: longest must be in 1..{most}, the most that the model takes, got {longest}")
    return most if longest is None else longest
