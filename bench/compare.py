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
    rows = [
        [name, f"{before[name] * 1e3:.3f}", f"{after[name] * 1e3:.3f}", f"{after[name] / before[name]:.2f}"]
        for name in before
        if name in after
    ]
    print(table(["", "old ms", "new ms", "new / old"], rows))
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
