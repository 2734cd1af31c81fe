import dataclasses

import numpy as np
import pytest
from contract import check_layer
from devices import on_devices
from tolerances import assert_close

import gpulayers as gl
from gpulayers.gradcheck import gradcheck
from gpulayers.models.vit import ViT, ViTConfig, from_patches, load, to_patches
from gpulayers.ops.cross_entropy import cross_entropy
from gpulayers.optim import AdamW
from gpulayers.step import Train
from gpulayers.storage import FileError

TINY = ViTConfig(image=(4, 6), channels=3, patch=2, classes=5, dim=8, heads=2, layers=2, hidden=12)
VARIANTS = {
    "class token": {},
    "mean": {"pool": "mean"},
    "one patch": {"image": (2, 2)},
    "one pixel a patch": {"image": (2, 3), "patch": 1, "channels": 1},
    "mean of one patch": {"image": (2, 2), "pool": "mean"},
}


def tiny(**changes):
    return ViT(dataclasses.replace(TINY, **changes), seed=0)


def pictures(rng, count, config=TINY):
    return rng.normal(size=(count, *config.image, config.channels))


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=list(VARIANTS))
def test_contract(changes, rng):
    config = dataclasses.replace(TINY, **changes)
    check_layer(lambda: ViT(config, seed=0), pictures(rng, 3, config))


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_contract_with_dropout(pool, rng):
    check_layer(lambda: tiny(pool=pool, dropout=0.3), pictures(rng, 2), train=Train(seed=1, step=2))


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_no_pictures(pool, rng):
    check_layer(lambda: tiny(pool=pool), pictures(rng, 0))


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_gradients_of_the_loss(pool, rng):
    """Through the loss: the whole chain as the trainer runs it, from the pixels on."""
    targets = rng.integers(0, 5, 4)

    class WithLoss(ViT):
        def forward(self, pixels, train=None):
            logits, saved = super().forward(pixels, train)
            loss, dlogits = cross_entropy(logits, targets)
            return np.asarray(loss), (dlogits, saved)

        def backward(self, dy, saved):
            dlogits, saved = saved
            return super().backward(dy * dlogits, saved)

    assert gradcheck(WithLoss(dataclasses.replace(TINY, pool=pool), seed=0), pictures(rng, 4)) < 1e-7


@pytest.mark.parametrize(
    ("image", "patch", "channels"), [((4, 6), 2, 3), ((9, 3), 3, 1), ((3, 5), 1, 2), ((5, 5), 5, 2)]
)
def test_patches_are_those_of_a_loop(image, patch, channels, rng):
    """Every patch, row and column one by one, and the way back."""
    pixels = rng.normal(size=(2, *image, channels))
    wanted = [
        [
            [pixels[b, i + r, j + c, k] for r in range(patch) for c in range(patch) for k in range(channels)]
            for i in range(0, image[0], patch)
            for j in range(0, image[1], patch)
        ]
        for b in range(2)
    ]
    found = to_patches(pixels, patch)
    assert np.array_equal(found, wanted)
    config = ViTConfig(image, channels, patch, classes=2, dim=4, heads=1)
    assert found.shape == (2, config.patches, patch * patch * channels)
    assert np.array_equal(from_patches(found, config), pixels)


def test_patches_of_a_picture_that_is_a_view(rng):
    pixels = pictures(rng, 4).astype(np.float32)
    turned = np.ascontiguousarray(pixels.transpose(2, 1, 3, 0)).transpose(3, 1, 0, 2)
    assert np.array_equal(tiny()(turned), tiny()(pixels))


def test_the_patches_meet_only_in_the_attention(rng):
    """Without positions the order of the patches is nothing to the model; with them it is."""
    pixels = pictures(rng, 1).astype(np.float32)
    turned = np.concatenate([pixels[:, :, 4:], pixels[:, :, :4]], axis=2)  # the columns of patches, the last one first
    model = tiny()
    assert not np.allclose(model(pixels), model(turned), atol=1e-4)
    model.positions.weight.data[...] = 0
    assert_close(model(pixels), model(turned), "float32")


def test_it_learns(rng):
    pixels, labels = pictures(rng, 12).astype(np.float32), rng.integers(0, 5, 12)
    model = tiny()
    optimizer = AdamW(model, lr=1e-2, clip_norm=1.0)
    losses = []
    for step in range(60):
        logits, saved = model.forward(pixels, Train(step=step))
        loss, dlogits = cross_entropy(logits, labels)
        model.backward(dlogits, saved)
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < 0.1 < losses[0]


def test_attention_adds_up(rng):
    pixels = pictures(rng, 3).astype(np.float32)
    looks = tiny().attention(pixels)
    assert looks.shape == (3, 2, 3)
    assert ((looks > 0) & (looks < 1)).all()
    assert (looks.sum(axis=(1, 2)) < 1).all()  # the rest is what the class token gives to itself
    assert_close(tiny(pool="mean").attention(pixels).sum(axis=(1, 2)), np.ones(3), "float32")


def test_attention_is_that_of_the_last_block(rng):
    """Against the formula, written out: one head, one block, no class token but the mean over those that look."""
    pixels = pictures(rng, 2)
    model = ViT(dataclasses.replace(TINY, heads=1, layers=1, pool="mean"), seed=3, dtype="float64")
    x = model.positions(model.embed(to_patches(pixels, 2)))
    h = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    qkv = model.blocks[0].attention.qkv
    q, k, _ = np.split(h @ qkv.weight.data + qkv.bias.data, 3, axis=-1)
    e = np.exp(q @ k.swapaxes(1, 2) / np.sqrt(8))
    assert_close(model.attention(pixels), (e / e.sum(-1, keepdims=True)).mean(axis=1).reshape(2, 2, 3))


def test_documented_names_and_layouts():
    shapes = {name: value.shape for name, value in tiny(layers=1).state_dict().items()}
    block = {
        "norm_1.weight": (8,), "norm_1.bias": (8,),
        "attention.qkv.weight": (8, 24), "attention.qkv.bias": (24,),
        "attention.out.weight": (8, 8), "attention.out.bias": (8,),
        "norm_2.weight": (8,), "norm_2.bias": (8,),
        "feedforward.up.weight": (8, 12), "feedforward.up.bias": (12,),
        "feedforward.down.weight": (12, 8), "feedforward.down.bias": (8,),
    }  # fmt: skip
    expected = {
        "embed.weight": (12, 8), "embed.bias": (8,), "class_token": (8,), "positions.weight": (7, 8),
        "norm.weight": (8,), "norm.bias": (8,), "head.weight": (8, 5), "head.bias": (5,),
    }  # fmt: skip
    assert shapes == expected | {f"blocks.0.{name}": shape for name, shape in block.items()}
    mean = {name: value.shape for name, value in tiny(pool="mean").state_dict().items()}
    assert "class_token" not in mean
    assert mean["positions.weight"] == (6, 8)


def test_weight_decay_leaves_the_class_token_alone(rng):
    """It is a vector. With a gradient of 0 only decay moves anything."""
    model = tiny()
    before = model.state_dict()
    optimizer = AdamW(model, lr=1e-2, weight_decay=0.5)
    logits, saved = model.forward(pictures(rng, 2).astype(np.float32))
    model.backward(np.zeros_like(logits), saved)
    optimizer.step()
    moved = {name for name, value in model.state_dict().items() if not np.array_equal(value, before[name])}
    assert moved == {name for name, value in before.items() if value.ndim == 2}


def test_initial_values_depend_on_the_seed_alone():
    a, b = tiny().state_dict(), tiny().state_dict()
    assert all(np.array_equal(a[name], b[name]) for name in a)
    assert not np.array_equal(a["class_token"], ViT(TINY, seed=1).state_dict()["class_token"])
    wide = ViT(TINY, seed=0, dtype="float64").state_dict()
    assert all(np.array_equal(a[name], wide[name].astype(np.float32)) for name in a)


def test_dropout_does_not_depend_on_how_the_batch_is_split(rng):
    pixels = pictures(rng, 3).astype(np.float32)
    model = tiny(dropout=0.5)
    whole, _ = model.forward(pixels, Train(seed=3, step=4))
    parts = [model.forward(pixels[i : i + 1], Train(seed=3, step=4, first_sample=i))[0] for i in range(3)]
    assert np.allclose(whole, np.concatenate(parts), atol=1e-6)
    assert not np.allclose(whole, model(pixels), atol=1e-3)


def test_save_and_load(tmp_path, rng):
    model = tiny(pool="mean")
    model.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    assert again.config == model.config
    pixels = pictures(rng, 2).astype(np.float32)
    assert np.array_equal(again(pixels), model(pixels))


def test_load_refuses_what_is_no_vit(tmp_path):
    gl.Linear(2, 2, rng=0).save(tmp_path / "linear.safetensors")
    with pytest.raises(FileError, match="holds no ViT"):
        load(tmp_path / "linear.safetensors")
    tiny().save(tmp_path / "model.safetensors", {"vit_config": '{"image": [4, 6]}'})
    with pytest.raises(FileError, match="does not hold a whole ViT"):
        load(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"heads": 3}, "heads must divide dim, got 3 heads and dim 8"),
        ({"layers": 0}, "layers must be at least 1, got 0"),
        ({"channels": 0}, "channels must be at least 1, got 0"),
        ({"hidden": 0}, "hidden must be at least 1, got 0"),
        ({"patch": 4}, "patch must divide the image, got 4 for 4 x 6 pixels"),
        ({"image": (4,)}, r"image must be \(height, width\), got \(4,\)"),
        ({"image": 4}, r"image must be \(height, width\), got 4"),
        ({"image": (0, 4)}, "height must be at least 1, got 0"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"pool": "max"}, "pool must be one of class, mean, got 'max'"),
    ],
)
def test_impossible_sizes(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        dataclasses.replace(TINY, **changes)


@pytest.mark.parametrize(
    ("changes", "got"), [({"dim": 8.0}, "dim .*, got 8.0"), ({"image": (4, "6")}, "width .*, got '6'")]
)
def test_sizes_are_integers(changes, got):
    with pytest.raises(TypeError, match=got):
        dataclasses.replace(TINY, **changes)


@pytest.mark.parametrize(
    ("shape", "got"),
    [((2, 6, 4, 3), r"\(2, 6, 4, 3\)"), ((2, 4, 6, 1), r"\(2, 4, 6, 1\)"), ((4, 6, 3), r"\(4, 6, 3\)")],
    ids=["another size", "other channels", "no batch"],
)
def test_wrong_pictures(shape, got):
    with pytest.raises(ValueError, match=rf"ViT takes pixels of shape \(B, 4, 6, 3\), got {got}"):
        tiny()(np.zeros(shape, np.float32))


def test_wrong_types():
    with pytest.raises(TypeError, match="ViT takes a floating input, got uint8"):
        tiny()(np.zeros((1, 4, 6, 3), np.uint8))
    with pytest.raises(TypeError, match="ViT has float32 parameters and got a float64 input"):
        tiny()(np.zeros((1, 4, 6, 3)))
    with pytest.raises(ValueError, match="got list"):
        tiny()([[0.0]])
    logits, saved = tiny().forward(np.zeros((2, 4, 6, 3), np.float32))
    with pytest.raises(ValueError, match=r"ViT.backward takes a gradient of shape \(2, 5\), got \(1, 5\)"):
        tiny().backward(logits[:1], saved)


@on_devices
@pytest.mark.parametrize("pool", ["class", "mean"])
def test_three_steps_through_the_kernels(device, pool, rng):
    """Losses, gradients of the pixels and attention: the same on the CPU and through the kernels."""
    pixels = pictures(rng, 4).astype(np.float32)
    labels = rng.integers(0, 5, 4)
    found = {}
    for place in ("numpy", device):
        model = ViT(dataclasses.replace(TINY, layers=1, dropout=0.1, pool=pool), seed=0).to(place)
        optimizer = AdamW(model, lr=1e-2, clip_norm=1.0)
        there, losses, gradient = gl.to_device(pixels, place), [], None
        for step in range(3):
            logits, saved = model.forward(there, Train(seed=1, step=step))
            loss, dlogits = cross_entropy(logits, gl.to_device(labels, place))
            gradient = model.backward(dlogits, saved)
            optimizer.step()
            losses.append(float(loss))
        found[place] = [np.array(losses), gl.to_numpy(gradient), gl.to_numpy(model.attention(there))]
    for a, b in zip(found[device], found["numpy"], strict=True):
        assert_close(a, b, "float32", factor=10)  # three updates of Adam, which divides by small gradients
