"""Ranges as NVTX ranges in the domain `gpulayers`, which Nsight Systems shows and Nsight Compute filters by.

A launch carries its bytes as the payload of its range, so that an exported report has them.
"""

import functools
from typing import Any

from gpulayers.cuda import work_of
from gpulayers.profiling.ranges import Range
from gpulayers.remedies import INSTALL

DOMAIN = "gpulayers"
COLORS = {"forward": "green", "backward": "orange", "optimizer": "purple", "loss": "red", "launch": "blue"}


class NVTXMissing(RuntimeError):
    """The nvtx package is not there; the message is one sentence with the remedy."""


class NVTX:
    """Recorder that pushes and pops NVTX ranges. Without a profiler around the process they go nowhere, at no cost.

    Raises NVTXMissing.
    """

    def __init__(self) -> None:
        try:
            import nvtx
        except ImportError as error:
            raise NVTXMissing(f"NVTX ranges need the nvtx package ({error}): {INSTALL['profile']}") from error
        self._domain = nvtx.get_domain(DOMAIN)
        self._attributes = functools.cache(self._make)

    def push(self, one: Range, args: tuple[Any, ...]) -> None:
        payload = int(work_of(one.name, args).bytes) if one.kind == "launch" else None
        self._domain.push_range(self._attributes(one, payload))

    def pop(self, result: Any = None) -> None:
        self._domain.pop_range()

    def _make(self, one: Range, payload: int | None) -> Any:
        color = COLORS.get(one.kind, "cyan")
        return self._domain.get_event_attributes(message=one.text, color=color, payload=payload)
