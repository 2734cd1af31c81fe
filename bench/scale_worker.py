"""A worker of several ranks: the first reads the lines of `bench.worker` and passes them on, all do what they say.

mpiexec -n N python -m bench.scale_worker
"""

import contextlib
import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import machine
from bench.worker import Server, Worker
from gpulayers.parallel import connect, end_together
from gpulayers.parallel.mpi import import_mpi


class RanksWorker(Worker):
    """The parent's end of `ranks` processes."""

    def __init__(self, ranks: int, threads: int) -> None:
        self.ranks = ranks
        beside = Path(sys.executable).with_name("mpiexec")
        mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
        if mpiexec is None:
            raise SystemExit("bench.scale needs mpiexec, which the extra [mpi] installs beside python")
        command = [mpiexec, "-n", str(ranks), sys.executable, "-m", "bench.scale_worker"]
        super().__init__(f"{ranks} ranks", threads, command=command)


class RankServer(Server):
    """What a rank does. The windows of all ranks have the same number of steps, as the first one's clock says."""

    def run(self, name: str, steps: int, seconds: float, clock: str = "wall") -> dict[str, Any]:
        """As `Server.run`. work: processor seconds of a step outside of the all-reduce, of all ranks together.
        between: share of the first rank's time in the all-reduce."""
        ranks, times = connect(), []
        subject: Any = self.subjects[name]
        neighbours, own, begun = machine.Neighbours(), time.process_time(), time.perf_counter()
        waited, span = subject.between.processor, subject.between.wall
        end = time.perf_counter() + seconds
        while ranks.gather(len(times) < steps or time.perf_counter() < end)[0]:
            start = machine.CLOCKS[clock]()
            subject.step()
            times.append(machine.CLOCKS[clock]() - start)
        between = (subject.between.wall - span) / (time.perf_counter() - begun)
        own, waited = time.process_time() - own, subject.between.processor - waited
        spent, work = float(ranks.gather(own).sum()), float(ranks.gather(own - waited).sum())
        return {"times": times, "others": neighbours.share(spent), "work": work / len(times), "between": between}


def serve() -> None:
    server, answers, ranks = RankServer(), sys.stdout, connect()
    with contextlib.redirect_stdout(sys.stderr):
        for line in _lines():
            request = json.loads(line)
            answer = {"value": getattr(server, request.pop("command"))(**request)}
            if ranks.rank == 0:
                answers.write(json.dumps(answer) + "\n")
                answers.flush()
    end_together(ranks)


def _lines() -> Iterator[str]:
    """Those that the first rank reads, on all ranks. An error on any rank ends all, and the parent with them."""
    ranks = connect()
    while True:
        line = sys.stdin.readline() if ranks.rank == 0 else ""
        _wait_quietly(ranks.size)
        line = ranks.broadcast_text(line)
        if not line:
            return
        yield line


def _wait_quietly(size: int) -> None:
    """Until all ranks are here, asleep: MPI waits by asking again and again, which takes a core of another worker."""
    if size > 1:
        here = import_mpi().COMM_WORLD.Ibarrier()
        while not here.Test():
            time.sleep(0.002)


if __name__ == "__main__":
    serve()
