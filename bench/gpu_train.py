"""Tokens a second of the GPT step on NumPy and on a GPU side by side, and in PyTorch on that GPU.

    python -m bench.train --backend cupy                     # the step of bench.train
    python -m bench.train --backend cupy --case gpt2         # 124 M parameters, 8 x 1024 tokens; without NumPy
    python -m bench.train --backend emulated --case tiny     # the machinery without a GPU; its times mean nothing

A step is timed as a training run makes it: several in a row and one wait at their end.
"""

import argparse
import importlib.util
import statistics
import sys
from contextlib import ExitStack
from typing import Any, NamedTuple

from bench import gpu_ceilings, gpu_report, machine
from bench.gpt_case import CASES, CHECKED, Sizes
from bench.gpt_gpu import STEPS
from bench.rounds import Timing, ratio
from bench.table import bar, table, write_json
from bench.worker import Worker, WorkerError

GPT2 = Sizes(layers=12, dim=768, heads=12, length=1024, batch=8, vocab=50257)
GPU_CASES = {**CASES, "gpt2": GPT2}
TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2}  # relative, of each checked loss against float64
IMPOSSIBLE = 1.05  # times the measured product rate


class Variant(NamedTuple):
    factory: str
    options: dict[str, Any]
    dtype: str
    needs: str = "numpy"  # the module that must be installed


def variants(device: str) -> dict[str, Variant]:
    ours, torch = "bench.gpt_gpu:ours", "bench.gpt_gpu:torch"
    found = {
        "numpy": Variant(ours, {"device": "numpy", "steps": 1}, "float32"),
        device: Variant(ours, {"device": device}, "float32"),
        f"{device} bfloat16": Variant(ours, {"device": device}, "bfloat16"),
    }
    if device != "cupy":  # every step of the emulator counts
        return {name: one._replace(options={**one.options, "warm_up": CHECKED}) for name, one in found.items()}
    for dtype in ("float32", "bfloat16"):
        for compiled in (False, True):
            name = " ".join(["torch", *(["bfloat16"] if dtype == "bfloat16" else []), *(["compiled"] * compiled)])
            found[name] = Variant(torch, {"compiled": compiled}, dtype, "torch")
    return found


def main(arguments: list[str], backend: str) -> None:
    options = _options(arguments, backend)
    sizes, all_variants = GPU_CASES[options.case], variants(backend)
    try:
        with Worker("ceilings", 1) as worker:
            found = worker.ask("call", function="bench.gpt_gpu:ceilings", options=_ceiling_options(backend))
        losses = _float64_losses(sizes, backend, options.threads)
    except WorkerError as problem:  # no GPU, or one too small for the float64 step
        sys.exit(str(problem))
    print(gpu_report.ceilings(found))
    chosen = {
        name: all_variants[name] for name in options.variants if importlib.util.find_spec(all_variants[name].needs)
    }
    if missing := [name for name in options.variants if name not in chosen]:
        print(f"not installed, so not measured: {', '.join(missing)}", file=sys.stderr)
    facts: dict[str, Any] = {}
    failures: list[dict[str, str]] = []
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name, variant in chosen.items():
            worker = stack.enter_context(Worker(name, options.threads))
            try:
                facts[name] = _load(worker, name, variant, sizes, losses, options.steps)
            except (WorkerError, ValueError) as problem:  # out of memory, a compiler: the others are still measured
                failures.append({"body": name, "error": str(problem)})
                print(f"{name}: NOT MEASURED, {str(problem).splitlines()[0]}")
            else:
                workers[name] = worker
        each = {name: chosen[name].options.get("steps", options.steps) for name in workers}
        timings = _rounds(workers, each, options.rounds, options.seconds)
    result = result_of(options.case, sizes, chosen, facts, timings, found)
    result |= {"backend": backend, "losses": losses, "failures": [*result["failures"], *failures]}
    _print(result)
    write_json(options.json, result)
    if result["failures"]:
        sys.exit(f"{len(result['failures'])} of the measurements failed")


def _options(arguments: list[str], backend: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m bench.train --backend {backend}", description="Tokens a second of one GPT training step."
    )
    names = variants(backend)
    parser.add_argument("--quick", action="store_true", help="2 rounds in place of 7")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE")
    default = "base" if backend == "cupy" else "tiny"
    parser.add_argument("--case", choices=GPU_CASES, default=default, help="sizes of the model (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=machine.cores(), help="threads of the NumPy variant (all cores)")
    parser.add_argument("--variants", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--rounds", type=int, help="overrides the number of rounds")
    options = parser.parse_args(arguments)
    options.variants = options.variants or [name for name in names if not (name == "numpy" and options.case == "gpt2")]
    options.rounds = options.rounds or (2 if options.quick else 7)
    options.steps, options.seconds = (STEPS, 0.6) if backend == "cupy" else (1, 0.0)
    return options


def _ceiling_options(backend: str) -> dict[str, Any]:
    if backend == "cupy":
        return {"device": backend, "copy_bytes": gpu_ceilings.COPY_BYTES, "product": gpu_ceilings.PRODUCT}
    return {"device": backend, "copy_bytes": 1 << 12, "product": 32}


def _float64_losses(sizes: Sizes, backend: str, threads: int) -> list[float]:
    """By the reference bodies: on the GPU, as array code, since a large model would take the host minutes."""
    device = "cupy" if backend == "cupy" else "numpy"
    options = {"sizes": list(sizes), "device": device, "dtype": "float64", "steps": 1, "warm_up": CHECKED}
    with Worker("float64", threads) as worker:
        return worker.ask("load", name="float64", factory="bench.gpt_gpu:ours", options=options)["losses"]


def _load(worker: Worker, name: str, variant: Variant, sizes: Sizes, losses: list[float], steps: int) -> dict[str, Any]:
    """Build and warm up; refuse to time a step that does not compute the right thing."""
    options = {"sizes": list(sizes), "dtype": variant.dtype, "steps": steps, **variant.options}
    facts = worker.ask("load", name=name, factory=variant.factory, options=options)
    facts["error"] = max(abs(a - b) / abs(b) for a, b in zip(facts["losses"], losses, strict=True))
    if not facts["error"] <= TOLERANCE[variant.dtype]:
        raise ValueError(f"the first {CHECKED} losses are {facts['losses']}, in float64 {losses}: not timed")
    return facts


def _rounds(workers: dict[str, Worker], steps: dict[str, int], rounds: int, seconds: float) -> dict[str, Timing]:
    """Seconds of a training step, each variant once in each round. Who else uses the cores hardly disturbs a GPU, so
    every window counts."""
    timings = {name: Timing() for name in workers}
    for number in range(rounds):
        names = list(workers)
        for k in range(len(names)):
            name = names[(k + number) % len(names)]
            window = workers[name].ask("run", name=name, steps=1, seconds=seconds)
            timings[name].rounds.append(statistics.median(window["times"]) / steps[name])
    return timings


def result_of(
    case: str,
    sizes: Sizes,
    chosen: dict[str, Variant],
    facts: dict[str, Any],
    timings: dict[str, Timing],
    found: dict[str, Any],
) -> dict[str, Any]:
    """What goes into the JSON. A variant faster than its products can be is an entry of `failures`."""
    measured, failures = {}, []
    for name, timing in timings.items():
        seconds, best = timing.seconds, timing.best
        product = found["product"] if name != "numpy" else None
        if product and sizes.flops / best > IMPOSSIBLE * product:
            failures.append({"body": name, "error": f"{best:.4g} s is less than the products alone can take"})
            continue
        measured[name] = {
            "seconds": seconds,
            "best_seconds": best,
            "round_seconds": timing.rounds,
            "tokens_per_second": sizes.tokens / seconds,
            "share_of_floor": sizes.flops / product / seconds if product else None,
            "dtype": chosen[name].dtype,
            **facts[name],
        }
    for name, one in measured.items():
        one["ratio_to"] = {peer: ratio(timings[name], timings[peer]) for peer in measured if peer != name}
    return {
        "bench": "train",
        "case": case,
        "sizes": sizes._asdict(),
        "machine": found["machine"],
        "ceilings": {key: value for key, value in found.items() if key != "machine"},
        "flops": sizes.flops,
        "variants": measured,
        "failures": failures,
    }


def _print(result: dict[str, Any]) -> None:
    print(f"GPT step, {result['case']}: " + ", ".join(f"{key} {value}" for key, value in result["sizes"].items()))
    print(", ".join(f"{key} {value}" for key, value in result["machine"].items()))
    if result["backend"] == "emulated":
        print("EMULATED: the times are the emulator's and say nothing about a GPU")
    measured = result["variants"]
    most = max((one["tokens_per_second"] for one in measured.values()), default=1.0)
    rows = []
    for name, one in measured.items():
        share, memory = one["share_of_floor"], one["pool_bytes"]
        rows.append([
            name,
            f"{one['tokens_per_second']:.0f}",
            bar(one["tokens_per_second"], most, 30),
            f"{one['seconds'] * 1e3:.2f}",
            f"{one['enqueue_seconds'] * 1e3:.2f}",
            "" if one["kernels"] is None else str(one["kernels"]),
            "" if memory is None else f"{memory / 1e6:.0f}",
            "" if share is None else f"{share:.0%}",
            f"{one['error']:.0e}",
        ])  # fmt: skip
    head = ["", "tokens/s", "", "ms", "Python ms", "our kernels", "peak MB", "of bf16 floor", "loss error"]
    print(table(head, rows))
    for failure in result["failures"]:
        print(f"{failure['body']}: NOT MEASURED, {failure['error'].splitlines()[0]}")
