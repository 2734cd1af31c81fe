"""`gpulayers train gpt`: next-token prediction on text."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, cast

import numpy as np

from gpulayers.backend import device_of, to_device
from gpulayers.data import Batches, DataError, SubwordTokenizer, Tokenizer
from gpulayers.decoding import beam_search
from gpulayers.layers.feedforward import ACTIVATIONS
from gpulayers.models.continuation import Continuation
from gpulayers.models.gpt import GPT, GPTConfig
from gpulayers.models.huggingface import load_gpt2, read_config, read_tokenizer
from gpulayers.sampling import Sampling
from gpulayers.training.config import Config
from gpulayers.training.evaluate import Measurement, evaluate
from gpulayers.training.generate import check_stops, end_of, pieces, stream, until, write
from gpulayers.training.options import ConfigError, Options, fields, option
from gpulayers.training.tasks.task import Figures, Part, Saved, Task, Writing
from gpulayers.training.tasks.texts import (
    TOKENIZERS,
    TextOptions,
    TextTraining,
    first_tokens,
    read_texts,
    stored_tokenizer,
    tokenizer_of,
    validation_batches,
    validation_part,
    whole_files,
)

FINE_TUNING = 5e-5  # learning rate for weights that are good already

ABOUT = """\
Train a GPT on text. Without options: on Python's documentation, on the CPU, about two minutes on two cores."""


@dataclass(frozen=True)
class GPTOptions(Options):
    """Sizes of a GPT: the fields of `GPTConfig` but for the vocabulary, which the data decides.

    The defaults are for two minutes on two cores. rotary is on because a learned table of positions needs several times
    as many steps to look further back than one byte: training loss 2.39 against 1.68 after 650 steps of 512 bytes.
    """

    layers: int = option(4, "transformer blocks", at_least=1, at_most=10_000)
    heads: int = option(3, "attention heads; they share out dim", at_least=1)
    kv_heads: int | None = option(None, "key/value heads; must divide heads", at_least=1, default_text="as heads")
    dim: int = option(96, "width of the network", at_least=1, at_most=2**20)
    context: int = option(128, "longest sequence of tokens that the model sees", at_least=1)
    dropout: float = option(0.0, "share of activations that are dropped in training", at_least=0, below=1)
    bias: bool = option(True, "biases in linear layers and norms")
    rotary: bool = option(True, "rotary positions in the attention instead of a learned table")
    tied: bool = option(True, "the head is the token table")
    hidden: int | None = option(None, "width of the feed-forward", at_least=1, default_text="4 dim")
    activation: str = option("gelu_tanh", "of the feed-forward", choices=tuple(ACTIVATIONS))
    norm_eps: float = option(1e-5, "added to the variance in the norms", at_least=0)
    embedding_dropout: float | None = option(
        None, "dropout of the embedding", at_least=0, below=1, default_text="as dropout"
    )
    attention_dropout: float | None = option(
        None, "dropout of the attention weights", at_least=0, below=1, default_text="as dropout"
    )
    scale_attention: bool = option(True, "attention scores divided by the root of the head size")
    scale_by_layer: bool = option(False, "attention scores divided by the number of their block too")

    def complete(self) -> "GPTOptions":
        if self.dim % self.heads:
            raise ConfigError(f"heads must divide dim, got {self.heads} heads and dim {self.dim}")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ConfigError(f"kv_heads must divide heads, got {self.kv_heads} kv_heads and {self.heads} heads")
        if self.rotary and self.dim // self.heads % 2:
            size = self.dim // self.heads
            raise ConfigError(f"rotary needs an even head size, got dim / heads = {size}; or turn rotary off")
        return replace(self, kv_heads=self.kv_heads or self.heads)


@dataclass(frozen=True)
class GPTTraining(TextTraining):
    """How long, how much at a time, and where; what to start from."""

    start_from: str | None = option(
        None,
        "folder of a GPT-2 of transformers to start from: its sizes, weights and tokenizer, at a rate of 5e-5",
        flag="--from",
        metavar="FOLDER",
        default_text="random weights",
    )

    def complete(self) -> Self:
        folder = None if self.start_from is None else os.path.abspath(self.start_from)
        return replace(super().complete(), start_from=folder)


class GPTTask(Task):
    """Next-token prediction on text. tokenizer; validation: tokens of each file's last tenth."""

    about = ABOUT
    default = Config("gpt", GPTOptions(), TextOptions(), training=GPTTraining())
    model: GPT

    def __init__(self, config: Config, tokenizer: Tokenizer | None = None) -> None:
        """tokenizer: that of a run that goes on; its weights come from the checkpoint."""
        super().__init__(config)
        training, fresh = config.training, tokenizer is None
        text = read_texts(config.data, pretrained_tokenizer(config) if fresh else tokenizer, recorded=not fresh)
        self.digest, self.tokenizer, self.validation = text.digest, text.tokenizer, text.validation
        self.batches = Batches(text.train, config.model.context, training.batch, training.seed, text.names)
        if sum(len(part) - 1 for part in self.validation) < 1:
            raise DataError(f"{text.name} is too short: its validation part, the last tenth, is empty")
        start_from = training.start_from if fresh else None
        self.model = make_gpt(config, self.tokenizer.vocab_size, start_from)
        self.grain = config.model.context * config.model.dim
        self.description = (
            f"{text.name}: {sum(map(len, text.train)):,} {config.data.unit} to train on, "
            f"{sum(len(part) - 1 for part in self.validation):,} to measure on"
        )

    @classmethod
    def resumed(cls, config: Config, metadata: dict[str, Any]) -> "GPTTask":
        return cls(config, stored_tokenizer(metadata))

    def parts(self, k: int) -> Iterator[Part]:
        """ids (B, T) and targets (B, T): the ids one position further on."""
        training = self.config.training
        for first_sample, ids, targets in self.batches.micro_batches(k, training.accumulate):
            yield Part(first_sample, (to_device(ids, training.backend),), to_device(targets, training.backend))

    def measure(self) -> Figures:
        return {"val_loss": evaluate(self.model, self.validation_batches(), self.tokenizer).loss}

    def validation_batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The windows that the validation loss is measured on: (ids, targets), (B, T)."""
        return validation_batches(self.validation, self.config)

    def sample(self, step: int) -> str:
        """What the model writes at this step."""
        training = self.config.training
        sampling = Sampling(temperature=0.8, seed=(training.seed + step) % (1 << 63))
        ids = stream(self.model, first_tokens(self.tokenizer), training.sample_tokens, sampling)
        return "".join(pieces(self.tokenizer, ids))

    # ------------------------------------------------------------------------------------------------ saved models

    def metadata(self) -> dict[str, Any]:
        return {"tokenizer": self.tokenizer.to_json()}

    @classmethod
    def rebuild(cls, config: Config, metadata: dict[str, Any]) -> GPT:
        return make_gpt(config, stored_tokenizer(metadata).vocab_size)

    @classmethod
    def pretrained(cls, folder: Path, backend: str) -> Saved:
        """The model in a folder of transformers, as a checkpoint of step 0. Raises FileError, DataError."""
        config = cls.beginning_from(cls.default, os.fspath(folder)).with_training(backend=backend)
        tokenizer, model = read_tokenizer(folder, read_config(folder)), GPT.load(folder).to(backend)
        return Saved(folder, 0, config, model, {"tokenizer": tokenizer.to_json(), "data_digest": ""})

    @classmethod
    def evaluate(cls, saved: Saved, files: tuple[str, ...]) -> dict[str, str]:
        """Loss, perplexity and bits per byte of whole files, or of what training measured."""
        tokenizer = tokenizer_of(saved)
        name, batches = whole_files(saved, tokenizer, files) if files else validation_part(saved, tokenizer)
        found: Measurement = evaluate(saved.model, batches, tokenizer)
        return {
            "text": name,
            "tokens": f"{found.tokens}",
            "loss": f"{found.loss:.6f} nats a token",
            "perplexity": f"{found.perplexity:.4f}",
            "bits per byte": f"{found.bits_per_byte:.6f}",
        }

    @classmethod
    def generate(cls, saved: Saved, writing: Writing, sampling: Sampling) -> Iterator[str]:
        """The prompt and what follows it."""
        prompt, tokenizer = "\n" if writing.prompt is None else writing.prompt, tokenizer_of(saved)
        if writing.beam == 1 or end_of(tokenizer) is None:  # otherwise what ends sooner may win
            writing.refuse("gpt", "length_penalty")
        tokens = 500 if writing.tokens is None else writing.tokens
        if writing.beam > 1:
            written = searched(saved, tokenizer, prompt, tokens, writing, sampling)
        else:
            options: dict[str, Any] = {
                name: getattr(writing, name) for name in ("stop", "slide", "cut_prompt", "cache")
            }
            written = write(saved.model, tokenizer, prompt, tokens, sampling, **options)
        return (piece for part in ([prompt], written, ["\n"]) for piece in part)

    @classmethod
    def export(cls, saved: Saved, folder: str) -> None:
        """A folder of transformers. Raises ConfigError for a model that is no GPT-2, with rotary positions say."""
        tokenizer, model = tokenizer_of(saved), cast(GPT, saved.model)
        try:
            model.save_pretrained(folder, tokenizer if isinstance(tokenizer, SubwordTokenizer) else None)
        except ValueError as error:
            raise ConfigError(f"{saved.path} cannot be written for transformers: {error}") from error

    @classmethod
    def beginning_from(cls, config: Config, folder: str) -> Config:
        sizes = vars(read_config(folder))
        return replace(
            config,
            model=GPTOptions(**{name: sizes[name] for name in fields(GPTOptions)}),
            data=replace(config.data, tokens=folder),
            optimizer=replace(config.optimizer, lr=FINE_TUNING),
        )

    @classmethod
    def tiny(cls, config: Config) -> Config:
        model = replace(config.model, layers=1, heads=2, dim=32, context=16)
        return replace(super().tiny(config), model=model).with_training(eval_tokens=64, sample_tokens=8)


def searched(
    saved: Saved, tokenizer: Tokenizer, prompt: str, tokens: int, writing: Writing, sampling: Sampling
) -> Iterator[str]:
    """The likeliest text of `tokens` tokens that beam search finds. Raises ConfigError for what a search cannot do."""
    writing.refuse("a search", "slide", "cut_prompt", "cache")
    if sampling != Sampling():
        raise ConfigError("--beam above 1 draws nothing: leave the options of sampling away")
    model: Any = saved.model
    ids, context = tokenizer.encode(prompt), model.config.context
    room = context + 1 - len(ids)
    if room < 1:
        raise ConfigError(f"the prompt has {len(ids)} tokens and the model sees {context}: shorten it")
    if writing.tokens is None:
        tokens = min(tokens, room)
    if tokens > room:
        raise ConfigError(
            f"--beam keeps all of a text in view: a prompt of {len(ids)} tokens and {tokens} more do not fit into the "
            f"context of {context}; ask for at most {room} by --tokens"
        )
    check_stops(writing.stop)
    if tokens == 0:
        return iter(())
    source = to_device(np.asarray(ids, np.int64)[None], device_of(next(model.parameters()).data))
    goal = Continuation(model, tokens, end_of(tokenizer))
    found = beam_search(goal, source, width=writing.beam, length_penalty=writing.length_penalty)
    best = found.ids[0].tolist()
    return until(pieces(tokenizer, (i for i in best if i not in (goal.config.eos, goal.config.pad)), ids), writing.stop)


def make_gpt(config: Config, vocab: int, start_from: str | None = None) -> GPT:
    """The network of the run on its device, at its initial values, or with those of a folder of transformers."""
    options: dict[str, Any] = vars(config.model)
    sizes, training = GPTConfig(vocab=vocab, **options), config.training
    if start_from is None:
        model = GPT(sizes, seed=training.seed, dtype=training.dtype)
    else:
        model = load_gpt2(start_from, training.dtype, sizes)
    return model.to(training.backend)


def pretrained_tokenizer(config: Config) -> Tokenizer | None:
    """The tokenizer that the run names by its path, fitted to the model that it starts from; None for others."""
    start_from, path = config.training.start_from, config.data.tokens
    return None if start_from is None or path in TOKENIZERS else read_tokenizer(path, read_config(start_from))
