import threading

import numpy as np
import pytest

import gpulayers as gl
from gpulayers.cuda import WORK, Work, work_of
from gpulayers.profiling.events import Events, copy_bandwidth
from gpulayers.profiling.ranges import Range, Ranges, named
from gpulayers.profiling.table import Key, Profile, Row, merged, table


def record(run, steps=2):
    events = Events(run.optimizer.flat.data)
    with Ranges(events, run.model, run.optimizer) as ranges:
        for _ in range(steps):
            with ranges.range("step"):
                run.step()
    return events


def test_ops_on_numpy(run, monkeypatch):
    monkeypatch.setattr("gpulayers.profiling.events.copy_bandwidth", lambda like: 5e9)
    profile = record(run).profile()
    assert (profile.steps, profile.bandwidth) == (2, 5e9)
    row = profile.rows[Key("blocks.0.ln_1", "forward", "op layernorm")]
    assert (row.launches, row.bytes) == (2, 2 * 4 * (64 + 8 + 8 + 64 + 8 + 8))
    assert row.seconds > 0
    assert profile.rows[Key("blocks.0.attention.qkv", "forward", "op matmul")].operations == 2 * 2 * 8 * 8 * 24
    assert Key("loss", "", "loss cross_entropy") in profile.rows
    assert Key("optimizer", "", "op adam") in profile.rows
    text = table(profile)
    assert "blocks.*.ln_1" in text
    assert "5 GB/s, a copy measured in this run" in text


def test_threads_at_once_keep_their_ranges_apart(monkeypatch):
    monkeypatch.setattr("gpulayers.profiling.events.copy_bandwidth", lambda like: 5e9)
    events, both = Events(np.zeros(1, np.float32)), threading.Barrier(2, timeout=60)

    def work(layer):
        for _ in range(50):
            both.wait()
            events.push(Range.of_layer(layer, "Linear", "forward"), ())
            events.push(named("op", "sum_rows"), (None, np.zeros(4, np.float32)))
            both.wait()
            events.pop()
            events.pop()
        if layer == "second":  # the optimizer's threads have no ranges of their own
            events.push(named("op", "adam"), (None, np.zeros(4, np.float32)))
            events.pop()

    events.push(named("optimizer"), ())
    threads = [threading.Thread(target=work, args=(layer,)) for layer in ("first", "second")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events.pop()
    profile = events.profile()
    assert {key: row.launches for key, row in profile.rows.items()} == {
        Key("first", "forward", "op sum_rows"): 50,
        Key("second", "forward", "op sum_rows"): 50,
        Key("optimizer", "", "op adam"): 1,
    }
    assert "several threads at once: launches and ms are their sum" in table(profile)


def test_launches_on_emulated_have_bytes_and_no_times(run_on):
    run = run_on("emulated")
    events = Events(run.model.wte.weight.data)
    x = gl.to_device(np.ones((4, 8), np.float32), "emulated")
    with Ranges(events, run.model) as ranges, ranges.range("step"):
        y, saved = run.model.ln_f.forward(x)
        run.model.ln_f.backward(y, saved)
    profile = events.profile()
    row = profile.rows[Key("ln_f", "forward", "layernorm")]
    assert row == Row(1, None, 4 * (32 + 32 + 4 + 4 + 8 + 8), 8 * 32)
    assert Key("ln_f", "backward", "layernorm_backward") in profile.rows
    assert Key("ln_f", "forward", "op layernorm") not in profile.rows  # its launch is counted
    assert profile.bandwidth is None
    text = table(profile)
    assert "GB/s" not in text
    assert "the emulated device counts" in text


@pytest.mark.gpu
def test_times_on_a_gpu(run_on):
    profile = record(run_on("cupy")).profile()
    row = profile.rows[Key("blocks.0.ln_1", "forward", "layernorm")]
    assert 0 < row.seconds < 1
    assert profile.bandwidth > 1e10


def test_copy_bandwidth():
    assert copy_bandwidth(np.zeros(1), megabytes=1, repeats=3) > 1e7


def test_work_by_default_and_by_annotation(monkeypatch):
    a, b = np.zeros((2, 3), np.float32), np.zeros(5, np.float16)
    args = (a, None, b, np.float32(1), np.int64(3))
    assert work_of("unheard_of", args) == Work(24 + 10)
    monkeypatch.setitem(WORK, "halved", lambda y, *_: Work(y.nbytes // 2, y.size))
    assert work_of("halved", args) == Work(12, 6)


def test_table():
    rows = {
        Key("blocks.0.ln_1", "forward", "layernorm"): Row(2, 2e-3, 2_000_000, 4_000_000),
        Key("blocks.1.ln_1", "forward", "layernorm"): Row(2, 4e-3, 2_000_000, 4_000_000),
        Key("optimizer", "", "adam"): Row(2, 2e-3, 6_000_000, None),
        Key("", "", "copy"): Row(1, None, None, None),
    }
    assert merged(rows)[Key("blocks.*.ln_1", "forward", "layernorm")] == Row(4, 6e-3, 4_000_000, 8_000_000)
    lines = table(Profile(rows, 2, 1e10, "a guess")).splitlines()
    assert lines[0].split() == [
        "layer",
        "pass",
        "kernel",
        "launches",
        "ms",
        "us",
        "each",
        "MB",
        "GB/s",
        "of",
        "peak",
        "GFLOP/s",
        "of",
        "time",
    ]
    assert lines[1].split() == [
        "blocks.*.ln_1",
        "forward",
        "layernorm",
        "2",
        "3.000",
        "1500.0",
        "2.000",
        "0.7",
        "7%",
        "1",
        "75.0%",
    ]
    assert lines[2].split() == ["optimizer", "-", "adam", "1", "1.000", "1000.0", "3.000", "3.0", "30%", "25.0%"]
    assert lines[3].split() == ["-", "-", "copy", "0.5"]
    assert "all rows together: 4.000 ms a step" in lines
    lines = table(Profile(rows, 2), each=True, top=1).splitlines()
    assert lines[1].startswith("blocks.1.ln_1")
    assert lines[2] == "... and 3 rows more"
    assert "of peak" not in lines[0]
    assert table(Profile({}, 0)).startswith("layer  pass  kernel")
