"""Where a trained model looks when it reads a sample: attention maps as figures, for each task that has attention."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from gpulayers.backend import to_numpy
from gpulayers.report.gather import Run
from gpulayers.training.options import ConfigError
from gpulayers.training.pictures import as_it_is, attention_figure, drawable, new_figure, visible
from gpulayers.training.tasks.gpt import tokenizer_of
from gpulayers.training.tasks.seq2seq import Seq2SeqTask, stored_vocabularies
from gpulayers.training.tasks.task import Saved
from gpulayers.training.tasks.vit import ViTTask, to_model
from gpulayers.training.translator import Translator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_TOKENS = 48  # of a map of a GPT: more cannot be read
MOST_HEADS = 8  # maps side by side
MOST_BLOCKS = 4  # below each other: the first ones and the last


def look(run: Run, sample: str | None) -> "tuple[str, list[Figure]]":
    """(what was looked at, maps) of the run's saved model; without a model or attention an empty list.

    sample: gpt: a text; seq2seq: a source; vit: the number of a held-out image. None takes one.
    Raises ConfigError, DataError or FloatingPointError, one sentence, for a sample that cannot be looked at.
    """
    if run.saved is None or run.saved.config.task not in LOOKS:
        return "", []
    return LOOKS[run.saved.config.task](run, run.saved, sample)


def _text(run: Run, saved: Saved, sample: str | None) -> "tuple[str, list[Figure]]":
    """Self-attention of the blocks of a GPT, a map for each head."""
    model, tokenizer = _any(saved.model), tokenizer_of(saved)
    text = sample if sample is not None else next((one["text"] for one in reversed(run.samples) if one["text"]), "\n")
    ids = [int(i) for i in tokenizer.encode(text)][: min(MOST_TOKENS, model.config.context)]
    if not ids:
        raise ConfigError("--sample is empty: give a text to look at")
    maps = [to_numpy(weights)[0] for weights in model.attention(np.array([ids]))]  # (H, T, T) for each block
    names = [visible(drawable(tokenizer.decode([i]))) for i in ids]
    chosen = sorted({*range(min(MOST_BLOCKS - 1, len(maps))), len(maps) - 1})
    return tokenizer.decode(ids), [_heads(f"block {i + 1} of {len(maps)}", maps[i], names) for i in chosen]


def _heads(title: str, weights: np.ndarray, names: list[str]) -> "Figure":
    heads, count = min(len(weights), MOST_HEADS), len(names)
    side = min(3.4, 1.2 + 0.09 * count)
    figure = new_figure(max(4.0, side * min(heads, 4)), 0.4 + (side + 0.2) * -(-heads // 4))
    for i, axes in enumerate(figure.subplots(-(-heads // 4), min(heads, 4), squeeze=False).ravel()):
        if i >= heads:
            axes.set_axis_off()
            continue
        axes.imshow(weights[i].astype(np.float64), cmap="Greys", vmin=0, interpolation="nearest")
        axes.set_title(f"{title}, head {i + 1}", fontsize=8, loc="left")
        axes.set_xticks(range(count), names)
        axes.set_yticks(range(count), names)
        axes.tick_params(length=0, labelsize=5)
        for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
            as_it_is(label)
    return figure


def _pair(run: Run, saved: Saved, sample: str | None) -> "tuple[str, list[Figure]]":
    """Where the decoder looks in the source while it answers."""
    if not saved.config.model.attends:
        return "", []
    if sample is None:
        pairs = Seq2SeqTask(saved.config).validation[:20]
        sample = max((pair.source for pair in pairs), key=len)
    found = Translator(saved.model, stored_vocabularies(saved.metadata)).look(sample)
    return sample, [attention_figure([found])]


def _image(run: Run, saved: Saved, sample: str | None) -> "tuple[str, list[Figure]]":
    """A held-out image, and where the class token looks."""
    task = ViTTask(saved.config)
    try:
        number = int(sample or 0)
    except ValueError:
        raise ConfigError(f"--sample takes the number of a held-out image for vit, got {sample!r}") from None
    if not 0 <= number < len(task.pixels):
        raise ConfigError(f"--sample must be in 0..{len(task.pixels) - 1}, the held-out images, got {number}")
    model = _any(saved.model)
    pixels = to_model(task.pixels[number : number + 1], model)
    found = int(to_numpy(model(pixels))[0].argmax())
    weights = to_numpy(model.attention(pixels))[0].astype(np.float64)
    image = task.raw[number]
    height, width = image.shape[:2]
    figure = new_figure(6, 0.5 + 3 * height / width)
    for axes, caption in zip(figure.subplots(1, 2), ("the image", "where the model looks"), strict=True):
        axes.imshow(image if image.shape[2] == 3 else image.mean(axis=2), cmap="gray", vmin=0, vmax=1)
        axes.set_title(caption, fontsize=9, loc="left")
        axes.set_axis_off()
    axes.imshow(weights, cmap="inferno", alpha=0.75, extent=(-0.5, width - 0.5, height - 0.5, -0.5), vmin=0)
    names = task.classes[task.labels[number]], task.classes[found]
    return f"held-out image {number}, a {names[0]}, taken for a {names[1]}", [figure]


def _any(model: Any) -> Any:
    """Each task has a model of its own kind."""
    return model


LOOKS: "dict[str, Callable[[Run, Saved, str | None], tuple[str, list[Figure]]]]" = {
    "gpt": _text,
    "seq2seq": _pair,
    "vit": _image,
}
