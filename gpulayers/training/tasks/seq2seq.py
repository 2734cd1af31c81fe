"""`gpulayers train seq2seq`: one text to another, with a recurrent network or a Transformer."""

import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpulayers.backend import to_device
from gpulayers.data import DataError
from gpulayers.data.dates import ALL_STYLES, date_digest, date_pair, date_symbols, days
from gpulayers.data.pairs import (
    TOKENS,
    Pair,
    PairBatches,
    Vocabulary,
    digest_of,
    file_pair,
    read_pairs,
    split_pairs,
    symbols,
    vocabulary_from_json,
)
from gpulayers.decoding import beam_search, sample_decode
from gpulayers.models.recurrent_decoder import DECODERS
from gpulayers.models.seq2seq import CONTEXTS, NETWORKS, Seq2Seq, Seq2SeqConfig
from gpulayers.models.transformer import POSITIONS, Transformer, TransformerConfig
from gpulayers.sampling import Sampling
from gpulayers.training.config import Config, OptimizerOptions, TrainingOptions
from gpulayers.training.options import ConfigError, Options, fields, flag, option
from gpulayers.training.pictures import plot_attention
from gpulayers.training.tasks.task import Figures, Part, Saved, Task, Writing, shown
from gpulayers.training.translator import Translator

ABOUT = """\
Train a model that turns one text into another. Without options: a recurrent network with attention that reads dates in
many styles and writes them as ISO 8601, on the CPU, about three minutes on two cores. --model transformer takes a
Transformer; --data FILE.tsv takes pairs of your own, a line each: source TAB target."""

Vocabularies = tuple[Vocabulary, Vocabulary]


OF_FORM = {  # options that the other form of the network has no use for
    "recurrent": ("cell", "bidirectional", "context", "decoder", "sampling", "sampling_steps"),
    "transformer": ("heads", "norm_first", "positions", "tied"),
}


@dataclass(frozen=True)
class Seq2SeqOptions(Options):
    """Form and sizes of the network. Those of the other form must stay as they are."""

    kind: str = option("recurrent", "form of the network", choices=("recurrent", "transformer"), flag="--model")
    dim: int | None = option(
        None, "width of an embedding, and of the transformer", at_least=1, at_most=2**20,
        default_text="64",
    )  # fmt: skip
    hidden: int | None = option(
        None, "width of a recurrent state, or of the transformer's feed-forward", at_least=1, at_most=2**20,
        default_text="recurrent: 96; transformer: 4 dim",
    )  # fmt: skip
    layers: int | None = option(
        None, "of the encoder, and as many of the decoder", at_least=1, at_most=10_000,
        default_text="recurrent: 1; transformer: 2",
    )  # fmt: skip
    dropout: float = option(0.0, "share of activations that are dropped in training", at_least=0, below=1)
    cell: str = option("gru", "recurrent: what a step computes", choices=tuple(NETWORKS))
    bidirectional: bool = option(True, "recurrent: the encoder reads in both directions")
    context: str | None = option(
        None, "recurrent: the source in one vector", choices=tuple(CONTEXTS), default_text="both, or last"
    )
    decoder: str = option(
        "additive", "recurrent: what the decoder is told of the source; additive, dot, general: attention",
        choices=tuple(DECODERS),
    )  # fmt: skip
    sampling: float = option(
        0.0, "recurrent: how often training feeds the decoder its own symbol in place of the target's", at_least=0,
        at_most=1, flag="--scheduled-sampling",
    )  # fmt: skip
    sampling_steps: int = option(0, "recurrent: steps in which that share rises from 0", at_least=0)
    heads: int = option(4, "transformer: attention heads; they share out dim", at_least=1)
    norm_first: bool = option(True, "transformer: normalise before each sub-layer, not after it")
    positions: str = option("sinusoidal", "transformer: how it knows places", choices=POSITIONS)
    tied: bool = option(False, "transformer: one vocabulary, and one table for embeddings and head")

    def complete(self) -> "Seq2SeqOptions":
        for name in OF_FORM["transformer" if self.kind == "recurrent" else "recurrent"]:
            if getattr(self, name) != fields(self)[name].default:
                raise ConfigError(f"{flag(fields(self)[name])} is not for --model {self.kind}: it would change nothing")
        if self.kind == "recurrent":
            context = self.context or ("both" if self.bidirectional else "last")
            if context == "both" and not self.bidirectional:
                raise ConfigError("context both needs a bidirectional encoder; last is that of one direction")
            if self.decoder == "dot" and self.bidirectional:
                raise ConfigError("decoder dot needs --no-bidirectional; general takes both directions")
            sizes = {"dim": 64, "hidden": 96, "layers": 1}
        else:
            context, dim = self.context, self.dim or 64
            sizes = {"dim": dim, "hidden": 4 * dim, "layers": 2}
            if dim % self.heads:
                raise ConfigError(f"heads must divide dim, got {self.heads} heads and dim {dim}")
        chosen = {name: getattr(self, name) or size for name, size in sizes.items()}
        return replace(self, context=context, **chosen)

    @property
    def attends(self) -> bool:
        """Whether there is a picture of where the model looks."""
        return self.kind == "transformer" or self.decoder in ("additive", "dot", "general")


@dataclass(frozen=True)
class PairOptions(Options):
    """What is read."""

    files: tuple[str, ...] = option(
        (), "UTF-8 files, a pair in each line: source TAB target", flag="--data", metavar="FILE.tsv",
        default_text="dates",
    )  # fmt: skip
    arithmetic: float = option(
        0.01, "dates: share that asks for arithmetic, as in the day after 2 March 2024", at_least=0, at_most=1
    )
    tokens: str = option("characters", "what a symbol is", choices=TOKENS)
    longest: int = option(64, "most symbols of a source or a target", at_least=1, at_most=2**20)
    vocabulary: int = option(20_000, "most symbols of a vocabulary; the rarer ones are unknown", at_least=1)

    def complete(self) -> "PairOptions":
        if not self.files and self.tokens != "characters":
            raise ConfigError("dates are read by characters: --tokens words is for pairs of your own, --data FILE.tsv")
        if not self.files and self.longest < 36:
            raise ConfigError(f"dates have up to 36 characters: --longest must be at least that, got {self.longest}")
        return replace(self, files=tuple(os.path.abspath(file) for file in self.files))


@dataclass(frozen=True)
class PairTraining(TrainingOptions):
    """How long, how much at a time, and where; how much to measure and to show."""

    label_smoothing: float = option(0.0, "part of each target that is spread over all symbols", at_least=0, at_most=1)
    eval_pairs: int = option(1000, "pairs that are measured, at most", at_least=1)
    sample_pairs: int = option(5, "pairs of a sample", at_least=1)


class Seq2SeqTask(Task):
    """Pairs of texts. vocabularies: of the sources and of the targets; validation: the pairs that are measured."""

    about = ABOUT
    default = Config(
        "seq2seq",
        Seq2SeqOptions(),
        PairOptions(),
        OptimizerOptions(lr=3e-3, weight_decay=0.01),
        PairTraining(steps=1500, batch=32),
    )
    sampling = Sampling(temperature=0.0)
    model: Seq2Seq | Transformer

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.loss_options = {"label_smoothing": config.training.label_smoothing}
        stream, self.vocabularies = self._dates() if not config.data.files else self._files()
        self.batches = PairBatches(stream, self.vocabularies, config.training.batch)
        self.model = make_model(config, self.vocabularies)

    def _dates(self) -> tuple[Any, Vocabularies]:
        """The stream of pairs to train on, and the vocabularies."""
        seed, count, share = self.config.training.seed, self.config.training.eval_pairs, self.config.data.arithmetic
        self.digest = date_digest(seed, share)
        self.validation = [date_pair(seed, i, True, share) for i in range(count)]
        self.description = (
            f"dates in {len(ALL_STYLES)} styles to ISO 8601: {len(days(False)):,} days to train on, "
            f"{count:,} pairs of {len(days(True)):,} other days to measure on"
        )
        stream = functools.partial(date_pair, seed, arithmetic=share)
        return stream, made(self.config, *("".join(part) for part in date_symbols()))

    def _files(self) -> tuple[Any, Vocabularies]:
        data, training = self.config.data, self.config.training
        pairs = [pair for file in data.files for pair in read_pairs(file, data.tokens, data.longest)]
        self.digest = digest_of(pairs)
        name = data.files[0] if len(data.files) == 1 else f"{data.files[0]} and {len(data.files) - 1} more"
        train, validation = split_pairs(pairs, training.seed, name)
        count = min(training.eval_pairs, len(validation))
        self.validation = [validation[i * len(validation) // count] for i in range(count)]
        self.description = f"{name}: {len(train):,} pairs to train on, {count:,} to measure on"
        stream = functools.partial(file_pair, train, training.seed)
        return stream, made(self.config, *("\n".join(column) for column in zip(*train, strict=True)))

    # ------------------------------------------------------------------------------------------------ training

    def parts(self, k: int) -> Iterator[Part]:
        """source (B, S) and decoder input (B, T); targets (B, T)."""
        training = self.config.training
        for first_sample, arrays in self.batches.micro_batches(k, training.accumulate):
            source, inputs, targets = (to_device(a, training.backend) for a in arrays)
            yield Part(first_sample, (source, inputs), targets)

    def measure(self) -> Figures:
        """The loss without label smoothing, and the share of greedy answers that are right symbol for symbol."""
        loss, accuracy = self._translator.measure(self.validation, self.config.training.batch)
        return {"val_loss": loss, "val_accuracy": accuracy}

    def sample(self, step: int) -> str:
        """Pairs that are not trained on, others at each step, with what the model answers."""
        count = self.config.training.sample_pairs
        pairs = [self.validation[(step + i) % len(self.validation)] for i in range(count)]
        answers = self._translator.answers([pair.source for pair in pairs])
        return "\n".join(compared(pair, answer) for pair, answer in zip(pairs, answers, strict=True))

    def pictures(self, folder: Path, step: int) -> None:
        """attention.png: where the model looks while it answers, for the longest of the first pairs."""
        if not self.config.model.attends:
            return
        longest = sorted(self.validation[:20], key=lambda pair: -len(pair.source))[:2]
        try:
            looks = [self._translator.look(pair.source) for pair in longest]
        except FloatingPointError:  # the loop says that training has come to that
            return
        plot_attention(looks, folder / "attention.png", f"{folder.name}: attention at step {step}")

    @property
    def _translator(self) -> Translator:
        return Translator(self.model, self.vocabularies)

    # ------------------------------------------------------------------------------------------------ saved models

    def metadata(self) -> dict[str, Any]:
        return {"vocabularies": [vocabulary.to_json() for vocabulary in self.vocabularies]}

    @classmethod
    def rebuild(cls, config: Config, metadata: dict[str, Any]) -> Seq2Seq | Transformer:
        return make_model(config, stored_vocabularies(metadata))

    @classmethod
    def evaluate(cls, saved: Saved, files: tuple[str, ...]) -> dict[str, str]:
        """Loss and exact match of all pairs of the files, or of what training measured."""
        if not files:
            return super().evaluate(saved, files)
        data = saved.config.data
        pairs = [pair for file in files for pair in read_pairs(file, data.tokens, data.longest)]
        translator = Translator(saved.model, stored_vocabularies(saved.metadata))
        loss, accuracy = translator.measure(pairs, saved.config.training.batch)
        figures = {"val_loss": loss, "val_accuracy": accuracy}
        return {"data": f"{', '.join(files)}: {len(pairs):,} pairs"} | shown(figures, cls.units)

    @classmethod
    def generate(cls, saved: Saved, writing: Writing, sampling: Sampling) -> Iterator[str]:
        """An answer to each line of the prompt."""
        writing.refuse("seq2seq", "stop", "slide", "cut_prompt", "cache")
        if writing.prompt is None:
            raise ConfigError("--prompt is missing: give the text to answer; of several lines, each by itself")
        translator, data = Translator(saved.model, stored_vocabularies(saved.metadata)), saved.config.data
        lines = writing.prompt.removesuffix("\n").replace("\r\n", "\n").split("\n")
        for n, line in enumerate(lines, 1):
            if not line.strip():
                raise ConfigError(f"line {n} of --prompt is empty: each line is answered by itself")
            if (length := len(symbols(line, data.tokens))) > data.longest:
                raise DataError(
                    f"line {n} of --prompt has {length} {data.tokens}, more than the {data.longest} that the model "
                    "was made for"
                )
        if writing.tokens == 0:
            return ("\n" for _ in lines)
        answers = translator.answers(lines, decoder_for(saved.model, writing, sampling))
        return (f"{answer}\n" for answer in answers)

    @classmethod
    def tiny(cls, config: Config) -> Config:
        model = replace(config.model, dim=8, hidden=16, layers=1)
        return replace(super().tiny(config), model=model).with_training(eval_pairs=2, sample_pairs=1)


def made(config: Config, sources: str, targets: str) -> Vocabularies:
    """The vocabularies of the texts; a tied model has one for both."""
    o, data = config.model, config.data
    if o.kind == "transformer" and o.tied:
        sources = targets = f"{sources}\n{targets}"
    lines = [text.split("\n") for text in (sources, targets)]
    first, second = (Vocabulary.of(part, data.tokens, data.vocabulary) for part in lines)
    return first, second


def stored_vocabularies(metadata: dict[str, Any]) -> Vocabularies:
    first, second = (vocabulary_from_json(value) for value in metadata["vocabularies"])
    return first, second


def make_model(config: Config, vocabularies: Vocabularies) -> Seq2Seq | Transformer:
    """The network of the run, at its initial values, on its device."""
    o, training = config.model, config.training
    names = ("dim", "hidden", "layers", "dropout")
    names += ("heads", "norm_first", "positions", "tied") if o.kind == "transformer" else ()
    names += ("cell", "bidirectional", "context", "decoder", "sampling", "sampling_steps") * (o.kind == "recurrent")
    options: dict[str, Any] = {name: getattr(o, name) for name in names}
    options["longest"] = config.data.longest + 1  # eos
    sizes = (len(vocabularies[0]), len(vocabularies[1]))
    if o.kind == "transformer":
        model = Transformer(TransformerConfig(*sizes, **options), seed=training.seed, dtype=training.dtype)
    else:
        model = Seq2Seq(Seq2SeqConfig(*sizes, **options), seed=training.seed, dtype=training.dtype)
    return model.to(training.backend)


def decoder_for(model: Any, writing: Writing, sampling: Sampling) -> Any:
    """How `generate` decodes: (model, source) -> Decoded."""
    most = model.config.longest
    longest = most if writing.tokens is None else min(writing.tokens, most)
    if writing.beam > 1:
        if sampling.temperature > 0:
            raise ConfigError("--beam above 1 draws nothing: leave --temperature away")
        options: dict[str, Any] = {"width": writing.beam, "length_penalty": writing.length_penalty}
        return functools.partial(beam_search, longest=longest, **options)
    if sampling.repetition_penalty != 1:
        raise ConfigError("--repetition-penalty is not for seq2seq: an answer may have to repeat a word of itself")
    drawing = {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p", "seed")}
    return functools.partial(sample_decode, longest=longest, **drawing)


def compared(pair: Pair, answer: str) -> str:
    """A line that shows the answer, and the target where that is another."""
    return f"{pair.source} -> {answer}" + ("" if answer == pair.target else f"   (not {pair.target})")
