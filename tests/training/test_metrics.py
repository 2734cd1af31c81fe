import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayers.storage import FileError
from gpulayers.training import metrics
from gpulayers.training.metrics import MetricsFile, plain, read_metrics

text = st.text(max_size=8)
values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("metrics")


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.dictionaries(text.filter("step".__ne__), values | st.lists(values, max_size=2), max_size=4), max_size=4)
)
def test_what_is_written_comes_back(folder, records):
    path = folder / "x.jsonl"
    path.unlink(missing_ok=True)
    records = [{"step": step, **record} for step, record in enumerate(records)]
    with MetricsFile(path) as file:
        for record in records:
            file.write(record)
    assert read_metrics(path) == records
    content = path.read_bytes()
    assert content.count(b"\n") == len(records)  # one line each, whatever newlines the text has
    assert [json.loads(line) for line in content.split(b"\n")[:-1]] == records


def test_each_line_is_there_at_once(tmp_path):
    with MetricsFile(tmp_path / "x") as file:
        file.write({"step": 1, "loss": 2.5})
        assert (tmp_path / "x").read_bytes() == b'{"step": 1, "loss": 2.5}\n'
        file.write({"step": 2, "text": 'é\n"\udcff'})
        file.sync()
        assert (tmp_path / "x").read_bytes().endswith('{"step": 2, "text": "é\\n\\"\\udcff"}\n'.encode())
        assert read_metrics(tmp_path / "x")[1]["text"] == 'é\n"\udcff'


def test_numbers_that_json_does_not_know_are_null():
    record = {"a": float("nan"), "b": np.float32("inf"), "c": [np.float64(0.1), -np.inf], "d": np.array(np.nan)}
    assert plain(record) == {"a": None, "b": None, "c": [0.1, None], "d": None}
    assert plain({"step": np.int64(3), "yes": np.True_}) == {"step": 3, "yes": True}
    assert type(plain(np.int64(3))) is int


def test_a_new_run_does_not_append_to_an_old_file(tmp_path):
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(FileError, match=r"cannot write .*x: File exists"):
        MetricsFile(tmp_path / "x")
    with pytest.raises(FileError, match=r"cannot write .*: No such file or directory"):
        MetricsFile(tmp_path / "no" / "x")


def run(path, first: int, last: int, resume_at: int | None = None) -> None:
    with MetricsFile(path, resume_at) as file:
        for step in range(first, last + 1):
            file.write({"step": step, "loss": 1 / step})


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 12), st.integers(0, 60))
def test_a_resumed_file_has_every_step_once_wherever_the_first_run_was_cut(folder, checkpoint, cut):
    """The process died `cut` bytes before the end of its last line and goes on from an older checkpoint."""
    straight, path = folder / "straight.jsonl", folder / "resumed.jsonl"
    for file in (straight, path):
        file.unlink(missing_ok=True)
    run(straight, 1, 20)
    run(path, 1, 16)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - cut])
    run(path, checkpoint + 1, 20, resume_at=checkpoint)
    assert path.read_bytes() == straight.read_bytes()


def test_resume_leaves_a_fitting_file_alone_and_starts_a_missing_one(tmp_path):
    path = tmp_path / "x"
    run(path, 1, 3)
    before = path.stat()
    MetricsFile(path, resume_at=3).close()
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    MetricsFile(tmp_path / "y", resume_at=3).close()
    assert read_metrics(tmp_path / "y") == []


def test_several_records_of_one_step_are_kept(tmp_path):
    (tmp_path / "x").write_bytes(
        b'{"step": 0, "val_loss": 5.0}\n{"step": 1, "loss": 1.0}\n{"step": 1, "val_loss": 2}\n'
    )
    MetricsFile(tmp_path / "x", resume_at=1).close()
    assert [record["step"] for record in read_metrics(tmp_path / "x")] == [0, 1, 1]


def test_a_failure_while_the_file_is_cut_leaves_it_whole(tmp_path, monkeypatch):
    path = tmp_path / "x"
    run(path, 1, 3)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise FileError("disk full")

    monkeypatch.setattr(metrics, "write_atomically", fail)
    with pytest.raises(FileError, match="disk full"):
        MetricsFile(path, resume_at=1)
    assert path.read_bytes() == before


def test_a_full_disk(tmp_path):
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with MetricsFile(tmp_path / "x") as file:
        file.write({"step": 1})
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
            with pytest.raises(FileError, match=r"cannot write .*x: File too large"):
                file.write({"step": 2, "text": "x" * 5000})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert (tmp_path / "x").read_bytes() == b'{"step": 1}\n'  # no half line
    run(tmp_path / "x", 2, 2, resume_at=1)
    assert [record["step"] for record in read_metrics(tmp_path / "x")] == [1, 2]


def test_reading_a_broken_file(tmp_path):
    path = tmp_path / "x"
    with pytest.raises(FileError, match=r"cannot read .*x: No such file or directory"):
        read_metrics(path)
    path.write_bytes(b'{"step": 1}\n{"step": \n{"step": 3}\n')
    with pytest.raises(FileError, match=r"line 2 of .*x is not a record with a step"):
        read_metrics(path)
    path.write_bytes(b'{"step": 1}\n\xff\xfe')
    assert read_metrics(path) == [{"step": 1}]
