"""`gpulayers train feedforward`: the next byte of a text from the few before it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulayers.backend import Array, array_module, to_device
from gpulayers.data import IGNORE, Batches, DataError, Tokenizer
from gpulayers.data.batches import Pair, validation_windows
from gpulayers.models.feedforward import ACTIVATIONS, AROUND, INITS, FeedForwardConfig, FeedForwardNet
from gpulayers.ops.cross_entropy import cross_entropy_inplace
from gpulayers.sampling import Sampling
from gpulayers.training.config import Config, OptimizerOptions
from gpulayers.training.generate import pieces, stream, write
from gpulayers.training.options import ConfigError, Options, option
from gpulayers.training.tasks.task import Figures, Part, Saved, Task, Writing
from gpulayers.training.tasks.texts import (
    TextOptions,
    TextTraining,
    first_tokens,
    read_texts,
    stored_tokenizer,
    tokenizer_of,
)

ABOUT = """\
Train the feed-forward network by hand (Bengio et al. 2003): the next byte from the few before it. Without options: on
Python's documentation, on the CPU, under a minute on two cores."""


@dataclass(frozen=True)
class FeedForwardOptions(Options):
    """Sizes and forms of the network: see `FeedForwardConfig`, whose widths are `width` for each of `layers`."""

    context: int = option(8, "tokens that the next one is predicted from", at_least=1)
    dim: int = option(16, "width of the embedding", at_least=1, at_most=2**20)
    layers: int = option(2, "hidden layers", at_least=0, at_most=10_000)
    width: int = option(256, "units of a hidden layer", at_least=1, at_most=2**20)
    activation: str = option("tanh", "of the hidden layers", choices=tuple(ACTIVATIONS))
    init: str = option("xavier", "initial values", choices=INITS)
    around: str = option("plain", "what is around a hidden layer", choices=AROUND)
    dropout: float = option(0.0, "share of the hidden units that are dropped in training", at_least=0, below=1)


class FeedForwardTask(Task):
    """Next-token prediction from a fixed number of tokens. tokenizer; held_out: (ids (B, context), targets (B,))."""

    about = ABOUT
    default = Config(
        "feedforward",
        FeedForwardOptions(),
        TextOptions(),
        optimizer=OptimizerOptions(lr=3e-3, weight_decay=0.01),
        training=TextTraining(steps=2500, batch=256, eval_every=500, sample_every=500, save_every=500),
    )
    model: FeedForwardNet

    def __init__(self, config: Config, tokenizer: Tokenizer | None = None) -> None:
        """tokenizer: that of a run that goes on."""
        super().__init__(config)
        check_parts(config)
        text = read_texts(config.data, tokenizer, recorded=tokenizer is not None)
        self.digest, self.tokenizer = text.digest, text.tokenizer
        context, training = config.model.context, config.training
        self.batches = Batches(text.train, context, training.batch, training.seed, text.names)
        self.held_out = list(last_targets(text.validation, config))
        if not self.held_out:
            raise DataError(
                f"{text.name} is too short: its validation part, the last tenth, has no {context + 1} tokens in a row"
            )
        self.model = make_net(config, self.tokenizer.vocab_size)
        self.grain = config.model.width
        self.description = (
            f"{text.name}: {sum(map(len, text.train)):,} {config.data.unit} to train on, "
            f"{sum(len(targets) for _, targets in self.held_out):,} to measure on"
        )

    @classmethod
    def resumed(cls, config: Config, metadata: dict[str, Any]) -> "FeedForwardTask":
        return cls(config, stored_tokenizer(metadata))

    def parts(self, k: int) -> Iterator[Part]:
        """ids (B, context) and targets (B,)."""
        training = self.config.training
        for first_sample, ids, targets in self.batches.micro_batches(k, training.accumulate):
            last = np.ascontiguousarray(targets[:, -1])
            yield Part(first_sample, (to_device(ids, training.backend),), to_device(last, training.backend))

    def measure(self) -> Figures:
        total, count = 0.0, 0
        for ids, targets in self.held_out:
            logits = self.model(to_device(ids, self.config.training.backend))  # (B, V)
            loss, _ = cross_entropy_inplace(
                logits, to_device(targets, self.config.training.backend), reduction="sum", ignore_index=IGNORE
            )
            total, count = total + float(loss), count + len(targets)
        return {"val_loss": total / count}

    def sample(self, step: int) -> str:
        """What the model writes at this step."""
        training = self.config.training
        sampling = Sampling(temperature=0.8, seed=(training.seed + step) % (1 << 63))
        ids = stream(LastTokens(self.model), first_tokens(self.tokenizer), training.sample_tokens, sampling)
        return "".join(pieces(self.tokenizer, ids))

    # ------------------------------------------------------------------------------------------------ saved models

    def metadata(self) -> dict[str, Any]:
        return {"tokenizer": self.tokenizer.to_json()}

    @classmethod
    def rebuild(cls, config: Config, metadata: dict[str, Any]) -> FeedForwardNet:
        return make_net(config, stored_tokenizer(metadata).vocab_size)

    @classmethod
    def generate(cls, saved: Saved, writing: Writing, sampling: Sampling) -> Iterator[str]:
        """The prompt and what follows it."""
        writing.refuse("feedforward", "beam", "length_penalty", "slide", "cut_prompt", "cache")
        prompt, tokenizer = "\n" if writing.prompt is None else writing.prompt, tokenizer_of(saved)
        if not prompt:
            raise ConfigError("--prompt is empty: give at least one character to go on from")
        tokens = 500 if writing.tokens is None else writing.tokens
        written = write(LastTokens(saved.model), tokenizer, prompt, tokens, sampling, stop=writing.stop)
        return (piece for part in ([prompt], written, ["\n"]) for piece in part)

    @classmethod
    def tiny(cls, config: Config) -> Config:
        model = FeedForwardOptions(context=4, dim=4, layers=1, width=16)
        return Config("feedforward", model, config.data, config.optimizer, config.training).with_training(
            steps=5, batch=4, eval_tokens=16, sample_tokens=8
        )


class LastTokens:
    """The network as a model of sequences that are at most `context` long: a shorter one is filled up in front with its
    first token. ids: (B, T). logits: (B, 1, V), those of the last position."""

    def __init__(self, model: Any) -> None:
        self.model, self.config, self.parameters = model, model.config, model.parameters

    def __call__(self, ids: Array) -> Array:
        missing = self.config.context - ids.shape[1]
        filled = array_module(ids).concatenate([ids[:, :1].repeat(missing, axis=1), ids], axis=1)
        return self.model(filled)[:, None]


def check_parts(config: Config) -> None:
    """BatchNorm takes its statistics from a part of the batch: one value of a channel has no variance."""
    batch, accumulate = config.training.batch, config.training.accumulate
    if config.model.around == "batchnorm" and batch // accumulate < 2:
        raise ConfigError(
            f"around batchnorm needs 2 samples in each part of a batch, got a batch of {batch} in {accumulate} parts"
        )


def make_net(config: Config, vocab: int) -> FeedForwardNet:
    """The network of the run, at its initial values, on its device."""
    o = config.model
    widths = (o.width,) * o.layers
    sizes = FeedForwardConfig(vocab, o.context, o.dim, widths, o.activation, o.init, o.around, o.dropout)
    return FeedForwardNet(sizes, config.training.seed, config.training.dtype).to(config.training.backend)


def last_targets(tokens: list[np.ndarray], config: Config) -> Iterator[Pair]:
    """At most `eval_tokens` whole windows of the validation tokens, spread evenly, and the token behind each."""
    whole = [part for part in tokens if len(part) > config.model.context]
    if whole:
        limit, batch = config.training.eval_tokens, config.training.batch
        for ids, targets in validation_windows(whole, config.model.context, batch, limit):
            rows = targets[:, -1] != IGNORE  # the end of a file fills no window
            if rows.any():
                yield ids[rows], np.ascontiguousarray(targets[rows, -1])
