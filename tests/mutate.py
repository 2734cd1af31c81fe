"""Plants faults in the CUDA kernels and tells which of them the kernels' tests notice: `python -m tests.mutate`.

Exit status 1 if a fault survives that docs/mutation.md does not explain, or a kernel's tests fail without any fault.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.mutation.campaign import Campaign, Outcome
from tests.mutation.operators import KINDS, faults, sample
from tests.mutation.source import Source
from tests.mutation.survivors import PAGE, Key, explained, key_of, row

COLUMNS = ("faults", "value", "check", "limit", "survived", "explained", "same", "refused")


def arguments(words: list[str] | None) -> argparse.Namespace:
    kinds = "\n".join(f"  {name:12}{one.__doc__}" for name, one in KINDS.items())
    legend = (
        "killed by: a wrong value, a check of the emulator, its limit of steps; explained: in docs/mutation.md;\n"
        "same: the compiler makes the same program of it; refused: it does not compile"
    )
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutate", description=__doc__, epilog=f"kinds of faults:\n{kinds}\n\n{legend}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "--kernel", action="append", metavar="NAME", help="only this file of kernels/, with or without suffix"
    )
    parser.add_argument("--kind", action="append", choices=list(KINDS), metavar="KIND", help="only faults of this kind")
    parser.add_argument("--most", type=int, default=6, metavar="N", help="so many faults a file, 0 for all (default 6)")
    parser.add_argument("--seed", type=int, default=0, help="which faults (default 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes at a time")
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier runs")
    parser.add_argument("--list", action="store_true", help="print the faults, run nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every outcome")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    options = arguments(words)
    with tempfile.TemporaryDirectory(prefix="mutate-") as scratch:
        campaign = Campaign(Path(scratch).resolve(), options.jobs, options.fresh)
        sources = chosen(campaign, options.kernel)
        every = {one.name: [fault for fault in faults(one) if fault.kind in (options.kind or KINDS)] for one in sources}
        planted = [fault for pile in every.values() for fault in sample(pile, options.most, options.seed)]
        if options.list:
            for one in planted:
                text = campaign.sources[one.file].text
                print(f"{one.file}:{one.line(text)} {one.kind}: {one.marked(text)}")
            return 0
        needed = [k for k in campaign.kernels if any(one.name in campaign.closure(f"{k}.cu") for one in sources)]
        say(f"{len(planted)} faults of {sum(map(len, every.values()))}; {len(needed)} kernels' tests run once without")
        campaign.run_normal(needed, say)
        planted = [one for one in planted if campaign.users(one)]
        outcomes = campaign.run(planted, say)
    status = report(campaign, outcomes, options.json, all_files=not (options.kernel or options.kind))
    return status if len(campaign.normal) == len(needed) else 1


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def chosen(campaign: Campaign, names: list[str] | None) -> list[Source]:
    """The sources that were asked for."""
    if not names:
        return list(campaign.sources.values())
    wanted = {name if "." in name else f"{name}.cu" for name in names}
    if unknown := wanted - set(campaign.sources):
        raise SystemExit(f"no such file in kernels/: {', '.join(sorted(unknown))}")
    return [campaign.sources[name] for name in sorted(wanted)]


def report(campaign: Campaign, outcomes: list[Outcome], file: Path | None, all_files: bool) -> int:
    """Two tables, the survivors, and the exit status."""
    reasons = explained()
    keys = {one.fault: key_of(one.fault, campaign.sources[one.fault.file].text) for one in outcomes}
    table("file", [(one.fault.file, one, keys[one.fault] in reasons) for one in outcomes])
    table("kind", [(one.fault.kind, one, keys[one.fault] in reasons) for one in outcomes])
    survivors = [one for one in outcomes if one.outcome == "survived"]
    for one in survivors:
        text, key = campaign.sources[one.fault.file].text, keys[one.fault]
        place = one.fault.line(text)
        print(f"\nkernels/{key.file}:{place} {key.function}, {key.kind}: {reasons.get(key, 'NOT EXPLAINED')}")
        for sign, version in (("-", text), ("+", one.fault.apply(text))):
            print(f"  {sign} {version.splitlines()[place - 1].strip()}")
    new = [keys[one.fault] for one in survivors if keys[one.fault] not in reasons]
    if new:
        print(f"\nTo be explained in {PAGE.relative_to(PAGE.parents[1])}, or killed by a new test:\n")
        print("\n".join(row(key, "...") for key in new))
    if all_files and (gone := set(reasons) - possible(campaign)):
        print("\nExplained there, and no such fault any more:\n")
        print("\n".join(row(key, reasons[key]) for key in sorted(gone)))
    if file:
        rows = [keys[one.fault]._asdict() | one._asdict() | {"fault": one.fault._asdict()} for one in outcomes]
        file.write_text(json.dumps(rows, indent=1, ensure_ascii=False), "utf-8")
    return 1 if new else 0


def possible(campaign: Campaign) -> set[Key]:
    """The keys of all faults."""
    return {key_of(fault, source.text) for source in campaign.sources.values() for fault in faults(source)}


def table(title: str, rows: list[tuple[str, Outcome, bool]]) -> None:
    """Counts for each name, and their sum."""
    counts: dict[str, Counter[str]] = {}
    for name, one, known in rows:
        for line in (name, "all"):
            column = one.how if one.outcome == "killed" else one.outcome
            counts.setdefault(line, Counter()).update(
                {"faults": 1, column: 1, "explained": int(known and column == "survived")}
            )
    print(f"\n{title:20}" + "".join(f"{column:>10}" for column in COLUMNS))
    for name in sorted(counts, key=lambda name: (name == "all", name)):
        print(f"{name:20}" + "".join(f"{counts[name][column] or '.':>10}" for column in COLUMNS))


if __name__ == "__main__":
    sys.exit(main())
