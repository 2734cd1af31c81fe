"""The GPU part of bench/ on the emulated device, tiny: it checks, times, compares and reports; and CuPy has what it
calls. No figure of these tests says anything about a GPU."""

import ast
import dataclasses
import importlib
import importlib.util
import json
import pkgutil
import re
import subprocess
import sys
import types
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import gpulayers as gl
import gpulayers.ops
from gpulayers.ops.op import Op

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # bench is not installed; it is run from the repository

from bench import gpu, gpu_ceilings, gpu_peers, gpu_report, gpu_timing, gpu_train  # noqa: E402 after the path
from bench.gpu_cases import CASES, COMPILED, TINY, Draw  # noqa: E402 after the path
from bench.gpu_check import Exact, WrongResult, check_ours, check_peer, gather, has_nan, rows_to_check  # noqa: E402 after the path
from bench.rounds import Timing  # noqa: E402 after the path

CEILINGS = gpu_ceilings.Ceilings(copy=1e12, read=2e12, product=1e15, how={"copy, memcpy": 1e12})


@pytest.fixture(scope="module")
def cp():
    return gl.use("emulated")


@pytest.fixture(scope="module")
def draw(cp):
    return Draw(cp, TINY)


@pytest.fixture
def timer(cp):
    timer = gpu_timing.Timer(cp, gpu.EMULATED.protocol)
    with timer.current():
        yield timer


@pytest.fixture
def given_ceilings(monkeypatch):
    monkeypatch.setattr(gpu_ceilings, "measure", lambda *_: CEILINGS)


# ------------------------------------------------------------------------------------------------- a whole run

ROW = {
    "case": str, "body": str, "bytes": float, "flops": float, "floor_seconds": float, "ceiling": str, "seconds": float,
    "cold": dict, "hot": dict, "replay": dict | None, "enqueue_seconds": float, "launches": dict | None,
    "peak_bytes": int, "share_of_floor": float, "error": float, "ratio_to": dict, "target_share": float | None,
    "share_met": bool | None, "target_ratio": dict,
}  # fmt: skip


def test_a_run_and_its_files(tmp_path, capsys, given_ceilings):
    file, picture = tmp_path / "gpu.json", tmp_path / "gpu.png"
    arguments = ["layernorm", "update_control", "--backend", "emulated", "--json", str(file), "--plot", str(picture)]
    gpu.main(arguments)
    printed = capsys.readouterr().out
    assert printed.startswith("ceilings of this card in this run: copy 1000 GB/s")
    assert "say nothing about a GPU" in printed
    result = json.loads(file.read_text())
    assert [(row["case"], row["body"]) for row in result["rows"]] == [
        ("layernorm", "unfused"), ("layernorm", "ours"), ("update_control", "unfused"), ("update_control", "ours"),
    ]  # fmt: skip
    for row in result["rows"]:
        assert row.keys() == ROW.keys()
        assert all(isinstance(row[key], int | float if kind is float else kind) for key, kind in ROW.items())
        assert row["cold"].keys() == {"median", "p10", "p90", "repeats"}
    unfused, ours = result["rows"][:2]
    assert ours["launches"] == {"count": 1, "counted": "ours"}
    assert unfused["launches"] is None  # array code, which only a graph can count
    assert ours["replay"]["how"] == "launches"
    n = TINY.tokens * TINY.dim
    assert ours["bytes"] == 4 * n + 4 * TINY.dim + 8 * TINY.tokens
    assert 2 * n <= ours["peak_bytes"] <= 2 * n + 4 * 512  # y and two statistics
    assert unfused["peak_bytes"] > ours["peak_bytes"]
    assert (ours["target_share"], ours["share_met"]) == (0.90, False)
    assert ours["target_ratio"] == {"torch": {"at_most": 1.0, "met": None}}
    assert result["failures"] == []
    assert result["machine"]["gpu"] == "emulated device"
    assert picture.stat().st_size > 10_000


def test_bench_ops_and_bench_know_it():
    found = subprocess.run(
        [sys.executable, "-m", "bench.ops", "--backend", "emulated", "no_such"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "bench.gpu: error: no case 'no_such'" in found.stderr
    found = subprocess.run(
        [sys.executable, "-m", "bench", "gpu", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "--no-compile" in found.stdout


def test_ceilings(timer, draw):
    found = gpu_ceilings.measure(timer, draw.again(), copy_bytes=1 << 12, product=32)
    assert found.how.keys() == {"copy, memcpy", "copy, kernel", "read", "product, CuPy"}
    assert found.read >= found.copy > 0
    assert found.product is not None


def test_a_copy_that_does_not_copy_is_no_ceiling(timer, draw, monkeypatch):
    monkeypatch.setattr(gpu_ceilings, "SOURCE", gpu_ceilings.SOURCE.replace("y[i] = x[i]", "y[i] = y[i]"))
    with pytest.raises(RuntimeError, match="copy, kernel: the copy is not equal to its source"):
        gpu_ceilings.measure(timer, draw.again(), copy_bytes=1 << 10, product=32)


def test_the_floor_is_the_larger_one():
    assert CEILINGS.floor_seconds(1e9, 5e8, 0.0) == (1e-3, "copy")
    assert CEILINGS.floor_seconds(1e9, 1e6, 0.0) == (5e-4, "read")
    assert CEILINGS.floor_seconds(1e9, 5e8, 1e13) == (1e-2, "product")
    assert CEILINGS._replace(product=None).floor_seconds(1e9, 5e8, 1e13) == (1e-3, "copy")


# ------------------------------------------------------------------------------------------------- errors, not lines


def test_h26_an_impossible_rate_is_an_error(tmp_path, capsys, monkeypatch):
    """cupy #1317, #7185: a clock around launches that nobody waits for showed 30 us for 2 ms of work."""
    slow = CEILINGS._replace(copy=10.0, read=10.0)  # bytes a second: whatever is measured is faster
    monkeypatch.setattr(gpu_ceilings, "measure", lambda *_: slow)
    file = tmp_path / "gpu.json"
    with pytest.raises(SystemExit, match="2 of the measurements failed"):
        gpu.main(["sum_rows", "--backend", "emulated", "--json", str(file)])
    assert "sum_rows, ours: NOT MEASURED, ImpossibleRate" in capsys.readouterr().out
    result = json.loads(file.read_text())
    assert result["rows"] == []
    assert [failure["body"] for failure in result["failures"]] == ["unfused", "ours"]


def test_what_is_impossible():
    gpu.check_possible("adam", "ours", 1.0, 1.0499)
    with pytest.raises(gpu.ImpossibleRate, match=r"adam, ours: 1 s is impossible, .* at least 1.06 s"):
        gpu.check_possible("adam", "ours", 1.0, 1.06)


def test_what_is_wrong_or_unwritten_is_not_timed(cp, draw):
    case = CASES["relu"]
    arguments = case.arguments(draw.again())
    exact = Exact(case, arguments)

    def half(x):
        y = cp.empty_like(x)
        y[:3] = cp.maximum(x[:3], 0)
        return y

    for function in (half, lambda x: -x, lambda x: (x, x)):
        with pytest.raises(WrongResult, match="relu: "):
            check_ours(exact, function, arguments, cp)


def test_one_failure_does_not_end_the_run(given_ceilings, capsys, monkeypatch):
    def broken(*_):
        raise MemoryError("no room")

    case = CASES["relu"]
    broken_op = dataclasses.replace(case.op, reference=broken)
    monkeypatch.setitem(CASES, "broken", dataclasses.replace(case, op=broken_op))
    result = gpu.run("emulated", ["broken", "relu"], gpu.EMULATED, {"unfused": False})
    assert [row["case"] for row in result["rows"]] == ["relu"]
    assert result["failures"][0]["error"] == "MemoryError: no room"
    assert "broken, reference and least work: NOT MEASURED, MemoryError: no room" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------- the cases


@pytest.mark.parametrize("name", CASES)
def test_every_case_is_right(name, cp, draw):
    case = CASES[name]
    arguments = case.arguments(draw.again())
    assert check_ours(Exact(case, arguments), case.op, arguments, cp) < 2e-2


def test_every_op_with_a_kernel_has_a_case():
    found = set()
    for module in pkgutil.iter_modules(gpulayers.ops.__path__, "gpulayers.ops."):
        ops = [value for value in vars(importlib.import_module(module.name)).values() if isinstance(value, Op)]
        found |= {op.name for op in ops if op.cuda}
    assert found == {case.op.name for case in CASES.values()}


def test_bytes_of_the_targets(cp, draw):
    def moved(name):
        case = CASES[name]
        arguments = case.arguments(draw.again())
        returned = case.op.reference(*arguments)
        returned = returned if isinstance(returned, tuple) else () if returned is None else (returned,)
        return case.bytes(arguments, (*returned, *(arguments[i] for i in case.written)))

    s = TINY
    assert [moved(name) for name in ("adam", "adam clear", "adam clear copy")] == [n * 1000 for n in (28, 32, 34)]
    visible, squares = s.batch * s.heads * s.length * (s.length + 1) // 2, s.batch * s.heads * s.length**2
    assert moved("masked_softmax") == pytest.approx(2 * (visible + squares))
    assert moved("masked_softmax_backward") == pytest.approx(2 * (2 * visible + squares))
    assert moved("cross_entropy") == moved("cross_entropy inplace") == 4 * 3 * 67 + 3 * (8 + 4) + 4


def test_the_sizes_of_the_targets():
    s = gpu.WHOLE.sizes
    assert (s.logit_rows, s.vocab, s.length, s.parameters) == (8192, 50257, 1024, 124_439_808)
    assert (s.tokens, s.dim) == (32768, 768)
    assert len(gpu_peers._pieces(s.parameters)) == 148  # GPT-2's tensors, and nothing left over
    assert gpu.WHOLE.copy_bytes >= 4e9
    assert gpu.WHOLE.product == 8192
    p = gpu.WHOLE.protocol
    assert (p.warm_ups, p.repeats, p.copies, p.flush_bytes, p.short) == (20, 100, 50, 256 << 20, 20e-6)


def test_draws_are_the_same_again_and_never_one_stretch_twice(draw):
    a, b = (draw.again().normal(5000).get() for _ in range(2))
    assert a.dtype == ml_dtypes.bfloat16
    assert np.array_equal(a, b)
    assert not np.array_equal(a[:1000], draw.normal(1000).get())
    assert np.array_equal(a[:901], a[4099:])  # the period


def test_rows_that_are_compared(cp):
    assert rows_to_check("all", (10**6, 100)) is None
    assert rows_to_check("rows", (10, 10)) is None
    rows = rows_to_check("rows", (8192, 50257))
    assert rows is not None
    assert (rows[0], rows[-1], len(rows)) == (0, 8191, 10)
    assert rows_to_check("first rows", (1 << 20, 1 << 10)).tolist() == list(range(512))
    a = np.arange(12, dtype=ml_dtypes.bfloat16).reshape(4, 3)
    assert np.array_equal(gather(cp.asarray(a), np.array([0, 3])), a[[0, 3]])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ml_dtypes.bfloat16])
def test_a_nan_is_seen(dtype, cp):
    a = np.array([[1, -np.inf], [np.inf, 3.0e-5]]).astype(dtype)
    assert not has_nan(cp.asarray(a))
    for bad in (np.nan, -np.nan):
        a[1, 0] = bad
        assert has_nan(cp.asarray(a))


# ------------------------------------------------------------------------------------------------- the clock


def test_cold_calls_follow_a_write_and_hot_ones_do_not(cp, timer, monkeypatch):
    calls = []
    monkeypatch.setattr(timer, "_write_all", lambda: calls.append("flush"))
    cold = timer.cold(lambda: calls.append("call"))
    assert calls[:2] == ["flush", "call"]
    assert calls.count("flush") == calls.count("call") == 1 + 3 + cold.repeats
    calls.clear()
    timer.hot(lambda: calls.append("call"))
    assert "flush" not in calls
    assert cp.cuda.get_current_stream() == timer.stream
    assert timer.stream.ptr != 0


def test_slow_calls_are_repeated_less_but_ten_times(cp, monkeypatch):
    timer = gpu_timing.Timer(cp, gpu_timing.Protocol(1, 100, flush_bytes=4, most_seconds=2.0))
    for seconds, repeats in ((1e-3, 100), (0.05, 40), (1.0, 10)):
        monkeypatch.setattr(cp.cuda, "get_elapsed_time", lambda a, b, seconds=seconds: seconds * 1e3)
        found = timer.hot(lambda: None)
        assert found == (pytest.approx(seconds), pytest.approx(seconds), pytest.approx(seconds), repeats)


def test_peak_counts_what_lives_at_once(cp, timer):
    mega = 1 << 20

    def call():
        a = cp.empty(mega, np.uint8)
        b = cp.empty(2 * mega, np.uint8)
        del a
        return cp.empty(mega, np.uint8), b

    assert timer.peak_bytes(call) == 3 * mega


class GraphStream:
    """A stream that can capture, as CuPy's."""

    def __init__(self):
        self.capturing, self.graph = False, None

    def begin_capture(self):
        self.capturing, self.calls = True, 0

    def end_capture(self):
        self.capturing = False
        graph = types.SimpleNamespace(graph=7, calls=self.calls, launched=0)
        graph.launch = lambda stream: setattr(graph, "launched", graph.launched + 1)
        self.graph = graph
        return graph

    def synchronize(self):
        assert not self.capturing


def test_a_replay_is_a_graph_where_one_can_be_captured(cp, monkeypatch):
    timer = gpu_timing.Timer(cp, gpu.EMULATED.protocol)
    timer.stream = stream = GraphStream()
    monkeypatch.setattr(timer, "_timed", lambda call, before, n: (call(), gpu_timing.spread([3.0]))[1])

    def call():
        stream.calls += 1

    each, how = timer.replay(call)
    assert how == "graph"
    assert (stream.graph.calls, stream.graph.launched) == (3, 1)
    assert each.median == 1.0
    driver = types.SimpleNamespace(cuGraphGetNodes=lambda graph, nodes, count: set_count(count, 5))
    monkeypatch.setattr(gpu_timing, "_driver", lambda: driver)
    assert timer.launches(call) == gpu_timing.Launches(5, "graph")
    driver.cuGraphGetNodes = lambda graph, nodes, count: 1
    with pytest.raises(RuntimeError, match="error 1"):
        gpu_timing.graph_nodes(stream.graph)


def set_count(count, value):
    count._obj.value = value
    return 0


def test_what_cannot_be_captured_ends_its_capture(cp, capsys):
    timer = gpu_timing.Timer(cp, gpu.EMULATED.protocol)
    timer.stream = stream = GraphStream()

    def call():
        raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")

    assert timer.capture(call) is None
    assert not stream.capturing
    assert "not captured as a graph: NotImplementedError: calling cuBLAS" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------- PyTorch's side


def test_ratios_and_targets():
    case = CASES["cross_entropy"]
    rows = [
        {"body": body, "seconds": seconds, "share_of_floor": 0.96}
        for body, seconds in (("unfused", 9.0), ("ours", 1.0), ("torch", 5.0), (COMPILED, 1.6))
    ]
    gpu._compare(case, rows)
    ours = rows[1]
    assert ours["ratio_to"] == {"torch": 0.2, COMPILED: 0.625}
    assert ours["target_ratio"] == {"torch": {"at_most": 0.25, "met": True}, COMPILED: {"at_most": 0.5, "met": False}}
    assert ours["share_met"] is True
    assert rows[0]["ratio_to"]["torch"] == 1.8
    assert rows[2]["target_ratio"] == {}


def test_the_table_says_what_is_met():
    spread = gpu_timing.Spread(2e-5, 1e-5, 3e-5, 100)._asdict()
    row = {
        "case": "adam", "body": "ours", "seconds": 2e-5, "cold": spread, "hot": spread, "bytes": 8e7, "flops": 0,
        "replay": {**spread, "how": "graph"}, "enqueue_seconds": 5e-6, "launches": {"count": 1, "counted": "graph"},
        "peak_bytes": 0, "share_of_floor": 0.97, "error": 1e-7, "ratio_to": {"torch fused": 1.01},
        "target_share": 0.95, "share_met": True,
        "target_ratio": {"torch fused": {"at_most": 1.0, "met": False}, "torch": {"at_most": 0.5, "met": None}},
    }  # fmt: skip
    line = gpu_report.lines([row], headed=False)
    for text in ("97%", "95% met", "1 fused NOT", "0.5 torch ?", "1.01", "4000"):
        assert text in line


def test_peers_compute_the_same():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    host = Draw(np, TINY)
    for case in CASES.values():
        exact = Exact(case, case.arguments(host.again()))
        for body, make in case.peers.items():
            if body != COMPILED:
                call = gpu_peers.build(torch, make, case.arguments(host.again()), compiled=False)
                assert check_peer(exact, call) < 2e-2, (case.op.name, body)


# ------------------------------------------------------------------------------------------------- the training step


def test_train_on_the_emulated_device(tmp_path):
    file = tmp_path / "train.json"
    done = subprocess.run(
        [sys.executable, "-m", "bench.train", "--backend", "emulated", "--variants", "numpy", "emulated",
         "--rounds", "1", "--threads", "1", "--json", str(file)],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(file.read_text())
    assert result["variants"].keys() == {"numpy", "emulated"}
    for one in result["variants"].values():
        assert one["tokens_per_second"] > 0
        assert one["error"] < 1e-5
    assert result["variants"]["emulated"]["kernels"] > 20
    assert result["variants"]["numpy"]["share_of_floor"] is None
    assert "say nothing about a GPU" in done.stdout


def test_a_step_faster_than_its_products_is_an_error():
    chosen = gpu_train.variants("cupy")
    sizes = gpu_train.GPU_CASES["gpt2"]
    seconds = sizes.flops / 1e15
    timings = {"cupy": Timing([seconds]), "torch": Timing([seconds / 1.2])}
    facts = {name: {"losses": []} for name in timings}
    found = {**CEILINGS._asdict(), "machine": {}}
    result = gpu_train.result_of("gpt2", sizes, chosen, facts, timings, found)
    assert result["variants"].keys() == {"cupy"}
    assert result["variants"]["cupy"]["share_of_floor"] == pytest.approx(1)
    assert [failure["body"] for failure in result["failures"]] == ["torch"]
    assert sizes.tokens == 8192
    assert list(chosen) == ["numpy", "cupy", "cupy bfloat16", "torch", "torch compiled", "torch bfloat16",
                            "torch bfloat16 compiled"]  # fmt: skip


# ------------------------------------------------------------------------------------------------- CuPy has it all

FILES = [ROOT / "bench" / "gpu.py", *(ROOT / "bench").glob("gp[tu]_*.py")]


def names_of_cupy(tree: ast.AST) -> set[str]:
    """Dotted names below an `xp`: "cuda.Stream" of `self.xp.cuda.Stream(...)`."""
    found = set()
    for node in ast.walk(tree):
        parts: list[str] = []
        while isinstance(node, ast.Attribute) and node.attr != "xp":
            parts.insert(0, node.attr)
            node = node.value
        below_xp = isinstance(node, ast.Name) and node.id == "xp"
        if parts and (below_xp or isinstance(node, ast.Attribute)):
            found.add(".".join(parts))
    return found


def test_cupy_has_every_name_that_bench_uses():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    names = set().union(*(names_of_cupy(ast.parse(file.read_text())) for file in FILES))
    assert {"empty", "cuda.Stream", "cuda.Event", "cuda.using_allocator", "cuda.MemoryPool", "RawModule"} <= names
    missing = []
    for name in sorted(names):
        value = cupy
        for part in name.split("."):
            if part in ("cublas", "__name__"):  # cublas.gemmEx is below: the module needs the library itself
                break
            if not hasattr(value, part):
                missing.append(name)
                break
            value = getattr(value, part)
    assert missing == []


METHODS = {
    "cuda.Stream": "synchronize begin_capture end_capture __enter__ __exit__",
    "cuda.Event": "record",
    "cuda.Graph": "launch graph",
    "cuda.MemoryPool": "malloc total_bytes free_all_blocks",
    "cuda.MemoryPointer": "memset_async",
    "cuda.Device": "cublas_handle attributes mem_info compute_capability",
    "cuda.runtime": "getDevice getDeviceProperties driverGetVersion runtimeGetVersion",
    "RawModule": "get_function",
    "ndarray": "view fill get reshape data nbytes __dlpack__",
}


def test_cupy_has_the_methods():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    for owner, names in METHODS.items():
        value = cupy
        for part in owner.split("."):
            value = getattr(value, part)
        assert [name for name in names.split() if not hasattr(value, name)] == [], owner
    assert "non_blocking" in cupy.cuda.Stream.__doc__
    assert "stream" in cupy.cuda.Graph.launch.__doc__.split("\n")[0]
    assert "value, size_t size, stream" in cupy.cuda.MemoryPointer.memset_async.__doc__


def test_the_product_is_called_as_cupy_declares_it():
    """Read from the library's file: it cannot be imported without cuBLAS."""
    pytest.importorskip("cupy", reason="CuPy is not installed")
    spec = importlib.util.find_spec("cupy_backends.cuda.libs.cublas")
    assert spec is not None
    declared = re.search(rb"[^a-z]gemmEx\(([^)]*)\)", Path(str(spec.origin)).read_bytes())
    assert declared is not None
    names = [one.split()[-1].decode() for one in declared[1].split(b", ")]
    assert names[:6] == ["handle", "transa", "transb", "m", "n", "k"]
    assert names[6:13] == ["alpha", "A", "Atype", "lda", "B", "Btype", "ldb"]
    assert names[13:] == ["beta", "C", "Ctype", "ldc", "computeType", "algo"]
