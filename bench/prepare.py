"""What it takes to tokenise a large text: CPU time and peak memory, the first time and again.

    python -m bench.prepare --megabytes 1024                                    # bytes
    python -m bench.prepare --megabytes 128 --tokenizer bpe --vocab-size 8192   # minutes

The text is made up: 20,000 words, drawn at random. It and the tokens go to a temporary folder.
"""

import argparse
import random
import resource
import tempfile
import time
from pathlib import Path

from gpulayers.data import Batches, Prepared, Tokenizer, prepare


def write_text(path: Path, size: int) -> None:
    """`size` bytes, about, of sentences of made-up words, some with a character of two bytes."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyzé", k=rng.randint(2, 9))) for _ in range(20_000)]
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < size:
            file.write("".join(" ".join(rng.choices(words, k=12)) + ".\n" for _ in range(500)))


def measured(path: Path, tokenizer: str | Tokenizer, vocab_size: int, cache: Path) -> Prepared:
    wall, cpu = time.perf_counter(), time.process_time()
    found = prepare([path], tokenizer, vocab_size, cache=cache)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    Batches(found.train, 1024, 8, seed=0).batch(0)
    print(f"{len(found.train[0]):,} tokens: {wall:.1f} s, {cpu:.1f} s of CPU; peak memory {peak()} MB", flush=True)
    return found


def peak() -> int:
    """Of this process so far, in MB. Linux counts in kilobytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--tokenizer", choices=("byte", "char", "bpe"), default="byte")
    parser.add_argument("--vocab-size", type=int, default=8192)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path, cache = Path(folder) / "x.txt", Path(folder) / "cache"
        write_text(path, options.megabytes << 20)
        print(f"{path.stat().st_size:,} bytes; peak memory before {peak()} MB", flush=True)
        found = measured(path, options.tokenizer, options.vocab_size, cache)
        measured(path, found.tokenizer, options.vocab_size, cache)


if __name__ == "__main__":
    main()
