"""Time, memory and speed of one training step, ours and PyTorch's in the same run.

python -m bench.train                   # the base GPT; about 3 minutes on 2 cores
python -m bench.train --quick           # under a minute
python -m bench.train --case vit --json FILE --plot FILE --threads 1 --variants gpulayers "torch compile"
python -m bench.train --backend cupy    # on a GPU, beside NumPy: bench/gpu_train.py, with its own options
"""

import argparse
import importlib.util
import sys
from contextlib import ExitStack
from typing import Any, NamedTuple

from bench import gpu_train, machine
from bench.gpt_case import CHECKED
from bench.gpu import backend_option, take_backend
from bench.model_cases import CASES, TITLES, UNITS, ModelCase, targets
from bench.plot import plot_variants
from bench.rounds import DISTURBED, Entry, Protocol, Timing, ratio, run_rounds
from bench.table import bar, table, write_json
from bench.worker import Worker

TOLERANCE = 2e-5  # relative, of each checked loss against float64
IMPOSSIBLE = 1.25  # times the measured product rate


class Variant(NamedTuple):
    factory: str
    options: dict[str, Any]
    environment: dict[str, str]
    needs: str  # the module that must be installed


# By default malloc gives large blocks back to the system and takes them again, zeroed, in every step: no fair peer.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}

OURS, BLAS, PIECES = "gpulayers", "gpulayers BLAS", "gpulayers pieces"
VARIANTS = {
    OURS: Variant("bench.model_ours:make", {}, {}, "numpy"),
    BLAS: Variant("bench.model_ours:make", {"side_by_side": False}, {}, "numpy"),
    PIECES: Variant("bench.model_ours:make", {"side_by_side": True}, {}, "numpy"),
    "torch": Variant("bench.model_torch:make", {}, {}, "torch"),
    "torch malloc-tuned": Variant("bench.model_torch:make", {}, KEEP_MEMORY, "torch"),
    "torch compile": Variant("bench.model_torch:make", {"compiled": True}, {}, "torch"),
}
DEFAULT = [OURS, "torch", "torch malloc-tuned"]


def main(arguments: list[str] | None = None) -> None:
    backend, arguments = take_backend(arguments)
    if backend != "numpy":
        gpu_train.main(arguments, backend)
        return
    options = _options(arguments)
    case = CASES[options.case]
    names = [name for name in options.variants if importlib.util.find_spec(VARIANTS[name].needs)]
    if missing := [name for name in options.variants if name not in names]:
        print(f"not installed, so not measured: {', '.join(missing)}", file=sys.stderr)
    losses = _float64_losses(case, options.threads)
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(Worker(name, options.threads, VARIANTS[name].environment)) for name in names
        }
        facts = {name: _load(worker, name, case, options.threads, losses) for name, worker in workers.items()}
        flops_rate = _ceiling(options.threads, options.clock)
        entries = [Entry(worker, name) for name, worker in workers.items()]
        timings = dict(zip(names, run_rounds(entries, options.protocol), strict=True))
    result = _result(case, options, facts, timings, flops_rate)
    _print(result)
    write_json(options.json, result)
    if options.plot:
        plot_variants(result, options.plot)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.train", description="Time and memory of a training step.", parents=[backend_option()]
    )
    parser.add_argument("--quick", action="store_true", help="3 rounds in place of 12")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE")
    parser.add_argument("--plot", metavar="FILE", help="write a bar chart of time and memory, PNG")
    parser.add_argument("--case", choices=CASES, default="base", help="model and sizes (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=machine.cores(), help="threads of each variant (all cores)")
    parser.add_argument(
        "--variants",
        nargs="+",
        choices=VARIANTS,
        metavar="NAME",
        help=f"of {', '.join(VARIANTS)} (default: {', '.join(DEFAULT)})",
    )
    parser.add_argument("--rounds", type=int, help="overrides the number of rounds")
    parser.add_argument(
        "--clock",
        choices=machine.CLOCKS,
        default="wall",
        help="cpu: processor time, with --threads 1 on a busy machine",
    )
    options = parser.parse_args(arguments)
    if options.variants is None:
        options.variants = DEFAULT
    rounds, steps = options.rounds or (3 if options.quick else 12), 2 if options.quick else 3
    options.protocol = Protocol(rounds, steps, seconds=0.6, clock=options.clock)
    return options


def _float64_losses(case: ModelCase, threads: int) -> list[float]:
    with Worker("float64", threads) as worker:
        options = {**_make_options(case, threads), "dtype": "float64", "side_by_side": False}
        facts = worker.ask("load", name="float64", factory=VARIANTS[OURS].factory, options=options)
    return facts["losses"]


def _make_options(case: ModelCase, threads: int) -> dict[str, Any]:
    return {"kind": case.kind, "sizes": list(case.sizes), "threads": threads}


def _load(worker: Worker, name: str, case: ModelCase, threads: int, losses: list[float]) -> dict[str, Any]:
    """Build and warm up; refuse to time a step that does not compute the right thing."""
    variant = VARIANTS[name]
    options = {**_make_options(case, threads), **variant.options}
    facts = worker.ask("load", name=name, factory=variant.factory, options=options)
    facts["error"] = max(abs(a - b) / abs(b) for a, b in zip(facts["losses"], losses, strict=True))
    if not facts["error"] <= TOLERANCE:
        raise SystemExit(f"{name}: the first {CHECKED} losses are {facts['losses']}, in float64 {losses}: not timed")
    return facts


def _ceiling(threads: int, clock: str) -> float:
    with Worker("ceiling", threads) as worker:
        return worker.ask("call", function="bench.machine:blas_flops", options={"size": 2048, "clock": clock})


def _result(
    case: ModelCase, options: argparse.Namespace, facts: dict[str, Any], timings: dict[str, Timing], flops_rate: float
) -> dict[str, Any]:
    variants, sizes = {}, case.sizes
    for name, timing in timings.items():
        peers = [peer for peer in timings if peer not in (name, OURS)]
        variants[name] = {
            "seconds": timing.seconds,
            "best_seconds": timing.best,
            "round_seconds": timing.rounds,
            "dropped_windows": len(timing.disturbed),
            f"{UNITS[case.kind]}_per_second": sizes.count / timing.seconds,
            "share_of_floor": sizes.flops / flops_rate / timing.seconds,
            "ratio_to": {peer: ratio(timing, timings[peer]) for peer in peers},
            **facts[name],
        }
        if sizes.flops / timing.best > IMPOSSIBLE * flops_rate:
            raise SystemExit(f"{name}: {timing.best:.4g} s is less than the products alone can take; nothing reported")
    return {
        "bench": "train",
        "case": options.case,
        "kind": case.kind,
        "sizes": sizes._asdict(),
        "machine": machine.describe(options.threads),
        "protocol": options.protocol._asdict(),
        "flops": sizes.flops,
        "blas_flops_per_second": flops_rate,
        "floor_seconds": sizes.flops / flops_rate,
        "variants": variants,
        "targets": judged(options.case, options.threads, variants),
    }


def judged(case: str, threads: int, variants: dict[str, Any]) -> list[dict[str, Any]]:
    """The targets of the case: what was found, and whether it is met; None where it was not measured."""
    rows = []
    for target in targets(case, threads):
        time = variants.get(OURS, {}).get("ratio_to", {}).get(target.peer)
        found = {"time": None if time is None else time["median"], "memory": _memory(variants, target.peer)}
        for what, most in (("time", target.time), ("memory", target.memory)):
            if most is not None:
                value = found[what]
                met = None if value is None else value <= most
                rows.append({"peer": target.peer, "what": what, "target": most, "found": value, "met": met})
    return rows


def _memory(variants: dict[str, Any], peer: str) -> float | None:
    mine, its = (variants.get(name, {}).get("peak_bytes") for name in (OURS, peer))
    return mine / its if mine and its else None


def _print(result: dict[str, Any]) -> None:
    machine_, sizes, variants, kind = (result[key] for key in ("machine", "sizes", "variants", "kind"))
    kernels = {f"{b['library']} {b['version']} {b['kernel']}" for v in variants.values() for b in v["blas"]}
    torch = {f"torch {v['torch']}" for v in variants.values() if "torch" in v}
    words = ", ".join(f"{key} {value}" for key, value in sizes.items())
    print(f"{TITLES[kind]}, {result['case']}: {words}, float32")
    print(f"{machine_['cpu']}, {machine_['cores']} cores, {machine_['threads']} threads")
    print(", ".join([f"numpy {machine_['numpy']}", *sorted(kernels), *sorted(torch)]))
    longest, count = max(v["seconds"] for v in variants.values()), CASES[result["case"]].sizes.count
    rows = [_row(name, v["seconds"], count, longest, v) for name, v in variants.items()]
    rows.append(_row("floor", result["floor_seconds"], count, longest))
    head = ["", "ms", "", f"{UNITS[kind]}/s", "peak MB", "best ms", "of floor", "loss error", "dropped"]
    print(table(head, rows))
    print(
        f"floor: {result['flops'] / 1e9:.1f} GFLOP of matrix products at the "
        f"{result['blas_flops_per_second'] / 1e9:.0f} GFLOP/s that NumPy's BLAS reached in this run"
    )
    _print_ratios(result)


def _row(name: str, seconds: float, count: int, longest: float, v: dict[str, Any] | None = None) -> list[str]:
    row = [name, f"{seconds * 1e3:.1f}", bar(seconds, longest, 20).ljust(20), f"{count / seconds:.0f}"]
    if v is None:
        return [*row, *[""] * 5]
    peak = "" if v["peak_bytes"] is None else f"{v['peak_bytes'] / 1e6:.0f}"
    best, share = f"{v['best_seconds'] * 1e3:.1f}", f"{v['share_of_floor']:.0%}"
    return [*row, peak, best, share, f"{v['error']:.0e}", str(v["dropped_windows"])]


def _print_ratios(result: dict[str, Any]) -> None:
    variants = result["variants"]
    aims = {(row["peer"], row["what"]): row for row in result["targets"]}
    for peer, spread in variants.get(OURS, {}).get("ratio_to", {}).items():
        if spread is None:
            print(f"{OURS} / {peer}: no round in which both had a quiet window")
            continue
        spread_text = f"{spread['low']:.2f} to {spread['high']:.2f}, {spread['rounds']} rounds"
        line = f"{OURS} / {peer}: time {spread['median']:.2f} ({spread_text}){aim_text(aims.get((peer, 'time')))}"
        if (memory := _memory(variants, peer)) is not None:
            line += f"; memory {memory:.2f}{aim_text(aims.get((peer, 'memory')))}"
        print(line)
    for name, variant in variants.items():
        if not any(variant["round_seconds"]):
            print(f"{name}: others used more than {DISTURBED:.0%} of the cores in every window; this is no measurement")


def aim_text(aim: dict[str, Any] | None) -> str:
    """', target 0.82 met'; nothing without one."""
    if aim is None:
        return ""
    return f", target {aim['target']:.2f} {'met' if aim['met'] else 'NOT met'}"


if __name__ == "__main__":
    main()
