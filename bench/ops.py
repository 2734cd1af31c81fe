"""Every op: each of its bodies and PyTorch's counterpart, against what the machine could do.

    python -m bench.ops                       # all ops
    python -m bench.ops --quick               # what the models' steps consist of, without the references
    python -m bench.ops softmax layernorm --json FILE --threads 1
    python -m bench.ops --backend cupy        # every kernel on a GPU: bench.gpu, with its own options

The floor of an op is the larger of (bytes that must be moved) / (copy bandwidth at that size) and (operations of its
matrix products) / (BLAS rate), both measured in this run.
"""

import argparse
import importlib.util
from contextlib import ExitStack
from typing import Any

from bench import gpu, machine
from bench.all_cases import CASES
from bench.plot import plot_ratios
from bench.rounds import Entry, Protocol, Timing, ratio, run_rounds
from bench.table import table, write_json
from bench.target_cases import TargetCase
from bench.worker import Worker

HOST_BODIES = ("reference", "cpu")
QUICK = (
    "matmul", "sum_rows", "layernorm", "layernorm_backward", "attention", "attention_backward", "softmax", "dropout",
    "gelu exact", "gelu_with_derivative_inplace", "scatter_add", "gru_cell", "gru_cell_backward", "adam", "GRU layer",
    "layernorm both", "attention both", "embedding gradient", "adam 20 tensors", "adam 20 tensors, fused",
)  # fmt: skip
IMPOSSIBLE = (
    2  # times the copy bandwidth of all threads together (a copy also reads what it overwrites), or the BLAS rate
)


def main(arguments: list[str] | None = None) -> None:
    backend, arguments = gpu.take_backend(arguments)
    if backend != "numpy":
        gpu.main(arguments, backend)
        return
    options = _options(arguments)
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        workers = {"gpulayers": stack.enter_context(Worker("gpulayers", options.threads))}
        if importlib.util.find_spec("torch") and not options.no_torch:
            workers["torch"] = stack.enter_context(Worker("torch", options.threads))
        flops_rate = workers["gpulayers"].ask(
            "call", function="bench.machine:blas_flops", options={"clock": options.clock}
        )
        described = workers["gpulayers"].ask(
            "call", function="bench.machine:describe", options={"threads": options.threads}
        )
        for case in options.ops or (QUICK if options.quick else CASES):
            found = _measure(case, workers, options, flops_rate)
            _print(found, first=not rows)
            rows += found
    result = {"bench": "ops", "machine": described, "blas_flops_per_second": flops_rate, "rows": rows}
    write_json(options.json, result)
    if options.plot:
        plot_ratios(result, options.plot)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.ops",
        description="Every op against what the machine can do.",
        parents=[gpu.backend_option()],
    )
    parser.add_argument("ops", nargs="*", metavar="OP", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 50 ms in place of 7 of 200 ms, fewer ops")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE")
    parser.add_argument("--plot", metavar="FILE", help="write a bar chart of the ratios to PyTorch, PNG")
    parser.add_argument("--threads", type=int, default=machine.cores(), help="threads of BLAS and PyTorch (all cores)")
    parser.add_argument(
        "--clock",
        choices=machine.CLOCKS,
        default="wall",
        help="cpu: processor time, with --threads 1 on a busy machine",
    )
    parser.add_argument("--rounds", type=int, help="overrides the number of rounds")
    parser.add_argument("--no-torch", action="store_true", help="leave PyTorch out although it is installed")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.ops if name not in CASES]:
        parser.error(f"no case {unknown[0]!r}; there are {', '.join(CASES)}")
    rounds, seconds, patience = (2, 0.05, 1) if options.quick else (7, 0.2, 3)
    options.protocol = Protocol(options.rounds or rounds, 1, seconds, patience, options.clock)
    return options


def _measure(
    case: str, workers: dict[str, Worker], options: argparse.Namespace, flops_rate: float
) -> list[dict[str, Any]]:
    """One row for each body of the op, and one for PyTorch."""
    facts, entries = _load(case, workers, options.threads, options.quick)
    first = next(iter(facts.values()))
    nbytes, flops = first["bytes"], first["flops"]
    choice = {"nbytes": nbytes, "seconds": 0.05, "clock": options.clock}
    copy = workers["gpulayers"].ask("call", function="bench.machine:copy_bandwidth", options=choice)
    timings = dict(zip(facts, run_rounds(entries, options.protocol), strict=True))
    for entry in entries:
        entry.worker.ask("drop", name=entry.name)
    shared = {
        "case": case,
        "bytes": nbytes,
        "flops": flops,
        "copy_bytes_per_second": copy,
        "floor_seconds": max(nbytes / copy, flops / flops_rate),
    }
    least = max(nbytes / (copy * options.threads), flops / flops_rate) / IMPOSSIBLE
    peer = timings.get("torch")
    return [_row(shared, body, timing, peer, least, facts[body]["error"]) for body, timing in timings.items()]


def _load(
    case: str, workers: dict[str, Worker], threads: int, quick: bool
) -> tuple[dict[str, dict[str, Any]], list[Entry]]:
    facts, entries = {}, []
    for body in bodies(case, threads, quick):
        options = {"case": case, "body": body, "threads": threads}
        facts[body] = workers["gpulayers"].ask("load", name=body, factory="bench.ops_ours:make", options=options)
        entries.append(Entry(workers["gpulayers"], body))
    if "torch" in workers and CASES[case].peer:
        options = {"case": case, "threads": threads}
        facts["torch"] = workers["torch"].ask("load", name="torch", factory="bench.ops_torch:make", options=options)
        entries.append(Entry(workers["torch"], "torch"))
    return facts, entries


def bodies(case: str, threads: int, quick: bool = False) -> list[str]:
    """What is timed. Of a case with targets the reference is not: it is there to check, and takes minutes."""
    chosen = CASES[case]
    if isinstance(chosen, TargetCase):
        return ["cpu", "threads"] if chosen.threaded and threads > 1 else ["cpu"]
    found = [body for body in HOST_BODIES if body in chosen.op.bodies]
    return found[1:] if quick and len(found) > 1 else found


def _row(
    shared: dict[str, Any], body: str, timing: Timing, peer: Timing | None, least: float, error: float
) -> dict[str, Any]:
    if timing.best < least:
        raise SystemExit(f"{shared['case']}, {body}: {timing.best:.3g} s is impossible, its floor is {least:.3g} s")
    found = ratio(timing, peer) if peer and body != "torch" else None
    case = CASES[shared["case"]]
    aim = dict(case.aims).get(body) if isinstance(case, TargetCase) else None
    return {
        **shared,
        "body": body,
        "seconds": timing.seconds,
        "round_seconds": timing.rounds,
        "dropped_windows": len(timing.disturbed),
        "share_of_floor": shared["floor_seconds"] / timing.seconds,
        "ratio_to_torch": found,
        "target": aim,
        "met": None if aim is None or found is None else found["median"] <= aim,
        "error": error,
    }


HEAD = ["op", "body", "ms", "MB", "GB/s", "copy GB/s", "GFLOP/s", "of floor", "/ torch", "range", "error", "target"]
WIDTHS = [28, 9, 8, 6, 6, 9, 7, 8, 7, 11, 7, 12]


def _print(rows: list[dict[str, Any]], first: bool) -> None:
    """A few lines at a time, as they come, in columns of fixed width."""
    cells = []
    for row in rows:
        spread = row["ratio_to_torch"]
        ratio_cells = [f"{spread['median']:.2f}", f"{spread['low']:.2f}-{spread['high']:.2f}"] if spread else ["", ""]
        mark = "" if any(row["round_seconds"]) else "?"  # no quiet window: no measurement
        cells.append([
            row["case"] if row is rows[0] else "",
            row["body"],
            f"{mark}{row['seconds'] * 1e3:.3f}",
            f"{row['bytes'] / 1e6:.1f}",
            f"{row['bytes'] / row['seconds'] / 1e9:.1f}",
            f"{row['copy_bytes_per_second'] / 1e9:.1f}",
            f"{row['flops'] / row['seconds'] / 1e9:.0f}" if row["flops"] else "",
            f"{row['share_of_floor']:.0%}",
            *ratio_cells,
            f"{row['error']:.0e}",
            _target(row),
        ])  # fmt: skip
    print(table(HEAD, cells, WIDTHS, headed=first), flush=True)


def _target(row: dict[str, Any]) -> str:
    if row["target"] is None:
        return ""
    return f"{row['target']:.2f} {({True: 'met', False: 'NOT', None: '?'})[row['met']]}"


if __name__ == "__main__":
    main()
