"""What the tasks on text share: options, the tokens of what is read, the tokenizer that a checkpoint keeps."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpulayers.data import (
    DataError,
    Prepared,
    Tokenizer,
    prepare,
    tokenizer_from_json,
    validation_windows,
)
from gpulayers.training.config import Config, TrainingOptions
from gpulayers.training.options import ConfigError, Options, option, suggestion
from gpulayers.training.tasks.task import Saved

TOKENIZERS = {"bytes": "byte", "characters": "char", "bpe": "bpe"}
BPE_SIZE = 4096


@dataclass(frozen=True)
class TextOptions(Options):
    """What is read."""

    files: tuple[str, ...] = option(
        (),
        "UTF-8 text files, .jsonl files, or folders of them",
        flag="--data",
        metavar="FILE",
        default_text="Python's documentation",
    )
    tokens: str = option(
        "bytes",
        "what a token is: bytes, characters, bpe (pieces of words, found in the data), a tokenizer.json or its folder",
        flag="--tokenizer",
        alias="--tokens",
        metavar="bytes|characters|bpe|PATH",
    )
    vocab_size: int | None = option(None, "bpe: tokens to find", at_least=257, default_text=str(BPE_SIZE))
    text_field: str = option("text", "field of the lines of .jsonl files that holds the text", metavar="NAME")
    cache: str | None = option(
        None,
        "keep the tokens in this folder, for the next run on the same text",
        metavar="DIR",
        default_text="the user's cache folder, for more than 32 MB of text",
    )

    def complete(self) -> "TextOptions":
        tokens, vocab_size = self.tokens, self.vocab_size
        if tokens not in TOKENIZERS:
            if not os.path.exists(tokens):
                raise ConfigError(
                    f"--tokenizer must be bytes, characters, bpe, a tokenizer.json or its folder, got {tokens!r}"
                    f"{suggestion(tokens, TOKENIZERS)}"
                )
            tokens = os.path.abspath(tokens)
        if tokens == "bpe":
            vocab_size = vocab_size or BPE_SIZE
        elif vocab_size is not None:
            raise ConfigError(f"--vocab-size is for --tokenizer bpe, not for {tokens}")
        return replace(
            self,
            files=tuple(os.path.abspath(file) for file in self.files),
            tokens=tokens,
            vocab_size=vocab_size,
            cache=None if self.cache is None else os.path.abspath(self.cache),
        )

    @property
    def unit(self) -> str:
        """What tokens are called."""
        return self.tokens if self.tokens in ("bytes", "characters") else "tokens"


@dataclass(frozen=True)
class TextTraining(TrainingOptions):
    """How long, how much at a time, and where; how much to measure and to write."""

    eval_tokens: int = option(65536, "validation tokens that are measured, at most", at_least=1)
    sample_tokens: int = option(200, "tokens of a sample", at_least=1)


def read_texts(data: TextOptions, tokenizer: Tokenizer | None = None, recorded: bool = False) -> Prepared:
    """The tokens of what the options name.

    tokenizer: instead of the one that they name. recorded: they come from a checkpoint, not from the user.
    """
    kind, files = TOKENIZERS.get(data.tokens, data.tokens), data.files or None
    return prepare(files, tokenizer or kind, data.vocab_size, data.text_field, data.cache, recorded=recorded)


def stored_tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    """The tokenizer of a checkpoint. Raises DataError."""
    return tokenizer_from_json(metadata.get("tokenizer"))


def tokenizer_of(saved: Saved) -> Tokenizer:
    return stored_tokenizer(saved.metadata)


def first_tokens(tokenizer: Tokenizer) -> np.ndarray:
    """What a sample goes on from: a new line, or the first token where the vocabulary has none."""
    try:
        found = tokenizer.encode("\n")
    except DataError:
        found = np.zeros(0, np.int64)
    return found if len(found) else np.zeros(1, np.int64)


# ------------------------------------------------------------------------------------------------ measuring


def whole_files(saved: Saved, tokenizer: Tokenizer, files: tuple[str, ...]) -> tuple[str, Any]:
    """(name, windows) of files that `evaluate` was given."""
    data, config = saved.config.data, saved.config
    found = prepare(files, tokenizer, field=data.text_field, whole=True)
    return found.name, validation_windows(found.train, config.model.context, config.training.batch)


def validation_part(saved: Saved, tokenizer: Tokenizer) -> tuple[str, Any]:
    """(name, windows) of what training measured. Raises DataError if the files have changed since."""
    if not saved.metadata["data_digest"]:
        raise ConfigError(f"{saved.path} comes without the text that it was trained on: name files by --data")
    found = read_texts(saved.config.data, tokenizer, recorded=True)
    if found.digest != saved.metadata["data_digest"]:
        raise DataError(f"{found.name} is not what the model was trained on: its digest differs; name files by --data")
    return f"validation part of {found.name}", validation_batches(found.validation, saved.config)


def validation_batches(tokens: list[np.ndarray], config: Config) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """At most `eval_tokens` of the validation tokens, in windows that are spread evenly."""
    limit = -(-config.training.eval_tokens // config.model.context)
    return validation_windows(tokens, config.model.context, config.training.batch, limit)
