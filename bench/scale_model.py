"""What data parallelism costs on more GPUs than one has: a model of the all-reduce, and what is left of the speed.

    python -m bench.scale_model                # GPT-2's 124 million parameters on 8 to 1024 GPUs
    python -m bench.scale_model --between 12.5e9 --parameters 1.5e9 --tokens 4096 --bytes 2

    ring = 2 (n - 1) / n S / B + 2 (n - 1) a          each GPU sends 2 (n - 1) pieces of S / n bytes to its neighbour
    tree = 2 S / B + 2 ceil(log2 n) a                 up to the root and down again, the pieces one behind the other
    all-reduce = the smaller of the two               as NCCL chooses
    compute    = 6 P T / (u F)                        2 P T forward, 4 P T backward (Kaplan et al. 2020, section 2.1)
    exposed    = max(0, all-reduce - overlap (2 / 3) compute)       the backward pass is 2 / 3 of it
    efficiency = compute / (compute + exposed)

S: bytes of the gradient, P parameters of `bytes` each. B: bytes a second at which the slowest link passes them on:
NVLink within a node; beyond, all network cards of a node together, since as many rings run at once and each leaves the
node by a card of its own. a: seconds until a message arrives. T: tokens of a GPU in a step. F: operations a second of
its tensor cores, of which a share u is reached. overlap: 0 for one all-reduce behind the backward pass, which is what
this library does; 1 if all of it could run beside the backward pass. Links are assumed to be as fast as their makers
say, GPUs to be equally fast, and data to be there in time: a measured step is slower.

Source of ring and tree: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH,
2005, sections 4.4 and 4.5; Sanders, Speck and Träff, Two-tree algorithms for full bandwidth broadcast, reduction and
scan, 2009.
"""

import argparse
import math
from dataclasses import dataclass

from bench.table import table

GPUS = (8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Machine:
    """What is assumed, not measured: the makers' figures for nodes of 8 H100 SXM, each with a network card of 400 Gb/s.

    NVLink: 900 GB/s in both directions together. 989 TFLOP/s of dense bfloat16, of which training is assumed to reach
    40 %. Latencies: the order of magnitude of a message's way through NVLink, and through a network card.
    """

    node: int = 8
    inside: float = 450e9
    between: float = 8 * 50e9
    latency_inside: float = 3e-6
    latency_between: float = 10e-6
    operations: float = 989e12
    reached: float = 0.4


@dataclass(frozen=True)
class Cost:
    """Of a step on n GPUs, in seconds; sent: bytes that each GPU sends."""

    gpus: int
    sent: float
    all_reduce: float
    compute: float

    def efficiency(self, overlap: float) -> float:
        exposed = max(0.0, self.all_reduce - overlap * 2 / 3 * self.compute)
        return self.compute / (self.compute + exposed)


def cost(gpus: int, parameters: float, tokens: float, width: int = 4, machine: Machine = Machine()) -> Cost:
    """parameters: of the model, gradients of `width` bytes each. tokens: of each GPU in a step."""
    m, size = machine, parameters * width
    alone = gpus <= m.node
    bandwidth, latency = (
        m.inside if alone else min(m.inside, m.between),
        m.latency_inside if alone else m.latency_between,
    )
    sent = 2 * (gpus - 1) / gpus * size
    ring = sent / bandwidth + 2 * (gpus - 1) * latency
    tree = 2 * size / bandwidth + 2 * math.ceil(math.log2(gpus)) * latency if gpus > 1 else 0.0
    return Cost(gpus, sent, min(ring, tree), 6 * parameters * tokens / (m.reached * m.operations))


def rows(parameters: float, tokens: float, width: int, machine: Machine = Machine()) -> list[list[str]]:
    """A line for each number of GPUs, as it is printed."""
    found = []
    for gpus in GPUS:
        c = cost(gpus, parameters, tokens, width, machine)
        times = [f"{c.sent / 1e9:.2f}", f"{c.all_reduce * 1e3:.1f}", f"{c.compute * 1e3:.1f}"]
        found.append([str(gpus), *times, f"{c.efficiency(0):.0%}", f"{c.efficiency(1):.0%}"])
    return found


HEAD = ["GPUs", "GB sent", "all-reduce ms", "compute ms", "efficiency", "if overlapped"]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scale_model", description="The cost of many GPUs, modelled.")
    parser.add_argument("--parameters", type=float, default=124e6, help="of the model (default: GPT-2, %(default)s)")
    parser.add_argument("--tokens", type=float, default=8192, help="of each GPU in a step (default: %(default)s)")
    parser.add_argument("--bytes", type=int, default=4, help="of a gradient's element (default: %(default)s)")
    parser.add_argument(
        "--between",
        type=float,
        default=Machine.between,
        help="bytes/s of a node's network cards (default: %(default)g)",
    )
    options = parser.parse_args(arguments)
    machine = Machine(between=options.between)
    print(table(HEAD, rows(options.parameters, options.tokens, options.bytes, machine)))


if __name__ == "__main__":
    main()
