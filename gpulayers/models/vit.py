"""ViT, the Vision Transformer: an image is a sentence whose words are its patches.

    patches = pixels cut into squares of patch x patch, each one row of patch patch C numbers       (B, N, P)
    x       = [class_token; patches embed.weight + embed.bias] + positions.weight                   (B, N + 1, dim)
    x       = x + attention(norm_1(x))         }  `layers` times, `EncoderBlock`
    x       = x + feedforward(norm_2(x))       }
    logits  = norm(x[:, 0]) head.weight + head.bias                                                 (B, classes)

Of the last block's output only the class token is read, so nothing else is made there: of the patches attention and
feed-forward fall away, an eighth of the products of six blocks, forward and backward. The numbers are the same to
rounding, but that dropout draws for the rows that there are.

pool="mean" has no class token: logits = mean over the patches of norm(x), times head.

The patches stand in the order of reading, and within a patch its pixels do, each with its channels side by side: the
same as a convolution with kernel and stride `patch` whose kernel is `embed.weight` read as (patch, patch, C, dim).

Sources: Dosovitskiy et al., An image is worth 16x16 words, 2021, equations 1 to 4; Zhai et al., Scaling vision
transformers, 2022, section 3.2 (pooling without a class token).
"""

import dataclasses
import functools
import json
from typing import Any, NamedTuple

from gpulayers import initialize
from gpulayers.backend import Array, array_module, empty, is_array, wide
from gpulayers.layers.dropout import Dropout
from gpulayers.layers.encoder_block import EncoderBlock
from gpulayers.layers.layer import (
    Layer,
    Once,
    check_choice,
    check_number,
    check_sizes,
    floating_input,
    floating_like,
    gradient_of,
)
from gpulayers.layers.layernorm import LayerNorm
from gpulayers.layers.linear import Linear
from gpulayers.layers.positions import LearnedPositions
from gpulayers.models.load_model import load_model
from gpulayers.ops.matmul import matmul
from gpulayers.ops.sum_rows import sum_rows
from gpulayers.parameter import Parameter
from gpulayers.step import Train
from gpulayers.storage import StrPath

POOLS = ("class", "mean")

_as_patches = functools.partial(initialize.normal, std=0.5)


@dataclasses.dataclass(frozen=True)
class ViTConfig:
    """Sizes of a ViT.

    image: (height, width) of the pictures, of which `patch`, the side of a square, divides both. channels: 1 for grey,
    3 for colours. classes: number of classes. hidden: width of the feed-forward, None for 4 dim.
    dropout: after the positions, on the attention weights and at the end of both sub-layers.
    pool: what the classifier sees, the "class" token or the "mean" over the patches.
    """

    image: tuple[int, int]
    channels: int
    patch: int
    classes: int
    dim: int = 64
    heads: int = 4
    layers: int = 4
    hidden: int | None = None
    dropout: float = 0.0
    pool: str = "class"

    def __post_init__(self) -> None:
        if not isinstance(self.image, tuple | list) or len(self.image) != 2:
            raise ValueError(f"ViTConfig: image must be (height, width), got {self.image!r}")
        object.__setattr__(self, "image", tuple(self.image))  # a list, where it comes from JSON
        check_sizes("ViTConfig", height=self.image[0], width=self.image[1])
        names = ("channels", "patch", "classes", "dim", "heads", "layers")
        check_sizes("ViTConfig", **{name: getattr(self, name) for name in names})
        if self.hidden is not None:
            check_sizes("ViTConfig", hidden=self.hidden)
        if any(side % self.patch for side in self.image):
            height, width = self.image
            raise ValueError(f"ViTConfig: patch must divide the image, got {self.patch} for {height} x {width} pixels")
        if self.dim % self.heads:
            raise ValueError(f"ViTConfig: heads must divide dim, got {self.heads} heads and dim {self.dim}")
        check_number("ViTConfig", dropout=self.dropout)
        if not 0 <= self.dropout < 1:
            raise ValueError(f"ViTConfig: dropout must be in [0, 1), got {self.dropout}")
        check_choice("ViTConfig", POOLS, pool=self.pool)

    @property
    def grid(self) -> tuple[int, int]:
        """Patches in a column and in a row."""
        return self.image[0] // self.patch, self.image[1] // self.patch

    @property
    def patches(self) -> int:
        """N, how many there are in an image."""
        return self.grid[0] * self.grid[1]

    @property
    def tokens(self) -> int:
        """What the encoder sees: the patches, and the class token if there is one."""
        return self.patches + (self.pool == "class")


class Saved(NamedTuple):
    embed: Any
    trunk: list[Any]  # of the layers between the tokens and the pooling
    head: list[Any]  # of the norm and the classifier


class ViT(Layer):
    """Pictures to class logits.

    pixels: (B, H, W, C), floating, of the sizes in config. logits: (B, classes).
    Initial values: those of the layers, drawn by NumPy from `seed`, but for the positions and the class token: normal
    with standard deviation 0.5, about that of the embedded patches. With the usual 0.02 a network as small as these
    cannot tell the patches apart for its first hundreds of steps: docs/vit.md has the measurement.
    saved: what the layers saved.
    `backward(dlogits, saved)` adds to every parameter's gradient and returns dpixels.

    Parameters:

        embed.weight, .bias           (patch patch C, dim), (dim,)
        class_token                   (dim,)                          pool="class" only
        positions.weight              (N + 1, dim), or (N, dim)
        blocks.i....                  see EncoderBlock; a last block of your own has to take its `queries`
        norm.weight, .bias            (dim,)
        head.weight, .bias            (dim, classes), (classes,)

    Raises ValueError for pictures of another size, TypeError for another dtype than the parameters'.
    """

    def __init__(self, config: ViTConfig, seed: initialize.Rng = 0, dtype: str = "float32") -> None:
        c, rng = config, initialize.generator(seed)
        self.config = config
        self.embed = Linear(c.patch * c.patch * c.channels, c.dim, rng=rng, dtype=dtype)
        self.class_token = None
        if c.pool == "class":  # one vector: weight decay, which is for matrices, leaves it alone
            self.class_token = Parameter(_as_patches((c.dim,), rng).astype(dtype))
        self.positions = LearnedPositions(c.tokens, c.dim, init=_as_patches, rng=rng, dtype=dtype)
        self.dropout = Dropout(c.dropout)
        self.blocks = [
            EncoderBlock(c.dim, c.heads, hidden=c.hidden, dropout=c.dropout, rng=rng, dtype=dtype)
            for _ in range(c.layers)
        ]
        self.norm = LayerNorm(c.dim, dtype=dtype)
        self.head = Linear(c.dim, c.classes, rng=rng, dtype=dtype)

    def forward(self, pixels: Array, train: Train | None = None) -> tuple[Array, Saved]:
        self._check(pixels)
        x, saved_embed = self.embed.forward(to_patches(pixels, self.config.patch))  # (B, N, dim)
        x, trunk = self._with_token(x), []
        for layer, options in self._trunk():
            x, s = layer.forward(x, train=train, **options)
            trunk.append(s)
        x, saved_norm = self.norm.forward(x[:, 0] if self.class_token is not None else x)
        logits, saved_head = self.head.forward(self._pooled(x))
        return logits, Saved(saved_embed, trunk, Once([saved_norm, saved_head]))

    def backward(self, dlogits: Array, saved: Saved) -> Array:
        gradient_of(dlogits, (len(saved.embed), self.config.classes), "ViT")
        dx = self._pooled_backward(self.head.backward(dlogits, saved.head.pop()))
        dx = self.norm.backward(dx, saved.head.pop())
        if self.class_token is not None:
            dx = dx[:, None]  # of the one row that the last block made
        for layer, _ in reversed(self._trunk()):
            dx = layer.backward(dx, saved.trunk.pop())
        dpatches = self.embed.backward(self._with_token_backward(dx), saved.embed)
        return from_patches(dpatches, self.config)

    def __call__(self, pixels: Array) -> Array:
        self._check(pixels)
        x = self._with_token(self.embed(to_patches(pixels, self.config.patch)))
        for layer, options in self._trunk():
            x = layer(x, **options)
        x = self.norm(x[:, 0] if self.class_token is not None else x)
        return self.head(self._pooled(x))

    def attention(self, pixels: Array) -> Array:
        """How much each patch is looked at in the last block, (B, rows, cols) of the grid of patches.

        The weights of the class token on the patches, mean over the heads; with pool="mean" the mean over all patches
        that look. What the class token gives to itself is missing, so a picture sums to less than 1.
        float32 or wider.
        """
        self._check(pixels)
        x = self._with_token(self.embed(to_patches(pixels, self.config.patch)))
        for layer, _ in self._trunk()[:-1]:
            x = layer(x)
        weights = self.blocks[-1].weights(x)  # (B, heads, T, T)
        weights = weights.astype(wide(weights.dtype), copy=False)
        looks = weights[:, :, 0, 1:] if self.class_token is not None else weights.mean(axis=2)
        return looks.mean(axis=1).reshape(len(pixels), *self.config.grid)

    # ------------------------------------------------------------------------------------------ the parts

    def _check(self, pixels: Array) -> None:
        c = self.config
        shape = (*c.image, c.channels)
        if not is_array(pixels) or pixels.ndim != 4 or pixels.shape[1:] != shape:
            got = pixels.shape if is_array(pixels) else type(pixels).__name__
            raise ValueError(f"ViT takes pixels of shape (B, {', '.join(map(str, shape))}), got {got}")
        floating_input(pixels, "ViT")
        floating_like(pixels, self.embed.weight, "ViT")

    def _trunk(self) -> list[tuple[Layer, dict[str, Any]]]:
        """The layers between the tokens and the pooling, in order, and the options of each."""
        *others, last = self.positions, self.dropout, *self.blocks
        return [*((layer, {}) for layer in others), (last, {} if self.class_token is None else {"queries": 1})]

    def _with_token(self, x: Array) -> Array:
        """The class token before the patches: (B, N, dim) -> (B, N + 1, dim)."""
        if self.class_token is None:
            return x
        with_token = empty((len(x), self.config.tokens, self.config.dim), x.dtype, like=x)
        with_token[:, 0] = self.class_token.data
        with_token[:, 1:] = x
        return with_token

    def _with_token_backward(self, dx: Array) -> Array:
        if self.class_token is None:
            return dx
        self.class_token.add_grad(sum_rows(dx[:, 0]))
        return dx[:, 1:]

    def _pooled(self, x: Array) -> Array:
        """What the classifier sees, (B, dim), of the normalised class token or of all patches."""
        return x if self.class_token is not None else matmul(self._shares(x), x)[:, 0]

    def _pooled_backward(self, dy: Array) -> Array:
        return dy if self.class_token is not None else matmul(self._shares(dy).T, dy[:, None])

    def _shares(self, x: Array) -> Array:
        """(1, N): the part of each patch in the mean."""
        N = self.config.patches
        return array_module(x).full((1, N), 1 / N, x.dtype)

    def save(self, path: StrPath, metadata: dict[str, str] | None = None) -> None:
        """Weights and sizes in one safetensors file, which `load` makes into a model again."""
        super().save(path, {"vit_config": json.dumps(dataclasses.asdict(self.config)), **(metadata or {})})


def to_patches(pixels: Array, patch: int) -> Array:
    """(B, H, W, C) -> (B, N, patch patch C): two reshapes with a transposed view between them, no loop."""
    B, H, W, C = pixels.shape
    rows, cols = H // patch, W // patch
    x = pixels.reshape(B, rows, patch, cols, patch, C).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(B, rows * cols, patch * patch * C)


def from_patches(patches: Array, config: ViTConfig) -> Array:
    """The way back: (B, N, patch patch C) -> (B, H, W, C)."""
    B, patch, C = len(patches), config.patch, config.channels
    x = patches.reshape(B, *config.grid, patch, patch, C).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(B, *config.image, C)


def load(path: StrPath, dtype: str = "float32") -> ViT:
    """The model that `ViT.save` wrote. Raises `storage.FileError`, one sentence, for any other file."""
    return load_model(path, "ViT", lambda **sizes: ViT(ViTConfig(**sizes), dtype=dtype))
