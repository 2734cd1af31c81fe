"""bench.scale on a tiny case, and the model of many GPUs: its formulas against rings and trees that are played through,
and the tables of docs/parallel.md."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ranks import needs_mpi

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # bench is not installed; it is run from the repository

from bench import scale_model  # noqa: E402 after the path
from bench.scale_model import Cost, Machine, cost  # noqa: E402


@needs_mpi
def test_scale(tmp_path):
    path = tmp_path / "scale.json"
    arguments = ["--quick", "--rounds", "1", "--case", "tiny", "--json", str(path)]
    done = subprocess.run(
        [sys.executable, "-m", "bench.scale", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(path.read_text())
    rows = {(row["kind"], row["ranks"]): row for row in result["rows"]}
    assert {key: row["batch"] for key, row in rows.items()} == {("strong", 1): 2, ("strong", 2): 2, ("weak", 2): 4}
    assert all(row["seconds"] > 0 and row["work"] > 0 and 0 <= row["between"] < 1 for row in rows.values())
    assert rows["strong", 1]["work"] == 1
    assert result["gradient_bytes"] > 0
    assert "efficiency" in done.stdout


# ---------------------------------------------------------------------------------------------------- the model


def ring(arrays):
    """Bytes that each rank sends, and messages one after the other, while every array becomes the sum of all."""
    n, sent, messages = len(arrays), 0, 0
    pieces = [np.array_split(array, n) for array in arrays]
    for phase in ("reduce-scatter", "all-gather"):
        for step in range(n - 1):
            first = 0 if phase == "reduce-scatter" else 1
            moving = [(rank, (rank + first - step) % n) for rank in range(n)]
            parcels = [pieces[rank][k].copy() for rank, k in moving]
            for (rank, k), parcel in zip(moving, parcels, strict=True):
                there = pieces[(rank + 1) % n]
                there[k] = there[k] + parcel if phase == "reduce-scatter" else parcel
            sent += parcels[0].nbytes
            messages += 1
    return sent, messages, [np.concatenate(its) for its in pieces]


@pytest.mark.parametrize("n", [2, 3, 8])
def test_a_ring_sends_what_the_formula_says(n):
    arrays = [np.random.default_rng(r).integers(0, 100, 24 * n).astype(np.float32) for r in range(n)]
    sent, messages, sums = ring(arrays)
    assert all(np.array_equal(one, np.sum(arrays, axis=0)) for one in sums)
    found = cost(n, 24 * n, tokens=1)
    assert found.sent == sent == 2 * (n - 1) / n * arrays[0].nbytes
    assert messages == 2 * (n - 1)
    # with endless bandwidth what is left is the latency of the shorter way, with no latency the ring's bytes
    endless = Machine(inside=math.inf, latency_inside=1.0)
    assert cost(n, 24 * n, 1, machine=endless).all_reduce == min(messages, 2 * math.ceil(math.log2(n)))
    free = Machine(inside=1.0, latency_inside=0.0)
    assert cost(n, 24 * n, 1, machine=free).all_reduce == sent


def test_nodes_efficiency_and_overlap():
    assert cost(1, 1e6, 1e3).all_reduce == 0
    assert cost(1, 1e6, 1e3).efficiency(0) == 1
    slow = Machine(between=1e9)
    assert cost(8, 1e6, 1e3, machine=slow).all_reduce == cost(8, 1e6, 1e3).all_reduce  # all in one node
    assert cost(16, 1e9, 1e3, machine=slow).all_reduce == pytest.approx(2 * 15 / 16 * 4, rel=1e-3)
    fast = Machine(between=1e15)  # more than NVLink brings up to the cards
    assert cost(16, 1e9, 1e3, machine=fast).all_reduce == pytest.approx(2 * 15 / 16 * 4e9 / 450e9, rel=0.1)
    assert cost(1024, 1e6, 1e3).all_reduce < 2 * 1023 * Machine().latency_between  # the tree has fewer messages
    assert cost(8, 1e9, 100).compute == pytest.approx(6 * 1e9 * 100 / (0.4 * 989e12))
    step = Cost(8, sent=0.0, all_reduce=1.0, compute=3.0)
    assert [step.efficiency(overlap) for overlap in (0, 0.25, 0.5, 1)] == [3 / 4, 3 / 3.5, 1, 1]


@pytest.mark.parametrize("between", [Machine.between, 12.5e9])
def test_the_tables_of_the_page(between):
    page = (ROOT / "docs" / "parallel.md").read_text(encoding="utf-8")
    rows = scale_model.rows(124e6, 8192, 4, Machine(between=between))
    printed = ["| " + " | ".join(row) + " |" for row in [scale_model.HEAD, ["---"] * len(scale_model.HEAD), *rows]]
    assert "\n".join(printed) in page
