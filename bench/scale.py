"""A training step on several ranks: time and efficiency, with one batch for all and with one for each.

    python -m bench.scale                      # 1 and 2 ranks, one thread each; about 3 minutes
    python -m bench.scale --quick --case small
    python -m bench.scale --ranks 1 2 4 --json FILE

strong: the batch of one rank, shared out.   efficiency = time of 1 rank / (n time of n ranks)
weak:   the batch of one rank, on each.      efficiency = time of 1 rank / time of n ranks

`work` is the processor time of a step outside of the all-reduce, of all ranks together, over that of one rank for as
many samples: what sharing out costs where nobody waits, also on a machine that is not quiet. `between` is the share of
the first rank's time that goes to the all-reduce, waiting for slower ranks included: the most that overlap could hide.
`all-reduce ms` is one of the gradient's size by itself.
"""

import argparse
from contextlib import ExitStack
from typing import Any

from bench.gpt_case import CASES, CHECKED, Sizes
from bench.rounds import DISTURBED, Entry, Protocol, Timing, ratio, run_rounds
from bench.scale_worker import RanksWorker
from bench.table import table, write_json
from bench.worker import Worker

TOLERANCE = 2e-5  # relative, of the first losses, between one rank and several
FACTORY = "bench.scale_ours:make"


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    sizes = CASES[options.case]
    with ExitStack() as stack:
        workers: dict[int, Worker] = {n: stack.enter_context(RanksWorker(n, options.threads)) for n in options.ranks}
        facts, entries = _load(workers, sizes, options.threads)
        nbytes = facts[("strong", 1)]["gradient_bytes"]
        alone = {n: _all_reduce(worker, nbytes) for n, worker in workers.items()}
        timings = dict(zip(entries, run_rounds(list(entries.values()), options.protocol), strict=True))
        shares = {key: _shares(entry, options.protocol) for key, entry in entries.items()}
    result = {
        "bench": "scale",
        "case": options.case,
        "machine": facts[("strong", 1)],
        "gradient_bytes": nbytes,
        "rows": [_row(key, timings, shares, alone, sizes) for key in timings],
    }
    _print(result)
    write_json(options.json, result)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description="A training step on several ranks.")
    parser.add_argument("--case", choices=CASES, default="base", help="model and sizes (default: %(default)s)")
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2], metavar="N", help="numbers (default: 1 2)")
    parser.add_argument("--threads", type=int, default=1, help="of each rank (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="2 rounds in place of 9")
    parser.add_argument("--rounds", type=int, help="overrides the number of rounds")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE")
    options = parser.parse_args(arguments)
    if min(options.ranks) < 1:
        parser.error(f"--ranks takes numbers of at least 1, got {min(options.ranks)}")
    options.ranks = sorted({1, *options.ranks})
    options.protocol = Protocol(options.rounds or (2 if options.quick else 9), 2 if options.quick else 3, seconds=0.6)
    return options


Key = tuple[str, int]  # strong or weak, number of ranks


def _load(workers: dict[int, Worker], sizes: Sizes, threads: int) -> tuple[dict[Key, dict[str, Any]], dict[Key, Entry]]:
    """Build and warm up, and refuse to time ranks whose losses are not those of one rank with the whole batch."""
    facts: dict[Key, dict[str, Any]] = {}
    entries: dict[Key, Entry] = {}
    for n, worker in workers.items():
        for kind in ("strong", "weak") if n > 1 else ("strong",):
            whole = sizes._replace(batch=sizes.batch * (n if kind == "weak" else 1))
            options = {"sizes": list(whole), "threads": threads}
            facts[kind, n] = found = worker.ask("load", name=kind, factory=FACTORY, options=options)
            entries[kind, n] = Entry(worker, kind)
            if n > 1:
                options["warm_up"] = CHECKED
                true = workers[1].ask("load", name="checked", factory=FACTORY, options=options)["losses"]
                workers[1].ask("drop", name="checked")
                worst = max(abs(a - b) / abs(b) for a, b in zip(found["losses"], true, strict=True))
                if not worst <= TOLERANCE:
                    raise SystemExit(f"{kind} on {n} ranks: losses {found['losses']}, on one {true}: not timed")
    return facts, entries


def _all_reduce(worker: Worker, nbytes: int) -> float:
    return worker.ask("call", function="bench.scale_ours:all_reduce_seconds", options={"nbytes": nbytes})


def _shares(entry: Entry, protocol: Protocol) -> dict[str, float]:
    """work and between of one window."""
    found = entry.worker.ask("run", name=entry.name, steps=protocol.steps, seconds=protocol.seconds)
    return {name: found[name] for name in ("work", "between")}


def _row(
    key: Key,
    timings: dict[Key, Timing],
    shares: dict[Key, dict[str, float]],
    alone: dict[int, float],
    sizes: Sizes,
) -> dict[str, Any]:
    kind, n = key
    first, timing = timings["strong", 1], timings[key]
    speedup, work = ratio(first, timing), n if kind == "weak" else 1
    return {
        "kind": kind,
        "ranks": n,
        "batch": sizes.batch * work,
        "seconds": timing.seconds,
        "round_seconds": timing.rounds,
        "dropped_windows": len(timing.disturbed),
        "tokens_per_second": sizes.tokens * work / timing.seconds,
        "efficiency": None if speedup is None else {k: v * work / n for k, v in speedup.items() if k != "rounds"},
        "work": shares[key]["work"] / shares["strong", 1]["work"] / work,
        "between": shares[key]["between"],
        "all_reduce_seconds": alone[n],
    }


def _print(result: dict[str, Any]) -> None:
    head = ["", "ranks", "batch", "ms", "tokens/s", "efficiency", "work", "between", "all-reduce ms", "dropped"]
    print(table(head, [_cells(row) for row in result["rows"]]))
    print(f"{result['gradient_bytes'] / 1e6:.1f} MB of gradients, {result['machine']['threads']} threads a rank")
    for row in result["rows"]:
        if not any(row["round_seconds"]):
            print(
                f"{row['kind']}, {row['ranks']} ranks: others used more than {DISTURBED:.0%} of the cores in every "
                "window; time and efficiency are no measurement"
            )


def _cells(row: dict[str, Any]) -> list[str]:
    spread = row["efficiency"]
    efficiency = "?" if spread is None else f"{spread['median']:.2f} ({spread['low']:.2f}-{spread['high']:.2f})"
    times = [f"{row['seconds'] * 1e3:.1f}", f"{row['tokens_per_second']:.0f}", efficiency]
    costs = [f"{row['work']:.2f}", f"{row['between']:.1%}", f"{row['all_reduce_seconds'] * 1e3:.2f}"]
    counts = [str(row["ranks"]), str(row["batch"])]
    return [row["kind"], *counts, *times, *costs, str(row["dropped_windows"])]


if __name__ == "__main__":
    main()
