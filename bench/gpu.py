"""Every kernel on a GPU: against unfused array code, against PyTorch, and against what the card can do.

    python -m bench.gpu                                    # all cases
    python -m bench.gpu cross_entropy adam --json FILE --plot FILE.png
    python -m bench.gpu --quick --no-compile               # 20 repeats in place of 100, and no waiting for a compiler
    python -m bench.gpu --backend emulated                 # tiny: the machinery without a GPU; its times mean nothing

The floor of a case is the larger of (bytes that must be moved) / (what copying reached in this run) and (operations of
its matrix products) / (what a large bfloat16 product reached).
"""

import argparse
import gc
import importlib.util
import json
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench import gpu_ceilings, gpu_report
from bench.gpu_cases import CASES, COMPILED, FULL, TINY, Case, Draw, Sizes
from bench.gpu_ceilings import Ceilings
from bench.gpu_check import Exact, check_ours, check_peer, results
from bench.gpu_peers import build
from bench.gpu_timing import Protocol, Timer
from bench.table import write_json
from gpulayers.backend import DEVICES, is_array, use
from gpulayers.cuda import GPUUnavailable

IMPOSSIBLE = 1.05  # times a ceiling


class ImpossibleRate(ValueError):
    """A time that no card could reach: something was left out, or the clock is wrong."""


class Scale(NamedTuple):
    """How large everything is."""

    sizes: Sizes
    protocol: Protocol
    copy_bytes: int
    product: int


WHOLE = Scale(FULL, Protocol(), gpu_ceilings.COPY_BYTES, gpu_ceilings.PRODUCT)
EMULATED = Scale(TINY, Protocol(1, 2, copies=3, flush_bytes=1 << 12), copy_bytes=1 << 14, product=64)


class Lab(NamedTuple):
    """What a measurement needs."""

    xp: Any
    torch: Any  # None: not installed, or has no GPU
    timer: Timer
    draw: Draw
    ceilings: Ceilings

    def arguments(self, case: Case) -> tuple[Any, ...]:
        """Fresh ones, equal every time."""
        return case.arguments(self.draw.again())


def main(arguments: list[str] | None = None, backend: str = "cupy") -> None:
    options = _options(arguments, backend)
    try:
        result = run(options.backend, options.cases, options.scale, options.variants, options.torch, options.json)
    except GPUUnavailable as problem:
        sys.exit(str(problem))
    write_json(options.json, result)
    if options.plot and importlib.util.find_spec("matplotlib"):
        gpu_report.plot(result, options.plot)
        print(f"written: {options.plot}")
    elif options.plot:
        print("no picture: matplotlib is not installed", file=sys.stderr)
    if result["failures"]:
        sys.exit(f"{len(result['failures'])} of the measurements failed; see the lines above")


def _options(arguments: list[str] | None, backend: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu", description="Every kernel against the card's ceilings."
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--backend", choices=("cupy", "emulated"), default=backend, help="(default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="20 repeats in place of 100")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE")
    parser.add_argument("--plot", metavar="FILE", help="draw the shares of the floor into FILE, a PNG")
    parser.add_argument("--no-torch", action="store_true", help="leave PyTorch out although it is installed")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--no-unfused", action="store_true", help="leave the unfused array code out")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.cases if name not in CASES]:
        parser.error(f"no case {unknown[0]!r}; there are {', '.join(CASES)}")
    options.cases = options.cases or list(CASES)
    options.scale = WHOLE if options.backend == "cupy" else EMULATED
    if options.quick and options.backend == "cupy":
        options.scale = options.scale._replace(protocol=options.scale.protocol._replace(warm_ups=5, repeats=20))
    options.variants = {"unfused": not options.no_unfused, COMPILED: not options.no_compile}
    options.torch = None if options.no_torch or options.backend != "cupy" else gpu_torch()
    return options


def gpu_torch() -> Any:
    """PyTorch if it is installed and sees a GPU."""
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed, so not measured", file=sys.stderr)
        return None
    if not torch.cuda.is_available():
        print("PyTorch finds no GPU, so it is not measured", file=sys.stderr)
        return None
    torch.cuda.init()
    return torch


def run(
    backend: str, names: list[str], scale: Scale, variants: dict[str, bool], torch: Any = None, file: str | None = None
) -> dict[str, Any]:
    """Measure the cases of these names, printing as it goes. variants: name -> False leaves it out.

    file: what was found so far is written there after each case, so that a run that is cut off is not lost.
    """
    xp = use(backend)
    timer = Timer(xp, scale.protocol, torch)
    rows: list[dict[str, Any]] = []
    failures: list[dict[str, str]] = []
    result: dict[str, Any] = {
        "bench": "gpu",
        "backend": backend,
        "machine": describe(xp, torch),
        "sizes": scale.sizes._asdict(),
        "protocol": scale.protocol._asdict(),
        "rows": rows,
        "failures": failures,
    }
    with timer.current():
        draw = Draw(xp, scale.sizes)
        ceilings = gpu_ceilings.measure(timer, draw, scale.copy_bytes, scale.product)
        result["ceilings"] = ceilings._asdict()
        print(gpu_report.ceilings(result["ceilings"]))
        print(", ".join(f"{key} {value}" for key, value in result["machine"].items()))
        if backend == "emulated":
            print("EMULATED: the times are the emulator's and say nothing about a GPU")
        lab = Lab(xp, torch, timer, draw, ceilings)
        for name in names:
            found = _case(name, CASES[name], lab, variants, failures)
            if found:
                print(gpu_report.lines(found, headed=not rows), flush=True)
            rows += found
            if file:
                Path(file).write_text(json.dumps(result, indent=1) + "\n")
    return result


def describe(xp: Any, torch: Any) -> dict[str, Any]:
    """What a reader must know to judge a number."""
    runtime = xp.cuda.runtime
    properties, device = runtime.getDeviceProperties(runtime.getDevice()), xp.cuda.Device()
    name = properties["name"]
    return {
        "gpu": name.decode() if isinstance(name, bytes) else str(name),
        "compute_capability": str(device.compute_capability),
        "multiprocessors": int(device.attributes["MultiProcessorCount"]),
        "memory_bytes": int(device.mem_info[1]),
        "driver": int(runtime.driverGetVersion()),
        "cuda_runtime": int(runtime.runtimeGetVersion()),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cupy": xp.__version__,
        **({} if torch is None else {"torch": torch.__version__, "torch_cuda": str(torch.version.cuda)}),
    }


# ------------------------------------------------------------------------------------------------- one case


def _case(
    name: str, case: Case, lab: Lab, variants: dict[str, bool], failures: list[dict[str, str]]
) -> list[dict[str, Any]]:
    """A row for each variant that could be measured; the others go to `failures`, and the run goes on."""
    rows: list[dict[str, Any]] = []
    try:
        arguments = lab.arguments(case)
        exact = Exact(case, arguments)
        work = _work(case, lab, arguments)
        del arguments
    except Exception as problem:
        _fail(name, "reference and least work", problem, failures)
        return rows
    for body, measure in _bodies(case, lab, variants):
        _clean(lab)
        try:
            row = {**work, **measure(exact)}
            row["share_of_floor"] = work["floor_seconds"] / row["seconds"]
            check_possible(name, body, row["seconds"], work["floor_seconds"])
        except Exception as problem:  # out of memory, a compiler, a wrong result: one line less, and it is told
            _fail(name, body, problem, failures)
        else:
            rows.append({"case": name, "body": body, **row})
    _clean(lab)
    _compare(case, rows)
    return rows


def _fail(name: str, body: str, problem: Exception, failures: list[dict[str, str]]) -> None:
    text = f"{type(problem).__name__}: {problem}".strip()
    failures.append({"case": name, "body": body, "error": text})
    print(f"{name}, {body}: NOT MEASURED, {text.splitlines()[0]}", flush=True)


def _bodies(case: Case, lab: Lab, variants: dict[str, bool]) -> Iterator[tuple[str, Any]]:
    """(variant, function that measures it)."""
    if case.unfused and variants.get("unfused", True):
        yield "unfused", lambda exact: _array_code(case, lab, exact, case.op.reference)
    yield "ours", lambda exact: _array_code(case, lab, exact, case.op)
    if lab.torch is None:
        return
    for body in case.peers:
        if variants.get(body, True):
            yield body, lambda exact, body=body: _peer(case, lab, exact, body)


def _array_code(case: Case, lab: Lab, exact: Exact, function: Any) -> dict[str, Any]:
    """function: the op, which takes its kernel, or its reference."""
    arguments = lab.arguments(case)
    error = check_ours(exact, function, arguments, lab.xp)

    def call() -> Any:
        return function(*arguments)

    return {**_times(lab.timer, call), "peak_bytes": lab.timer.peak_bytes(call), "error": error}


def _peer(case: Case, lab: Lab, exact: Exact, body: str) -> dict[str, Any]:
    call = build(lab.torch, case.peers[body], lab.arguments(case), compiled=body == COMPILED)
    error = check_peer(exact, call)
    return {**_times(lab.timer, call), "peak_bytes": lab.timer.torch_peak_bytes(call), "error": error}


def _work(case: Case, lab: Lab, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """The least that the case has to do, whoever does it, and the least time at the ceilings of this run."""
    found = results(case, case.op, arguments)
    nbytes = case.bytes(arguments, found)
    written = sum(a.nbytes for a in found if is_array(a))
    flops = case.flops(*arguments) if case.flops else 0.0
    floor, ceiling = lab.ceilings.floor_seconds(nbytes, written, flops)
    return {"bytes": nbytes, "flops": flops, "floor_seconds": floor, "ceiling": ceiling}


def _times(timer: Timer, call: Any) -> dict[str, Any]:
    cold, hot = timer.cold(call), timer.hot(call)
    enqueue = timer.enqueue_seconds(call)
    replay = None
    if timer.is_short(hot, enqueue):
        each, how = timer.replay(call)
        replay = {**each._asdict(), "how": how}
    launches = timer.launches(call)
    return {
        "seconds": cold.median,
        "cold": cold._asdict(),
        "hot": hot._asdict(),
        "replay": replay,
        "enqueue_seconds": enqueue,
        "launches": None if launches is None else launches._asdict(),
    }


def check_possible(name: str, body: str, cold_seconds: float, floor_seconds: float) -> None:
    """Cold times only: what is hot may lie in the L2 cache, which is faster than the memory."""
    if cold_seconds * IMPOSSIBLE < floor_seconds:
        raise ImpossibleRate(
            f"{name}, {body}: {cold_seconds:.3g} s is impossible, at the ceilings of this run it takes at least "
            f"{floor_seconds:.3g} s"
        )


def _compare(case: Case, rows: list[dict[str, Any]]) -> None:
    """Ratios of ours to PyTorch's variants, and whether the targets are met."""
    seconds = {row["body"]: row["seconds"] for row in rows}
    for row in rows:
        target = case.target if row["body"] == "ours" else None
        ratios = {peer: row["seconds"] / seconds[peer] for peer in case.peers if peer in seconds}
        row["ratio_to"] = ratios if row["body"] in ("ours", "unfused") else {}
        row["target_share"] = target.share if target else None
        row["share_met"] = row["share_of_floor"] >= target.share if target else None
        row["target_ratio"] = {
            peer: {"at_most": most, "met": ratios[peer] <= most if peer in ratios else None}
            for peer, most in (target.ratio if target else {}).items()
        }


def _clean(lab: Lab) -> None:
    """Give back the memory of one variant before the next."""
    lab.timer.stream.synchronize()
    gc.collect()
    lab.xp.get_default_memory_pool().free_all_blocks()
    if lab.torch is not None:
        lab.torch.cuda.empty_cache()


def backend_option() -> argparse.ArgumentParser:
    """For benches that have a GPU part."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(
        "--backend",
        choices=DEVICES,
        default="numpy",
        help="cupy: the GPU part, which has options of its own (--backend cupy --help)",
    )
    return parser


def take_backend(arguments: list[str] | None) -> tuple[str, list[str]]:
    """(the value of `--backend`, the other arguments)."""
    found, others = backend_option().parse_known_args(sys.argv[1:] if arguments is None else arguments)
    return found.backend, others


if __name__ == "__main__":
    main()
