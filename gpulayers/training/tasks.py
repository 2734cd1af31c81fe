"""What a run trains: data, network and samples of one task. The loop knows no more of it than this file offers."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpulayers.backend import Array, to_device
from gpulayers.data import (
    Batches,
    DataError,
    Tokenizer,
    encode_split,
    load_corpus,
    make_tokenizer,
    validation_windows,
)
from gpulayers.models.gpt import GPT, GPTConfig
from gpulayers.training.config import Config
from gpulayers.training.generate import Sampling, pieces, stream

TOKENIZERS = {"bytes": "byte", "characters": "char"}


class GPTTask:
    """Next-token prediction on text.

    model, tokenizer; digest: of the data; description: of the data, for people.
    Raises DataError where the data cannot be used, `GPUUnavailable` where the backend cannot.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        options, training = config.model, config.training
        corpus = load_corpus(config.data.files or None)
        self.digest = corpus.digest
        self.tokenizer = make_tokenizer(TOKENIZERS[config.data.tokens], corpus)
        train, self.validation = encode_split(corpus, self.tokenizer)
        self.batches = Batches(train, options.context, training.batch, training.seed, corpus.names)
        if sum(len(part) - 1 for part in self.validation) < 1:
            raise DataError(f"{corpus.name} is too short: its validation part, the last tenth, is empty")
        self.model = make_gpt(config, self.tokenizer.vocab_size)
        self.description = (
            f"{corpus.name}: {sum(map(len, train)):,} {config.data.tokens} to train on, "
            f"{sum(len(part) - 1 for part in self.validation):,} to measure on"
        )

    def parts(self, k: int) -> Iterator[tuple[int, Array, Array]]:
        """Batch k in its micro-batches: (index of the first sample, ids (B, T), targets (B, T)), on the device."""
        training = self.config.training
        for first_sample, ids, targets in self.batches.micro_batches(k, training.accumulate):
            yield first_sample, to_device(ids, training.backend), to_device(targets, training.backend)

    def validation_batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The windows that the validation loss is measured on: (ids, targets), (B, T)."""
        return validation_batches(self.validation, self.config)

    def sample(self, step: int) -> str:
        """What the model writes at this step."""
        training = self.config.training
        sampling = Sampling(temperature=0.8, seed=(training.seed + step) % (1 << 63))
        ids = stream(self.model, first_tokens(self.tokenizer), training.sample_tokens, sampling)
        return "".join(pieces(self.tokenizer, ids))


def make_gpt(config: Config, vocab: int) -> GPT:
    """The network of the run, at its initial values, on its device."""
    options: dict[str, Any] = vars(config.model)
    model = GPT(GPTConfig(vocab=vocab, **options), seed=config.training.seed, dtype=config.training.dtype)
    return model.to(config.training.backend)


def validation_batches(tokens: list[np.ndarray], config: Config) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """At most `eval_tokens` of the validation tokens, in windows that are spread evenly."""
    limit = -(-config.training.eval_tokens // config.model.context)
    return validation_windows(tokens, config.model.context, config.training.batch, limit)


def first_tokens(tokenizer: Tokenizer) -> np.ndarray:
    """What a sample goes on from: a new line, or the first token where the vocabulary has none."""
    try:
        return tokenizer.encode("\n")
    except DataError:
        return np.zeros(1, np.int64)


TASKS = {"gpt": GPTTask}
