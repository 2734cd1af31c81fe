import numpy as np
import pytest

from gpulayers.data.image_batches import ImageBatches, Normalization, split_classes


@pytest.fixture
def labels():
    """Five classes of 1, 2, 5, 23 and 100 images, mixed."""
    return np.random.default_rng(0).permutation(np.repeat(np.arange(5), [1, 2, 5, 23, 100]))


def make(count=10, batch=4, seed=0):
    pixels = np.arange(count, dtype=np.float32)[:, None, None, None] * np.ones((1, 2, 3, 1), np.float32)
    return ImageBatches(pixels, np.arange(count), batch, seed)


# ---------------------------------------------------------------------------------------------- the split


def test_a_fifth_of_each_class_is_held_out(labels):
    train, held_out = split_classes(labels, seed=0)
    assert np.bincount(labels[held_out], minlength=5).tolist() == [0, 1, 1, 5, 20]
    assert np.array_equal(np.sort(np.concatenate([train, held_out])), np.arange(131))  # disjoint, and nothing is lost
    assert np.array_equal(train, np.sort(train))
    assert np.array_equal(held_out, np.sort(held_out))


def test_the_split_depends_on_the_seed_alone(labels):
    first, again, other = (split_classes(labels, seed)[1] for seed in (3, 3, 4))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_every_image_is_held_out_by_some_seed(labels):
    """All but the one of its kind: no image is always trained on."""
    seen = np.zeros(len(labels), int)
    for seed in range(60):
        seen[split_classes(labels, seed)[1]] += 1
    assert (seen[labels > 0] > 0).all()
    assert seen[labels == 4] == pytest.approx(12, abs=11)


def test_the_split_of_a_seed_stays(labels):
    """The same on every machine and in every version: a resumed run and `evaluate` depend on it."""
    assert split_classes(np.repeat([0, 1], [10, 7]), seed=5)[1].tolist() == [5, 9, 13]


# ---------------------------------------------------------------------------------------------- normalisation


def test_normalization_of_channels():
    pixels = np.random.default_rng(0).uniform(size=(50, 4, 4, 3)).astype(np.float32) * [1, 0.1, 0] + [0, 0.5, 0.25]
    normalization = Normalization.of(pixels)
    found = normalization(pixels.astype(np.float32))
    assert found.dtype == np.float32
    assert found.mean(axis=(0, 1, 2)) == pytest.approx([0, 0, 0], abs=1e-5)
    assert found.std(axis=(0, 1, 2)) == pytest.approx([1, 1, 0], abs=1e-4)  # the last one is constant: not divided
    assert Normalization(**normalization._asdict()) == normalization


# ---------------------------------------------------------------------------------------------- batches


@pytest.mark.parametrize("batch", [1, 3, 4, 10, 25])
def test_every_epoch_has_every_image_once(batch):
    batches = make(batch=batch)
    row = np.concatenate([batches.batch(k)[1] for k in range(50 // batch + 1)])
    epochs = row[: len(row) // 10 * 10].reshape(-1, 10)
    assert all(np.array_equal(np.sort(epoch), np.arange(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == len(epochs)  # each in an order of its own


def test_batch_k_is_a_function_of_seed_and_k():
    batches = make()
    later = batches.batch(7)
    for k in range(7):
        batches.batch(k)
    for a, b in zip(later, make().batch(7), strict=True):
        assert np.array_equal(a, b)
    assert not np.array_equal(make(seed=1).batch(7)[1], later[1])


def test_pixels_and_labels_stay_together():
    pixels, labels = make().batch(2)
    assert pixels.shape == (4, 2, 3, 1)
    assert np.array_equal(pixels[:, 1, 1, 0], labels)


def test_the_order_of_a_seed_stays():
    assert make().batch(0)[1].tolist() == [9, 0, 4, 3]


@pytest.mark.parametrize("accumulate", [1, 2, 3, 4])
def test_micro_batches_are_the_batch(accumulate):
    parts = list(make().micro_batches(3, accumulate))
    assert len(parts) == accumulate
    assert [first for first, _, _ in parts] == np.cumsum([0, *(len(labels) for _, _, labels in parts)])[:-1].tolist()
    pixels, labels = make().batch(3)
    assert np.array_equal(np.concatenate([p for _, p, _ in parts]), pixels)
    assert np.array_equal(np.concatenate([part for _, _, part in parts]), labels)


def test_wrong_arguments():
    pixels, labels = np.zeros((3, 2, 2, 1)), np.zeros(3, int)
    with pytest.raises(ValueError, match="as many images as labels, got 3 and 2"):
        ImageBatches(pixels, labels[:2], 1, 0)
    with pytest.raises(ValueError, match="got 0 and 0"):
        ImageBatches(pixels[:0], labels[:0], 1, 0)
    with pytest.raises(ValueError, match="batch must be at least 1, got 0"):
        ImageBatches(pixels, labels, 0, 0)
    with pytest.raises(ValueError, match="seed must be in"):
        ImageBatches(pixels, labels, 1, -1)
    with pytest.raises(ValueError, match="a batch of 4 images cannot be split in 5 parts"):
        list(make().micro_batches(0, 5))
