"""Feeds mutated files to everything that reads one: `python -m tests.fuzz --inputs 1000000`.

Each input must be read or refused with one sentence, an exception of the reader's own, within two seconds, and with no
more memory than a few times its size. Exit status 1 and the input's number if not; `--first NUMBER --inputs 1` gives it
again. What is mutated: the bytes of safetensors files, their JSON headers, the texts in the metadata (under checksums
that fit, so that the readers above see them), the sizes in a saved model, lines of metrics, and TOML.
"""

import argparse
import contextlib
import faulthandler
import json
import math
import mmap
import os
import random
import signal
import struct
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpulayers import storage
from gpulayers.layers.linear import Linear
from gpulayers.models import gpt
from gpulayers.models.gpt import GPT, GPTConfig
from gpulayers.storage import FileError, load_tensors
from gpulayers.training import health_log, loop
from gpulayers.training.checkpoint import load_checkpoint
from gpulayers.training.config import read_toml
from gpulayers.training.health import rows_of
from gpulayers.training.metrics import MetricsFile, read_metrics
from gpulayers.training.options import ConfigError
from gpulayers.training.plot import series
from gpulayers.training.run import open_saved
from gpulayers.training.tasks import DEFAULTS

MOST_SECONDS, MOST_BYTES = 2.0, 4_000_000  # of one input
ADDRESS_SPACE = 1 << 28  # that may be added to what the process has at first, by any code
TRACED = 8  # of so many inputs one is traced, for that takes two to four times as long

SPECIAL: list[Any] = [
    *(None, True, False, 0, -1, 1, 7, 2**31, 2**53, 2**63, 2**64, 10**30, 1.5, 1e308, math.nan, math.inf, -math.inf),
    *("", "a", "a" * 3000, "../../x", "/etc/passwd", "a\0b", "\udcff", "F32", "BOOL", "model.", "__metadata__"),
    *([], {}, [0, 4], [1] * 70, [-4, 0], [2**62, 2**62], [[[[[]]]]], {"a": {"b": {}}}, "[" * 2000, '{"step": 1}'),
]  # fmt: skip
LENGTHS = (0, 1, 7, 8, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1)


class Target(NamedTuple):
    """make(r) -> bytes of a mutated file; read: what is done with its path; refusals: what that may raise; share: of
    all inputs, in 20ths: what builds a whole model is slow."""

    make: Callable[[random.Random], bytes]
    read: Callable[[Path], object]
    refusals: tuple[type[Exception], ...] = (FileError,)
    share: int = 1


# ------------------------------------------------------------------------------------------------ mutations


def mutated_bytes(r: random.Random, content: bytes) -> bytes:
    """One to four edits, most of them in the first kilobyte, where the header is."""
    data = bytearray(content)
    for _ in range(r.randint(1, 4)):
        place = r.randrange(max(1, min(len(data), 1000 if r.random() < 0.7 else len(data))))
        match r.randrange(7):
            case 0:
                data[place : place + 1] = bytes([r.randrange(256)])
            case 1:
                del data[place : place + r.choice((1, 4, 100, len(data)))]
            case 2:
                data[place:place] = r.randbytes(r.choice((1, 8, 100)))
            case 3:
                data[place:place] = data[place : place + r.choice((1, 8, 100))]
            case 4:
                data[:8] = struct.pack("<Q", r.choice((*LENGTHS, len(data), max(0, len(data) - 8), r.randrange(2**64))))
            case 5:
                data[place : place + 1] = r.choice(
                    (b'"', b"[", b"]", b"{", b"}", b",", b"-", b"9", b"\\u0000", b"\xff")
                )
            case 6:
                data += bytes(r.choice((1, 8, 1000)))
    return bytes(data)


def mutated(r: random.Random, value: Any) -> Any:
    """A JSON value with one node that is something else, missing or doubled."""
    if isinstance(value, dict) and value and r.random() < 0.9:
        key = r.choice(list(value))
        match r.randrange(8):
            case 0:
                return {k: v for k, v in value.items() if k != key}
            case 1:
                return {**value, r.choice([s for s in SPECIAL if isinstance(s, str)]): value[key]}
            case 2:
                return {**value, key: value[r.choice(list(value))]}
            case _:
                return {**value, key: mutated(r, value[key])}
    if isinstance(value, list) and value and r.random() < 0.8:
        place = r.randrange(len(value))
        return [*value[:place], *([mutated(r, value[place])] * r.randrange(3)), *value[place + 1 :]]
    if isinstance(value, int) and r.random() < 0.5:
        return value + r.choice((-1, 1, 4, -value, 2**31, 2**40))
    return r.choice(SPECIAL)


def times(r: random.Random, value: Any) -> Any:
    """`mutated`, mostly once."""
    for _ in range(r.choice((1, 1, 1, 2, 3))):
        value = mutated(r, value)
    return value


def text_of(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "backslashreplace")


def with_header(header: bytes, data: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def parts(content: bytes) -> tuple[dict[str, Any], bytes]:
    """(header, data) of a safetensors file."""
    end = 8 + struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8:end]), content[end:]


def with_metadata(content: bytes, metadata: dict[str, str]) -> bytes:
    """The same tensors under another metadata, with the checksum that belongs to it."""
    header, data = parts(content)
    checksums = json.loads(header[storage.METADATA][storage.CHECKSUMS])
    checksums[storage.METADATA] = storage._checksum(metadata)
    header[storage.METADATA] = {**metadata, storage.CHECKSUMS: json.dumps(checksums)}
    return with_header(text_of(header), data)


# ------------------------------------------------------------------------------------------------ what is read


def targets(folder: Path) -> dict[str, Target]:
    """Every reader with the files for it, made in `folder`."""
    from tests.tiny_run import words

    assert (
        quiet_train([*words(folder / "run", steps=2, layers=1, dim=4, context=4, batch=2, accumulate=1), "--health"])
        == 0
    )
    checkpoint = (folder / "run" / "checkpoint-00000002.safetensors").read_bytes()
    texts = {k: v for k, v in parts(checkpoint)[0][storage.METADATA].items() if k != storage.CHECKSUMS}
    values = {key: json.loads(text) for key, text in texts.items()}
    GPT(GPTConfig(vocab=5, context=4, layers=1, heads=1, dim=2)).save(folder / "model")
    model = (folder / "model").read_bytes()
    sizes = json.loads(parts(model)[0][storage.METADATA]["gpt_config"])
    Linear(2, 3).save(folder / "layer")
    layer, layer_file = Linear(2, 3, rng=0), (folder / "layer").read_bytes()
    before = layer.weight.data.tobytes() + layer.bias.data.tobytes()
    lines = (folder / "run" / "metrics.jsonl").read_bytes()
    records = [json.loads(line) for line in lines.splitlines()]
    health = [json.loads(line) for line in (folder / "run" / "health.jsonl").read_bytes().splitlines()]
    toml = (folder / "run" / "config.toml").read_bytes()
    settings = read_toml(folder / "run" / "config.toml")

    def header(r: random.Random) -> bytes:
        head, data = parts(layer_file)
        return with_header(text_of(times(r, head)), data)

    def metadata(r: random.Random) -> bytes:
        if r.random() < 0.1:  # texts that are no JSON
            key = r.choice(list(texts))
            return with_metadata(checkpoint, {**texts, key: r.choice(("", "[" * 3000, "{", "1e999", "9" * 5000))})
        changed = times(r, values)
        changed = changed if isinstance(changed, dict) else values
        return with_metadata(checkpoint, {key: json.dumps(value) for key, value in changed.items()})

    def table(r: random.Random) -> bytes:
        if r.random() < 0.5:
            return mutated_bytes(r, toml)
        import tomli_w

        try:
            return tomli_w.dumps(times(r, settings)).encode("utf-8", "backslashreplace")
        except (TypeError, ValueError, AttributeError, OverflowError):  # what TOML cannot say
            return mutated_bytes(r, toml)

    def into_a_layer(path: Path) -> None:
        try:
            layer.load(path)
        except FileError:
            assert layer.weight.data.tobytes() + layer.bias.data.tobytes() == before, "a refused file changed the layer"
            raise
        layer.weight.data[...] = np.frombuffer(before[:24], np.float32).reshape(2, 3)
        layer.bias.data[...] = np.frombuffer(before[24:], np.float32)

    def resumed_metrics(path: Path) -> None:
        read: object = None
        with contextlib.suppress(FileError):
            read = read_metrics(path)
            for name in ("loss", "val_loss", "val_accuracy", "lr"):
                series(read, name)
        with unflushed(), MetricsFile(path, resume_at=1) as file:
            file.write({"step": 2, "loss": 1.0})
        steps = [record["step"] for record in read_metrics(path)]
        assert all(step <= 1 for step in steps[:-1]), "a later step is left"
        assert steps[-1] == 2

    def config(path: Path) -> None:
        content = read_toml(path)
        DEFAULTS["gpt"].updated(content, str(path)).complete().to_dict()

    def any_line(r: random.Random) -> bytes:
        if r.random() < 0.5:
            return mutated_bytes(r, lines)
        return b"\n".join(text_of(times(r, record)) for record in records)

    return {
        "bytes of a file": Target(lambda r: mutated_bytes(r, layer_file), into_a_layer, share=4),
        "header of a file": Target(header, into_a_layer, share=5),
        "bytes of a checkpoint": Target(lambda r: mutated_bytes(r, checkpoint), load_checkpoint, share=3),
        "metadata of a checkpoint": Target(metadata, lambda path: open_saved(path), (FileError, ConfigError)),
        "sizes of a model": Target(
            lambda r: with_metadata(model, {"gpt_config": json.dumps(times(r, sizes))}), lambda path: gpt.load(path)
        ),
        "lines of metrics": Target(any_line, resumed_metrics, share=2),
        "lines of health": Target(
            lambda r: b"\n".join(text_of(times(r, line)) for line in health),
            lambda path: [rows_of(record) for record in read_metrics(path)],
        ),
        "settings": Target(table, config, (ConfigError,)),
        "tensors": Target(lambda r: mutated_bytes(r, checkpoint), lambda path: load_tensors(path, "model."), share=2),
    }


@contextlib.contextmanager
def unflushed() -> Iterator[None]:
    """Inside, nothing waits for the disk: a million times that is a day."""
    fsync = os.fsync
    os.fsync = lambda _: None
    try:
        yield
    finally:
        os.fsync = fsync


def quiet_train(arguments: list[str]) -> int:
    from gpulayers.cli import main as gpulayers

    loop.plot_loss = health_log.plot_health = lambda *_, **__: None
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere), contextlib.redirect_stdout(nowhere):
        return gpulayers(arguments)


# ------------------------------------------------------------------------------------------------ one input


class Refused(AssertionError):
    """An input was neither read nor refused as it should be."""


def feed(number: int, seed: int, names: list[str], wanted: dict[str, Target], path: Path) -> tuple[str, bool]:
    """(which target, whether it was read). Raises Refused."""
    r = random.Random((seed << 40) + number)
    name = names[number % len(names)]
    target = wanted[name]
    size = write(path, target.make(r))
    traced = number % (TRACED * len(names)) < len(names)
    if traced:
        tracemalloc.start()
    started, read = time.process_time(), True
    try:
        target.read(path)
    except target.refusals as error:
        read, sentence = False, str(error)
        if not sentence or len(sentence) > 20_000 or "Traceback" in sentence:
            raise Refused(f"the sentence is {sentence[:200]!r}") from error
    except BaseException as error:
        raise Refused(f"{type(error).__name__}: {str(error)[:300]}") from error
    if (seconds := time.process_time() - started) > MOST_SECONDS:
        raise Refused(f"it took {seconds:.1f} s")
    if traced and (peak := tracemalloc.get_traced_memory()[1]) > MOST_BYTES + 8 * size:
        raise Refused(f"{peak:,} bytes were allocated for {size:,}")
    tracemalloc.stop()
    return name, read


def write(path: Path, content: bytes) -> int:
    """Over what is there: a disk waits for a file that is opened to be emptied first. Returns the length."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, content)
    os.ftruncate(descriptor, len(content))
    os.close(descriptor)
    return len(content)


def run(numbers: range, seed: int, now: Any) -> Counter[tuple[str, bool]]:
    """Feed the inputs of these numbers. now: memory in which the number of the present one stands."""
    counts: Counter[tuple[str, bool]] = Counter()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, limited():
        wanted = targets(Path(folder))
        names, path = [name for name, one in wanted.items() for _ in range(one.share)], Path(folder) / "input"
        for number in numbers:
            now[:8] = number.to_bytes(8, "little")
            signal.setitimer(signal.ITIMER_REAL, 20 * MOST_SECONDS)
            try:
                counts[feed(number, seed, names, wanted, path)] += 1
            except Exception as error:
                raise Refused(f"input {number}, {names[number % len(names)]}: {error}") from error.__cause__
    return counts


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Inside, memory is bounded, and a call that does not come back is interrupted."""
    import resource

    def too_long(*_: object) -> None:
        raise TimeoutError(f"no answer in {20 * MOST_SECONDS:.0f} s")

    signal.signal(signal.SIGALRM, too_long)
    own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (own + ADDRESS_SPACE, resource.getrlimit(resource.RLIMIT_AS)[1]))
    yield


def in_child(numbers: range, seed: int, now: Any) -> Counter[tuple[str, bool]]:
    """`run` in a process of its own, so that a crash of native code is a sentence too."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        answer: dict[str, Any] = {}
        try:
            answer = {"counts": [[name, read, n] for (name, read), n in run(numbers, seed, now).items()]}
        except BaseException as error:
            cause = error.__cause__
            answer = {"fault": f"{error}", "from": "" if cause is None else f"{type(cause).__name__}: {cause}"[:500]}
        finally:
            os.write(writer, json.dumps(answer).encode())
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        said = file.read()
    status = os.waitpid(pid, 0)[1]
    if status or not said:
        raise Refused(f"input {int.from_bytes(now[:8], 'little')}: the process ended with wait status {status}")
    answer = json.loads(said)
    if "counts" not in answer:
        raise Refused(f"{answer['fault']} {answer['from']}")
    return Counter({(name, read): n for name, read, n in answer["counts"]})


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=1_000_000, help="so many (default a million)")
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER", help="of the first one (default 0)")
    parser.add_argument("--seed", type=int, default=0, help="of all of them (default 0)")
    parser.add_argument("--chunk", type=int, default=100_000, help="inputs of one process (default 100,000)")
    options = parser.parse_args(arguments)
    faulthandler.enable()
    counts: Counter[tuple[str, bool]] = Counter()
    started, stop = time.perf_counter(), options.first + options.inputs
    with mmap.mmap(-1, 4096) as now:
        for first in range(options.first, stop, options.chunk):
            numbers = range(first, min(first + options.chunk, stop))
            try:
                counts += in_child(numbers, options.seed, now)
            except Refused as error:
                print(f"{error}\nagain by: python -m tests.fuzz --seed {options.seed} --first NUMBER --inputs 1")
                return 1
            if options.inputs > options.chunk:
                print(f"{numbers.stop:,} in {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    print(f"{'':26}{'read':>9}{'refused':>9}")
    for name in dict.fromkeys(name for name, _ in counts):
        print(f"{name:26}{counts[name, True]:>9,}{counts[name, False]:>9,}")
    print(f"{counts.total():,} inputs: each was read or refused with one sentence")
    return 0


if __name__ == "__main__":
    sys.exit(main())
