"""`gpulayers train vit`: images to classes."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gpulayers.backend import Array, device_of, to_device, to_numpy, wide
from gpulayers.data import DataError
from gpulayers.data.image_batches import ImageBatches, Normalization, split_classes
from gpulayers.data.images import Images, load_images
from gpulayers.layers.softmax import Softmax
from gpulayers.models.vit import POOLS, ViT, ViTConfig
from gpulayers.ops.cross_entropy import cross_entropy
from gpulayers.training.config import Config, OptimizerOptions, TrainingOptions
from gpulayers.training.image_pictures import as_text, draw_attention, draw_confusion
from gpulayers.training.options import ConfigError, Options, option
from gpulayers.training.tasks.task import Figures, Part, Saved, Task, shown

SHOWN = 10  # images in attention.png
WRONG = 3  # images in a sample

ABOUT = """\
Train a Vision Transformer on images. Without options: on scikit-learn's 8 x 8 digits (pip install scikit-learn), on
the CPU, in a minute or two on two cores. A fifth of each class, drawn from the seed, is held out and measured on."""


@dataclass(frozen=True)
class ViTOptions(Options):
    """Sizes of a ViT: the fields of `ViTConfig` but for those that the data decides."""

    patch: int = option(2, "side of a patch, in pixels; must divide the images", at_least=1)
    dim: int = option(48, "width of the network", at_least=1, at_most=2**20)
    heads: int = option(4, "attention heads; they share out dim", at_least=1)
    layers: int = option(3, "encoder blocks", at_least=1, at_most=10_000)
    hidden: int | None = option(None, "width of the feed-forward", at_least=1, default_text="4 dim")
    dropout: float = option(0.1, "share of activations that are dropped in training", at_least=0, below=1)
    pool: str = option("class", "what the classifier sees: a class token, or the mean over the patches", choices=POOLS)

    def complete(self) -> "ViTOptions":
        if self.dim % self.heads:
            raise ConfigError(f"heads must divide dim, got {self.heads} heads and dim {self.dim}")
        return replace(self, hidden=self.hidden or 4 * self.dim)


@dataclass(frozen=True)
class ImageOptions(Options):
    """What is read."""

    images: str | None = option(
        None,
        "class folders of PNG files, or an .npz file with images and labels",
        flag="--data",
        metavar="FOLDER|FILE.npz",
        default_text="scikit-learn's digits",
    )

    def complete(self) -> "ImageOptions":
        return replace(self, images=None if self.images is None else os.path.abspath(self.images))


@dataclass(frozen=True)
class ImageTraining(TrainingOptions):
    """How long, how much at a time, and where; how much to measure."""

    eval_images: int = option(10_000, "held-out images that are measured, at most", at_least=1)


class ViTTask(Task):
    """Images to classes.

    raw, pixels, labels: the held-out images that are measured, in 0..1 and normalised, and their classes.
    """

    about = ABOUT
    default = Config(
        "vit",
        ViTOptions(),
        ImageOptions(),
        optimizer=OptimizerOptions(lr=3e-3),
        training=ImageTraining(steps=1500, batch=32, eval_every=300, sample_every=750, save_every=500),
    )
    units = "images"
    model: ViT

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        data, training = load_images(config.data.images), config.training
        patch = config.model.patch
        if any(side % patch for side in data.pixels.shape[1:3]):
            raise ConfigError(f"patch must divide the images, got {patch} for {data.size} (height, width, channels)")
        chosen, held_out = split_classes(data.labels, training.seed)
        self.digest, self.classes = data.digest, data.classes
        self.normalization = Normalization.of(data.pixels[chosen])
        pixels = self.normalization(data.pixels[chosen])
        self.batches = ImageBatches(pixels, data.labels[chosen], training.batch, training.seed)
        measured = spread(held_out, training.eval_images)
        self.raw, self.labels = data.pixels[measured], data.labels[measured]
        self.pixels = self.normalization(self.raw)
        self.model = make_vit(config, data.pixels.shape[1:], len(data.classes))
        self.grain = self.model.config.tokens * self.model.config.dim
        self.description = (
            f"{data.name}: {len(data.classes)} classes, {len(chosen):,} images of {data.size} to train on, "
            f"{len(held_out):,} to measure on"
        )

    def parts(self, k: int) -> Iterator[Part]:
        """pixels (B, H, W, C) in the model's floating type, labels (B,)."""
        training = self.config.training
        for first_sample, pixels, labels in self.batches.micro_batches(k, training.accumulate):
            yield Part(first_sample, (to_model(pixels, self.model),), to_device(labels, training.backend))

    def measure(self) -> Figures:
        return figures(self.logits(), self.labels)

    def logits(self) -> np.ndarray:
        """Of the held-out images that are measured, (N, classes)."""
        return logits_of(self.model, self.pixels, self.config.training.batch)

    def sample(self, step: int) -> str:
        """How many held-out images are taken for another class, and the first of them as text."""
        logits = self.logits()
        if not np.isfinite(logits).all():
            raise FloatingPointError("a logit is not finite")
        found, chances = logits.argmax(axis=1), Softmax()(logits)
        wrong = np.flatnonzero(found != self.labels)
        few = wrong[:WRONG]
        captions = [
            f"{self.classes[self.labels[i]]} taken for {self.classes[found[i]]}, {100 * chances[i, found[i]]:.0f} %"
            for i in few.tolist()
        ]
        first = f"{len(wrong)} of {len(found)} held-out images are taken for another class"
        return "\n".join([first, *([as_text(self.raw[few], captions)] if captions else [])])

    def pictures(self, folder: Path, step: int) -> None:
        """attention.png: an image of each class, and where the class token looks. confusion.png: what is taken for
        what."""
        found = self.logits().argmax(axis=1)
        title = f"{folder.name}, step {step}"
        counts = np.zeros((len(self.classes), len(self.classes)), np.int64)
        np.add.at(counts, (self.labels, found), 1)
        right = f"{np.trace(counts)} of {len(found)} right"
        draw_confusion(counts, self.classes, folder / "confusion.png", f"{title}: {right}")
        first = np.unique(self.labels, return_index=True)[1][:SHOWN]  # of each class
        looks = to_numpy(self.model.attention(to_model(self.pixels[first], self.model)))
        captions = [self.classes[i] for i in found[first].tolist()]
        draw_attention(
            self.raw[first],
            looks,
            captions,
            folder / "attention.png",
            f"{title}: what is found, and where the model looks",
        )

    # ------------------------------------------------------------------------------------------------ saved models

    def metadata(self) -> dict[str, Any]:
        c = self.model.config
        return {
            "image": [*c.image, c.channels],
            "classes": self.classes,
            "normalization": self.normalization._asdict(),
        }

    @classmethod
    def rebuild(cls, config: Config, metadata: dict[str, Any]) -> ViT:
        try:
            return make_vit(config, tuple(metadata["image"]), len(metadata["classes"]))
        except TypeError as error:
            raise ValueError(f"the sizes of its images are damaged: {error}") from error

    @classmethod
    def evaluate(cls, saved: Saved, files: tuple[str, ...]) -> dict[str, str]:
        """Loss and accuracy on the held-out images, or on all of a folder or an .npz file."""
        if not files:
            return super().evaluate(saved, files)
        path, *others = files
        if others:
            raise ConfigError(f"--data takes one folder or one .npz file for vit, got {len(files)}")
        data = fitting(load_images(path, least=1), saved)
        pixels = Normalization(**saved.metadata["normalization"])(data.pixels)
        logits = logits_of(saved.model, pixels, saved.config.training.batch)
        name = f"{data.name}: {len(data.labels):,} images of {data.size}"
        return {"data": name} | shown(figures(logits, data.labels), cls.units)

    @classmethod
    def tiny(cls, config: Config) -> Config:
        model = replace(config.model, layers=1, heads=2, dim=16)
        return replace(super().tiny(config), model=model).with_training(eval_images=4)


def make_vit(config: Config, image: tuple[int, ...], classes: int) -> ViT:
    """The network of the run for images of (height, width, channels), at its initial values, on its device."""
    height, width, channels = image
    options: dict[str, Any] = vars(config.model)
    sizes = ViTConfig(image=(height, width), channels=channels, classes=classes, **options)
    return ViT(sizes, seed=config.training.seed, dtype=config.training.dtype).to(config.training.backend)


def to_model(pixels: np.ndarray, model: ViT) -> Array:
    """In the model's floating type, on its device."""
    weight = model.embed.weight
    return to_device(pixels.astype(weight.dtype, copy=False), device_of(weight.data))


def logits_of(model: Any, pixels: np.ndarray, batch: int) -> np.ndarray:
    """(N, classes), float32 or wider, in host memory."""
    parts = [to_numpy(model(to_model(pixels[i : i + batch], model))) for i in range(0, len(pixels), batch)]
    logits = np.concatenate(parts)
    return logits.astype(wide(logits.dtype), copy=False)


def figures(logits: np.ndarray, labels: np.ndarray) -> Figures:
    loss, _ = cross_entropy(logits, labels)
    return {"val_loss": float(loss), "val_accuracy": float((logits.argmax(axis=1) == labels).mean())}


def spread(indices: np.ndarray, limit: int) -> np.ndarray:
    """At most `limit` of them, spread evenly."""
    if len(indices) <= limit:
        return indices
    return indices[np.arange(limit) * len(indices) // limit]


def fitting(data: Images, saved: Saved) -> Images:
    """The images with the model's labels; grey ones for a model of colours three times the same. Raises DataError."""
    *size, channels = saved.metadata["image"]
    if list(data.pixels.shape[1:3]) != size or data.pixels.shape[3] not in (1, channels):
        wanted = " x ".join(str(n) for n in saved.metadata["image"])
        raise DataError(f"{data.name} has images of {data.size}, the model was trained on {wanted}")
    classes = saved.metadata["classes"]
    if unknown := [name for name in data.classes if name not in classes]:
        known = ", ".join(classes[:10]) + (", ..." if len(classes) > 10 else "")
        raise DataError(f"{data.name} has a class {unknown[0]!r} that the model does not know; it knows {known}")
    places = np.array([classes.index(name) for name in data.classes], np.int64)
    pixels = np.broadcast_to(data.pixels, (*data.pixels.shape[:3], channels))
    return data._replace(pixels=pixels, labels=places[data.labels], classes=classes)
