import json
import os
import threading

import pytest

from gpulayers import profiling
from gpulayers.profiling.ranges import Ranges, named
from gpulayers.profiling.trace import Trace, check_writable
from gpulayers.storage import FileError


def ranges_of(path):
    return [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]


def test_file_is_a_nested_trace(run, tmp_path):
    path = tmp_path / "t.json"
    with profiling.trace(path, run.model, run.optimizer) as ranges:
        for _ in range(2):
            with ranges.range("step"):
                run.step()
    events = json.loads(path.read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X"}
    assert [e["args"]["name"] for e in events if e["ph"] == "M"] == ["gpulayers", threading.current_thread().name]
    events = ranges_of(path)
    assert sum(event["name"] == "step" for event in events) == 2
    open_until = []  # a stack of ends: every range lies inside the one that is open at its start
    for event in events:
        assert event["dur"] >= 0
        while open_until and open_until[-1] <= event["ts"]:
            open_until.pop()
        end = event["ts"] + event["dur"]
        assert not open_until or end <= open_until[-1] + 1e-3
        open_until.append(end)
    forward = next(event for event in events if event["name"] == "blocks.0.attention MultiHeadAttention.forward")
    assert (forward["cat"], forward["args"]) == ("forward", {"arrays": "float32 [1, 8, 8]"})


def test_it_is_written_after_an_exception_too(run, tmp_path):
    with (
        pytest.raises(ZeroDivisionError),
        profiling.trace(tmp_path / "t.json", run.model) as ranges,
        ranges.range("step"),
    ):
        _ = 1 / 0
    assert [event["name"] for event in ranges_of(tmp_path / "t.json")] == ["step"]


def test_full(run, tmp_path):
    recorder = Trace(most=10)
    with profiling.trace(tmp_path / "t.json", run.model, run.optimizer, recorder=recorder):
        run.step()
        run.step()
    assert recorder.full
    assert len(ranges_of(tmp_path / "t.json")) == 10


def test_threads_have_lines_of_their_own(run):
    recorder = Trace()
    with Ranges(recorder, run.model) as ranges, ranges.range("step"):
        thread = threading.Thread(target=run.model.forward, args=(run.ids,), name="worker")
        thread.start()
        thread.join()
    threads = {event["name"]: event["tid"] for event in recorder.events if event["ph"] == "X"}
    names = {event["tid"]: event["args"]["name"] for event in recorder.events if event["name"] == "thread_name"}
    assert threads["step"] != threads["GPT.forward"]
    assert names[threads["GPT.forward"]] == "worker"


def test_launch_shows_its_work(run_on):
    recorder, run = Trace(), run_on("emulated")
    x = run.model.wte.weight.data
    with Ranges(recorder, run.model):
        run.model.ln_f.forward(x)
    launch = recorder.events[-1]
    assert (launch["name"], launch["cat"]) == ("launch layernorm", "launch")
    rows, cols = x.shape
    assert launch["args"]["bytes"] == 4 * (2 * rows * cols + 2 * rows + 2 * cols)
    assert launch["args"]["operations"] == 8 * rows * cols


def test_a_place_that_cannot_be_written_is_said_at_once(tmp_path):
    for path, text in ((tmp_path, "it is a folder"), (tmp_path / "no" / "t.json", "no folder")):
        with pytest.raises(FileError, match=text):
            check_writable(path)
        with pytest.raises(FileError, match=text), profiling.trace(path):
            pytest.fail("the block was entered")


def test_a_folder_that_is_read_only_is_said_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(FileError, match=r"cannot write .*t\.json: .* is read-only"):
        check_writable(tmp_path / "t.json")


def test_old_trace_is_replaced(tmp_path):
    for kind in ("a", "b"):
        with profiling.trace(tmp_path / "t.json") as ranges, ranges.range(kind):
            pass
    assert [event["name"] for event in ranges_of(tmp_path / "t.json")] == ["b"]
    assert named("b").text == "b"
