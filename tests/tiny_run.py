"""The smallest run that has everything: dropout, micro-batches, validation, samples, checkpoints."""

import json
import re
from pathlib import Path

from gpulayers.storage import load_tensors

TEXT = "".join(f"{i} bottles of beer on the wall, {i} bottles of beer.\n" for i in range(60))

OPTIONS = {
    "--layers": 1,
    "--heads": 2,
    "--dim": 16,
    "--context": 16,
    "--dropout": 0.1,
    "--batch": 5,
    "--accumulate": 2,
    "--steps": 12,
    "--eval-every": 4,
    "--eval-tokens": 80,
    "--sample-every": 3,
    "--sample-tokens": 8,
    "--save-every": 2,
    "--threads": 1,
}


def words(out: Path, **options: object) -> list[str]:
    """The command line of a run on TEXT in folder `out`, whose parent gets the text file."""
    data = out.parent / "beer.txt"
    if not data.exists():
        data.write_text(TEXT, encoding="utf-8")
    chosen = OPTIONS | {"--data": data, "--out": out} | {f"--{k.replace('_', '-')}": v for k, v in options.items()}
    return ["train", *(str(word) for pair in chosen.items() if pair[1] is not None for word in pair)]


def lines(path: Path) -> list[dict]:
    """The records of a .jsonl file, without what depends on the clock."""
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in record.items() if not key.endswith("_per_second")} for record in records]


def last_checkpoint(folder: Path) -> Path:
    return max(p for p in folder.iterdir() if re.fullmatch(r"checkpoint-\d+\.safetensors", p.name))


def assert_same_run(a: Path, b: Path) -> None:
    """Final tensors, metrics and samples agree bit for bit."""
    assert last_checkpoint(a).name == last_checkpoint(b).name
    for name in (last_checkpoint(a).name, "checkpoint-best.safetensors"):
        left, right = load_tensors(a / name)[0], load_tensors(b / name)[0]
        assert left.keys() == right.keys()
        for key in left:
            assert left[key].dtype == right[key].dtype
            assert left[key].tobytes() == right[key].tobytes(), key
    assert lines(a / "metrics.jsonl") == lines(b / "metrics.jsonl")
    assert lines(a / "samples.jsonl") == lines(b / "samples.jsonl")
