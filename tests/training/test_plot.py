import struct
import sys

import numpy as np
import pytest

from gpulayers.storage import FileError
from gpulayers.training.health_plot import plot_health
from gpulayers.training.image_pictures import draw_attention, draw_confusion
from gpulayers.training.metrics import MetricsFile
from gpulayers.training.pictures import plot_attention
from gpulayers.training.plot import plot_loss, series, smooth
from gpulayers.training.translator import Look


def records(count: int) -> list[dict]:
    return [{"step": step, "loss": 5 / step, "lr": 1e-3} for step in range(1, count + 1)]


def size(path) -> tuple[int, int]:
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert content.endswith(b"IEND\xaeB`\x82")
    return struct.unpack(">II", content[16:24])


@pytest.mark.parametrize(
    "records",
    [
        [],
        [{"step": 0, "val_loss": 5.5}],
        records(1),
        [{"step": 1, "loss": None, "lr": 0.0}],
        [{"step": 1, "loss": float("nan"), "val_loss": float("inf")}],
        [*records(100), {"step": 100, "val_loss": 0.1}],
        [*records(30), {"step": 30, "val_loss": 0.1, "val_accuracy": 0.9}],
        [{"step": 0, "val_accuracy": 0.9}],
    ],
)
def test_any_number_of_points_makes_a_picture(tmp_path, records):
    plot_loss(records, tmp_path / "loss.png")
    assert size(tmp_path / "loss.png") == (1200, 750)
    assert [path.name for path in tmp_path.iterdir()] == ["loss.png"]


def test_from_a_file_over_an_old_picture(tmp_path):
    with MetricsFile(tmp_path / "metrics.jsonl") as file:
        for record in records(3):
            file.write(record)
    (tmp_path / "loss.png").write_bytes(b"old")
    plot_loss(tmp_path / "metrics.jsonl", tmp_path / "loss.png", title="a run")
    assert size(tmp_path / "loss.png") == (1200, 750)


def test_pyplot_is_not_touched(tmp_path):
    before = "matplotlib.pyplot" in sys.modules
    plot_loss([], tmp_path / "loss.png")
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_files_that_cannot_be_read_or_written(tmp_path):
    with pytest.raises(FileError, match=r"cannot read .*metrics.jsonl"):
        plot_loss(tmp_path / "metrics.jsonl", tmp_path / "loss.png")
    with pytest.raises(FileError, match=r"cannot write .*loss.png"):
        plot_loss([], tmp_path / "missing" / "loss.png")


def test_series_takes_finite_numbers_only():
    steps, values = series([{"step": 1, "x": 2}, {"step": 2}, {"step": 3, "x": None}, {"step": 4, "x": np.inf}], "x")
    assert steps.tolist() == [1]
    assert values.tolist() == [2.0]


def test_smoothing_is_a_mean_around_each_point():
    np.testing.assert_allclose(smooth(np.arange(9.0)), [0, 1, 2, 3, 4, 5, 6, 6.5, 7])  # no lag on a straight line
    np.testing.assert_allclose(smooth(np.full(1000, 3.0)), 3.0)
    noisy = np.random.default_rng(0).normal(size=5000)
    assert smooth(noisy)[50:-50].std() < 0.12


TITLES = ["$\\frac{$", "r\udcff", "\N{CJK UNIFIED IDEOGRAPH-6F22}"]  # no formula, no text, no letter of the font


@pytest.mark.parametrize("title", TITLES)
@pytest.mark.filterwarnings("error")
def test_any_name_of_a_folder_is_a_title(tmp_path, title):
    names = [title[:1] or "x", "end"]
    plot_loss(records(3), tmp_path / "loss.png", title)
    plot_health([], tmp_path / "health.png", title)
    plot_attention([Look(names, names, np.eye(2))], tmp_path / "attention.png", title)
    draw_confusion(np.eye(2, dtype=int), [title, "b"], tmp_path / "confusion.png", title)
    draw_attention(np.zeros((1, 2, 2, 1)), np.zeros((1, 1, 1)), [title], tmp_path / "images.png", title)
    assert len(list(tmp_path.glob("*.png"))) == 5
