"""Tokens a second of a GPT that writes, with and without the cache of keys and values, beside `transformers`.

python -m bench.generate                # 124 million random weights, a prompt of 128, 32 tokens; about 4 minutes
python -m bench.generate --quick        # 2 rounds
python -m bench.generate --threads 1 --clock cpu --json FILE          # on a machine that is never quiet
python -m bench.generate --variants gpulayers "transformers sdpa"
"""

import argparse
import importlib.util
import statistics
import sys
from contextlib import ExitStack
from typing import Any, NamedTuple

from bench import machine
from bench.generate_case import CASES, Sizes
from bench.rounds import DISTURBED, Entry, Protocol, Timing, ratio, run_rounds
from bench.table import table, write_json
from bench.worker import Worker

TOLERANCE = 1e-4  # of the largest logit, against float64: a sum of 3072 terms, then of 768, in 12 layers
IMPOSSIBLE = 1.25  # times the measured rate of reading or of products


class Variant(NamedTuple):
    factory: str
    options: dict[str, Any]
    needs: tuple[str, ...]


OURS, PEER = "gpulayers", "transformers"
VARIANTS = {
    OURS: Variant("bench.generate_ours:make", {}, ("numpy",)),
    PEER: Variant("bench.generate_torch:make", {"attention": "eager"}, ("torch", "transformers")),
    "transformers sdpa": Variant("bench.generate_torch:make", {"attention": "sdpa"}, ("torch", "transformers")),
}
PHASES = {
    "prefill": "the prompt is read at once; tokens of the prompt a second",
    "decode": "one token at a time behind the prompt, keys and values kept",
    "uncached": "a token without the cache: prompt and tokens are read as a whole",
    "generate": "prompt and tokens by the function that people call, greedily",
}
TARGET = 1.0  # of our time over that of `transformers`, for what is called out by a target
AIMED = ("prefill", "decode", "generate")


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    sizes, threads = CASES[options.case], options.threads
    names = [name for name in options.variants if all(importlib.util.find_spec(n) for n in VARIANTS[name].needs)]
    if missing := [name for name in options.variants if name not in names]:
        print(f"not installed, so not measured: {', '.join(missing)} (pip install torch transformers)", file=sys.stderr)
    expected = _float64(sizes, options.phases)
    with ExitStack() as stack:
        workers = {name: stack.enter_context(Worker(name, threads)) for name in names}
        facts = {
            n: {p: _load(w, n, p, sizes, threads, expected[p]) for p in options.phases} for n, w in workers.items()
        }
        ceilings = _ceilings(threads, options.clock)
        timings = {
            phase: dict(
                zip(names, run_rounds([Entry(w, phase) for w in workers.values()], options.protocol), strict=True)
            )
            for phase in options.phases
        }
    result = _result(options, sizes, facts, timings, ceilings)
    _print(result, sizes)
    write_json(options.json, result)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.generate", description="Speed of a GPT that writes.")
    parser.add_argument("--quick", action="store_true", help="2 rounds in place of 7")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE")
    parser.add_argument("--case", choices=CASES, default="gpt2", help="sizes (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=machine.cores(), help="threads of each variant (all cores)")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="NAME")
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=list(PHASES), metavar="NAME")
    parser.add_argument("--rounds", type=int, help="overrides the number of rounds")
    parser.add_argument(
        "--clock",
        choices=machine.CLOCKS,
        default="wall",
        help="cpu: processor time, with --threads 1 on a busy machine",
    )
    options = parser.parse_args(arguments)
    options.protocol = Protocol(
        options.rounds or (2 if options.quick else 7), steps=1, seconds=0.2, clock=options.clock
    )
    return options


def _float64(sizes: Sizes, phases: list[str]) -> dict[str, dict[str, Any]]:
    """The right logits of each phase."""
    with Worker("float64", machine.cores()) as worker:
        options = {"sizes": list(sizes), "threads": machine.cores(), "dtype": "float64"}
        return {
            phase: worker.ask("load", name=phase, factory=VARIANTS[OURS].factory, options={**options, "phase": phase})
            for phase in phases
        }


def _load(
    worker: Worker, name: str, phase: str, sizes: Sizes, threads: int, expected: dict[str, Any]
) -> dict[str, Any]:
    """Build and warm up; refuse to time what does not compute the right thing."""
    options = {"phase": phase, "sizes": list(sizes), "threads": threads, **VARIANTS[name].options}
    facts = worker.ask("load", name=phase, factory=VARIANTS[name].factory, options=options)
    differences = [abs(a - b) for a, b in zip(facts.pop("logits"), expected["logits"], strict=True)]
    if phase == "generate":  # ids, which a rounding may change where two logits are as good as equal
        facts["error"] = statistics.mean(d > 0 for d in differences)
        return facts
    facts["error"] = max(differences) / expected["largest"]
    if not facts["error"] <= TOLERANCE:
        raise SystemExit(f"{name}, {phase}: logits are {facts['error']:.1e} of the largest off float64: not timed")
    return facts


def _ceilings(threads: int, clock: str) -> dict[str, float]:
    with Worker("ceiling", threads) as worker:
        options = {"clock": clock}
        return {
            "read": worker.ask("call", function="bench.machine:read_bandwidth", options=options),
            "flops": worker.ask("call", function="bench.machine:blas_flops", options={"size": 2048, **options}),
        }


def _floor(phase: str, sizes: Sizes, ceilings: dict[str, float]) -> float:
    """The least seconds of one step of a phase."""
    s = sizes
    flops, read = s.prefill_flops / ceilings["flops"], s.bytes_read / ceilings["read"]
    if phase == "uncached":
        return s._replace(prompt=s.prompt + s.tokens).prefill_flops / ceilings["flops"]
    return {"prefill": flops, "decode": s.tokens * read, "generate": flops + (s.tokens - 1) * read}[phase]


def count(phase: str, sizes: Sizes) -> int:
    """Tokens of one step of a phase."""
    return {"prefill": sizes.prompt, "uncached": 1}.get(phase, sizes.tokens)


def _result(
    options: argparse.Namespace,
    sizes: Sizes,
    facts: dict[str, Any],
    timings: dict[str, dict[str, Timing]],
    ceilings: dict[str, float],
) -> dict[str, Any]:
    phases = {}
    for phase, its in timings.items():
        floor = _floor(phase, sizes, ceilings)
        phases[phase] = {"floor_seconds": floor, "tokens": count(phase, sizes), "variants": {}}
        for name, timing in its.items():
            if timing.best * IMPOSSIBLE < floor:
                raise SystemExit(
                    f"{name}, {phase}: {timing.best:.4g} s is less than its floor, {floor:.4g} s: an error"
                )
            phases[phase]["variants"][name] = {
                "seconds": timing.seconds,
                "round_seconds": timing.rounds,
                "dropped_windows": len(timing.disturbed),
                "tokens_per_second": count(phase, sizes) / timing.seconds,
                "ratio_to": {p: ratio(timing, its[p]) for p in its if p not in (name, OURS)},
                **facts[name][phase],
            }
    return {
        "bench": "generate",
        "case": options.case,
        "sizes": {**sizes._asdict(), "weights": sizes.weights, "bytes_read": sizes.bytes_read},
        "machine": machine.describe(options.threads),
        "protocol": options.protocol._asdict(),
        "ceilings": ceilings,
        "phases": phases,
    }


def _print(result: dict[str, Any], sizes: Sizes) -> None:
    machine_, ceilings = result["machine"], result["ceilings"]
    print(f"GPT, {result['case']}: {', '.join(f'{k} {v}' for k, v in sizes._asdict().items())}, float32, batch 1")
    print(f"{machine_['cpu']}, {machine_['cores']} cores, {machine_['threads']} threads")
    rows = []
    for phase, its in result["phases"].items():
        tokens, floor = its["tokens"], its["floor_seconds"]
        for name, v in its["variants"].items():
            ms, error = v["seconds"] / tokens * 1e3, f"{v['error']:.0e}"
            peer = v["ratio_to"].get(PEER) or {"median": float("nan")}
            against = f"{peer['median']:.2f}" if name == OURS and peer["median"] == peer["median"] else ""
            row = [phase, name, f"{ms:.2f}", f"{tokens / v['seconds']:.1f}", f"{floor / v['seconds']:.0%}"]
            rows.append([*row, error, str(v["dropped_windows"]), against])
        rows.append([phase, "floor", f"{floor / tokens * 1e3:.2f}", f"{tokens / floor:.1f}", "", "", "", ""])
    print(table(["", "", "ms/token", "tokens/s", "of floor", "error", "dropped", f"/ {PEER}"], rows))
    print(
        f"floor: {sizes.bytes_read / 1e6:.0f} MB of weights, keys and values a token at the "
        f"{ceilings['read'] / 1e9:.1f} GB/s at which this run could read; products of the prompt at "
        f"{ceilings['flops'] / 1e9:.0f} GFLOP/s"
    )
    print("\n".join(f"{phase}: {PHASES[phase]}" for phase in result["phases"]))
    _print_ratios(result)


def _print_ratios(result: dict[str, Any]) -> None:
    for phase, its in result["phases"].items():
        for peer, spread in its["variants"].get(OURS, {}).get("ratio_to", {}).items():
            if spread is None:
                print(f"{phase}: {OURS} / {peer}: no round in which both had a quiet window")
                continue
            aim = ""
            if peer == PEER and phase in AIMED:
                aim = f", target {TARGET:.2f} {'met' if spread['median'] <= TARGET else 'NOT met'}"
            between = f"{spread['low']:.2f} to {spread['high']:.2f}, {spread['rounds']} rounds"
            print(f"{phase}: {OURS} / {peer}: time {spread['median']:.2f} ({between}){aim}")
        for name, variant in its["variants"].items():
            if not any(variant["round_seconds"]):
                print(
                    f"{phase}, {name}: others used more than {DISTURBED:.0%} of the cores in every window; this is no "
                    "measurement"
                )


if __name__ == "__main__":
    main()
