"""Two runs side by side: `python -m bench compare OLD.json NEW.json`."""

import json
import sys
from pathlib import Path
from typing import Any

from bench.table import table


def main(arguments: list[str]) -> None:
    if len(arguments) != 2:
        sys.exit("usage: python -m bench compare OLD.json NEW.json")
    old, new = (json.loads(Path(path).read_text()) for path in arguments)
    if old["bench"] != new["bench"]:
        sys.exit(f"one file is of bench.{old['bench']}, the other of bench.{new['bench']}")
    for key in old["machine"]:
        if old["machine"][key] != new["machine"].get(key):
            print(f"{key}: {old['machine'][key]} before, {new['machine'].get(key)} now")
    before, after = _times(old), _times(new)
    if old.get("case") != new.get("case"):
        sys.exit(f"one file is of the case {old.get('case')}, the other of {new.get('case')}")
    both = [name for name in before if name in after]
    head, columns = ["", "old ms", "new ms", "new / old"], [both]
    columns.append([f"{before[name] * 1e3:.3f}" for name in both])
    columns.append([f"{after[name] * 1e3:.3f}" for name in both])
    columns.append([f"{after[name] / before[name]:.2f}" for name in both])
    for title, figure in (("MB", _megabytes), ("/ torch", _ratios)):
        found = figure(old), figure(new)
        if any(found):
            head += [f"old {title}", f"new {title}"]
            columns += [[one.get(name, "") for name in both] for one in found]
    print(table(head, list(zip(*columns, strict=True))))
    _print_targets(old, new)
    for label, names in (
        ("only in the old", before.keys() - after.keys()),
        ("only in the new", after.keys() - before.keys()),
    ):
        if names:
            print(f"{label} file: {', '.join(sorted(names))}")


def _times(result: dict[str, Any]) -> dict[str, float]:
    """Name -> seconds, of either bench."""
    if result["bench"] == "train":
        return {name: variant["seconds"] for name, variant in result["variants"].items()}
    return {f"{row['case']} {row['body']}": row["seconds"] for row in result["rows"]}


def _megabytes(result: dict[str, Any]) -> dict[str, str]:
    """Name -> peak memory, of the models."""
    variants = result.get("variants", {}).items()
    return {name: f"{v['peak_bytes'] / 1e6:.0f}" for name, v in variants if v.get("peak_bytes")}


def _ratios(result: dict[str, Any]) -> dict[str, str]:
    """Name -> median of the ratios to PyTorch as it comes."""
    if result["bench"] == "train":
        found = {name: v["ratio_to"].get("torch") for name, v in result["variants"].items() if v.get("ratio_to")}
    else:
        found = {f"{row['case']} {row['body']}": row.get("ratio_to_torch") for row in result["rows"]}
    return {name: f"{spread['median']:.2f}" for name, spread in found.items() if spread}


def _print_targets(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Those that were met and are not any more, or the other way round."""
    before = {_target_name(row): row["met"] for row in old.get("targets", [])}
    words = {True: "met", False: "NOT met", None: "not measured"}
    for row in new.get("targets", []):
        name = _target_name(row)
        if name in before and before[name] != row["met"]:
            print(f"target {name}: {words[before[name]]} before, {words[row['met']]} now")


def _target_name(row: dict[str, Any]) -> str:
    return " ".join([row.get("case", ""), row["what"], f"/ {row['peer']}", f"{row['target']:.2f}"]).strip()
