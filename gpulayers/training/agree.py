"""What has to be the same on all ranks before the first step: versions, settings, data, and every parameter's bits."""

import json
import os
import platform
from typing import Any

import numpy as np

import gpulayers
from gpulayers.backend import use
from gpulayers.parallel import Communicator, ParallelError, together
from gpulayers.parallel.nccl import use_own_gpu
from gpulayers.training.config import Config, available_cores


def agree(communicator: Communicator, **about: Any) -> None:
    """Raises ParallelError, on all ranks, where one has another value than rank 0; each is a JSON value with its name.

    The versions of gpulayers and NumPy are compared, too.
    """
    about = {"gpulayers": gpulayers.__version__, "numpy": np.__version__, **about}
    every = [json.loads(text) for text in communicator.gather_texts(json.dumps(about))]
    with together(communicator):
        for rank, its in enumerate(every):
            for name in about:
                if its.get(name) != every[0].get(name):
                    raise ParallelError(
                        f"rank {rank} has {name} {its.get(name)!r} and rank 0 {every[0].get(name)!r}: all ranks take "
                        "the same versions, options and data"
                    )


def settings(config: Config) -> dict[str, Any]:
    """Name -> value for `agree`. threads may differ: a machine has as many cores as it has."""
    return {
        f"[{table}] {name}": value
        for table, values in config.to_dict().items()
        if isinstance(values, dict)
        for name, value in values.items()
        if name != "threads"
    } | {"task": config.task}


def threads_of_rank(communicator: Communicator) -> int:
    """The cores of this machine shared out among its ranks; all that it may use for a rank that is bound to some."""
    cores, machine = available_cores(), platform.node()
    own = ",".join(map(str, sorted(os.sched_getaffinity(0)))) if hasattr(os, "sched_getaffinity") else ""
    here = [text for text in communicator.gather_texts(f"{machine} {own}") if text.startswith(f"{machine} ")]
    return cores if len(set(here)) > 1 else max(1, cores // communicator.local_size)


def own_device(backend: str, communicator: Communicator) -> None:
    """Make the rank's GPU the current device. Raises GPUUnavailable or ParallelError, on all ranks."""
    with together(communicator):
        xp = use(backend)
    if backend == "cupy" and communicator.size > 1:
        use_own_gpu(xp, communicator)
