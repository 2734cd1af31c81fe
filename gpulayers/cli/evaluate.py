"""`gpulayers evaluate RUN`: measure a trained model."""

import argparse
from dataclasses import dataclass
from typing import Any

from gpulayers.cli.arguments import Parser, add_options, given
from gpulayers.cli.saved import add_saved, opened
from gpulayers.data import DataError, encode_split, load_corpus, validation_windows
from gpulayers.training.evaluate import evaluate
from gpulayers.training.options import option
from gpulayers.training.run import Saved
from gpulayers.training.tasks import validation_batches


@dataclass(frozen=True)
class EvaluateOptions:
    """What to measure."""

    files: tuple[str, ...] = option(
        (), "UTF-8 text files, measured whole", flag="--data", metavar="FILE", default_text="the run's validation part"
    )


def add_parser(commands: Any, words: list[str]) -> Parser:
    parser = commands.add_parser(
        "evaluate",
        usage="gpulayers evaluate RUN [options]",
        help="measure a trained model",
        description="Print the loss, perplexity and bits a byte of a trained model, as training measures them.",
    )
    add_options(parser.add_argument_group("text"), EvaluateOptions(), "evaluate")
    add_saved(parser)
    return parser


def run(namespace: argparse.Namespace) -> int:
    options = EvaluateOptions(**given(namespace, "evaluate", EvaluateOptions()))
    with opened(namespace) as saved:
        name, batches = whole_files(saved, options.files) if options.files else validation_part(saved)
        result = evaluate(saved.model, batches, saved.tokenizer)
    print(f"checkpoint      {saved.path} (step {saved.step})")
    print(f"text            {name}")
    print(f"tokens          {result.tokens}")
    print(f"loss            {result.loss:.6f} nats a token")
    print(f"perplexity      {result.perplexity:.4f}")
    print(f"bits per byte   {result.bits_per_byte:.6f}")
    return 0


def whole_files(saved: Saved, files: tuple[str, ...]) -> tuple[str, Any]:
    corpus = load_corpus(files)
    tokens = [saved.tokenizer.encode(text) for text in corpus.texts]
    return corpus.name, validation_windows(tokens, saved.config.model.context, saved.config.training.batch)


def validation_part(saved: Saved) -> tuple[str, Any]:
    """What training measured. Raises DataError if the files have changed since."""
    corpus = load_corpus(saved.config.data.files or None)
    if corpus.digest != saved.digest:
        raise DataError(f"{corpus.name} is not what the model was trained on: its digest differs; name files by --data")
    tokens = encode_split(corpus, saved.tokenizer)[1]
    return f"validation part of {corpus.name}", validation_batches(tokens, saved.config)
