import json
import stat
import sys

import pytest
from tiny_run import TEXT, assert_same_run, words

from gpulayers.cli import main
from gpulayers.cli.profile import split

TINY = ["--layers", "1", "--heads", "2", "--dim", "16", "--context", "16", "--batch", "2", "--threads", "1"]

NSYS = """\
import sqlite3, sys
if sys.argv[1] == "profile":
    report = next(word.partition("=")[2] for word in sys.argv if word.startswith("--output="))
    print("Collecting data...")
    sys.exit(print("boom") or 9) if "fail" in report else open(report, "w").close()
else:
    table = next(word.partition("=")[2] for word in sys.argv if word.startswith("--output="))
    db = sqlite3.connect(table)
    db.executescript(
        "CREATE TABLE StringIds (id, value); INSERT INTO StringIds VALUES (1, 'layernorm'), (2, 'step');"
        "CREATE TABLE NVTX_EVENTS (start, end, eventType, text, globalTid, textId, domainId);"
        "INSERT INTO NVTX_EVENTS VALUES (0, 900, 59, NULL, 16777217, 2, 0),"
        " (10, 90, 59, 'ln_f LayerNorm.forward', 16777217, NULL, 0);"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId);"
        "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (20, 25, 16777217, 5);"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, globalPid, correlationId, shortName);"
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1000, 3500, 16777216, 5, 1);"
    )
    db.commit()
"""
NCU = """\
import sys
if "--import" in sys.argv:
    print('"ID","Kernel Name","gpu__time_duration.sum"')
    print('"","","us"')
    print('"0","layernorm","14"')
elif "refused" in sys.argv[sys.argv.index("--export") + 1]:
    sys.exit(print("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission") or 1)
else:
    open(sys.argv[sys.argv.index("--export") + 1], "w").close()
"""


@pytest.fixture
def data(tmp_path, monkeypatch):
    """The words of a run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beer.txt").write_text(TEXT, encoding="utf-8")
    return ["train", *TINY, "--data", "beer.txt"]


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """An nsys and an ncu that write small reports."""
    if sys.platform == "win32":
        pytest.skip("the stand-ins are scripts with a first line")
    folder = tmp_path / "tools"
    folder.mkdir()
    for name, source in (("nsys", NSYS), ("ncu", NCU)):
        (folder / name).write_text(f"#!{sys.executable}\n{source}")
        (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(folder))


@pytest.fixture
def no_tools(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))


def run(capfd, *arguments, status=0):
    assert main(list(arguments)) == status
    return capfd.readouterr()


# --------------------------------------------------------------------------------------------- train --trace


def test_trace_of_a_run_that_stays_the_same(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("gpulayers.training.loop.plot_loss", lambda *_, **__: None)
    trace = tmp_path / "t.json"
    run(capfd, *words(tmp_path / "plain", steps=2))
    said = run(capfd, *words(tmp_path / "traced", steps=2, trace=trace))
    assert f"trace: {trace}" in said.err
    assert_same_run(tmp_path / "plain", tmp_path / "traced")
    names = [event["name"] for event in json.loads(trace.read_text())["traceEvents"]]
    assert names.count("step") == 2
    assert {"GPT.forward", "blocks.0.attention MultiHeadAttention.backward", "optimizer", "evaluation"} <= set(names)
    run(capfd, "train", "--resume", str(tmp_path / "traced"), "--steps", "3", "--trace", str(trace))
    names = [event["name"] for event in json.loads(trace.read_text())["traceEvents"]]
    assert names.count("step") == 1


def test_a_trace_that_cannot_be_written_stops_before_the_run(tmp_path, capfd):
    error = run(capfd, *words(tmp_path / "run", trace=tmp_path / "no" / "t.json"), status=2).err
    assert "no folder" in error
    assert not (tmp_path / "run").exists()


# --------------------------------------------------------------------------------------------------- profile


def test_events(data, capfd, monkeypatch, tmp_path):
    monkeypatch.setattr("gpulayers.profiling.events.copy_bandwidth", lambda like: 5e9)
    out = run(capfd, "profile", "events", "--warm-up", "1", "--steps", "2", "--top", "99", "--", *data).out
    assert "blocks.*.attention " in out
    assert "the mean of 2" in out
    assert [path.name for path in tmp_path.iterdir()] == ["beer.txt"]


@pytest.mark.parametrize("tool", ["nsys", "ncu"])
def test_missing_tool_prints_the_lines(tool, data, capfd, no_tools, tmp_path):
    out = run(capfd, "profile", tool, "--out", f"a b.{tool}-rep", "--", *data, "--backend", "cupy", status=3).out
    collect, export, read = out.splitlines()
    assert collect.startswith(f"{tool} ")
    assert (
        f"python -m gpulayers.cli profile ranges --warm-up 3 --steps {3 if tool == 'nsys' else 1} -- train" in collect
    )
    assert read == f"gpulayers profile read 'a b.{'sqlite' if tool == 'nsys' else 'csv'}'"
    if tool == "nsys":
        assert "--capture-range=nvtx --nvtx-capture=profile@gpulayers --capture-range-end=stop" in collect
        assert export == "nsys export --type=sqlite --force-overwrite=true '--output=a b.sqlite' 'a b.nsys-rep'"
    else:
        assert (
            "--nvtx --nvtx-include gpulayers@step/ --clock-control none --launch-skip 0 --launch-count 100" in collect
        )
        assert export == "ncu --import 'a b.ncu-rep' --csv --page raw > 'a b.csv'"
    assert [path.name for path in tmp_path.iterdir()] == ["beer.txt"]


def test_ncu_filters(data, capfd, no_tools):
    options = ["--kernels", "layernorm|adam", "--launch-skip", "5", "--launch-count", "2"]
    out = run(capfd, "profile", "ncu", *options, "--", *data, "--backend", "cupy", status=3).out
    assert "-k 'regex:layernorm|adam' --launch-skip 5 --launch-count 2" in out


def test_nsys_runs_and_its_report_is_read(data, capfd, tools):
    said = run(capfd, "profile", "--", *data, "--backend", "cupy")
    assert said.out.splitlines()[1].split() == ["ln_f", "forward", "layernorm", "1", "0.003", "2.5", "100.0%"]
    assert "Collecting data" in said.err
    assert run(capfd, "profile", "read", "profile-nsys.sqlite").out == said.out


def test_ncu_runs_and_its_report_is_read(data, capfd, tools):
    said = run(capfd, "profile", "ncu", "--out", "x", "--", *data, "--backend", "cupy")
    assert said.out.splitlines()[1].split() == ["-", "-", "layernorm", "1", "0.014", "14.0", "100.0%"]
    assert run(capfd, "profile", "read", "x.csv").out == said.out


def test_refused_counters(data, capfd, tools):
    error = run(capfd, "profile", "ncu", "--out", "refused", "--", *data, "--backend", "cupy", status=1).err
    last = error.splitlines()[-1]
    assert last.startswith("gpulayers: error: the driver lets only administrators read the GPU's counters")
    for part in ("ERR_NVGPUCTRPERM", "gpulayers profile events", "NVreg_RestrictProfilingToAdminUsers=0"):
        assert part in last


def test_a_profiler_that_fails(data, capfd, tools):
    error = run(capfd, "profile", "nsys", "--out", "fail", "--", *data, "--backend", "cupy", status=1).err
    assert "boom" in error
    assert "nsys failed with exit status 9" in error


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nsis", "--", "train"], "unknown tool 'nsis'; did you mean nsys?"),
        (["cuda", "--", "train"], "unknown tool 'cuda'; choose from nsys, ncu, events, ranges, read"),
        (["events"], "say what to profile behind two dashes"),
        (["events", "--", "generate", "x"], "say what to profile behind two dashes"),
        (["events", "--", "train", "--leyers", "2"], "unknown option --leyers; did you mean --layers?"),
        (["events", "--", "train", "--resume", "x"], "--resume cannot be profiled"),
        (["events", "--", "train", "--out", "x"], "--out cannot be profiled"),
        (["events", "--steps", "0", "--", "train"], "--steps must be at least 1"),
        (["nsys", "--", "train"], "nsys looks at a GPU: add --backend cupy"),
        (["read"], "gpulayers profile read takes one REPORT"),
        (["events", "x", "--", "train"], "unknown argument x"),
        (["read", "nothing.sqlite"], "cannot read nothing.sqlite"),
    ],
)
def test_wrong_commands_are_one_line(arguments, text, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    error = run(capfd, "profile", *arguments, status=2).err
    assert text in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_only_profile_takes_two_dashes():
    assert split(["profile", "nsys", "--", "train", "--", "x"]) == (["profile", "nsys"], ["train", "--", "x"])
    assert split(["generate", "--", "x"]) == (["generate", "--", "x"], [])
    assert split([]) == ([], [])
