"""Find NVRTC and the CUDA headers in the installed wheels; no CUDA installation and no driver is needed.

CUDA 13's wheels share one folder (`nvidia/cu13`), CUDA 12's have one folder each (`nvidia/cuda_nvrtc`,
`nvidia/cuda_runtime`). Windows keeps its libraries in `bin`, Linux in `lib`.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import NamedTuple

from gpulayers.emulator.errors import ToolkitMissing
from gpulayers.remedies import INSTALL

LAYOUTS = (  # (CUDA major, folder of the library, folder of the headers), the newest first
    (13, "cu13", "cu13/include"),
    (12, "cuda_nvrtc", "cuda_runtime/include"),
)
LIBRARIES = ("lib/libnvrtc.so.[0-9]*", "bin/x86_64/nvrtc64_*_0.dll", "bin/nvrtc64_*_0.dll")


class Toolkit(NamedTuple):
    """The compiler's library, the folder of the CUDA headers, and CUDA's major version."""

    library: Path
    include: Path
    major: int


def _roots() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    return [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []


def _library(folder: Path) -> Path | None:
    return next((path for pattern in LIBRARIES for path in sorted(folder.glob(pattern))), None)


@functools.cache
def find() -> Toolkit:
    """The newest CUDA major for which both wheels are there; ToolkitMissing says which one is not."""
    roots = _roots()
    compiler_seen = False
    for major, library_folder, include_folder in LAYOUTS:
        library = next((found for root in roots if (found := _library(root / library_folder))), None)
        headers = (root / include_folder for root in roots)
        include = next((path for path in headers if (path / "cuda_fp16.h").is_file()), None)
        if library and include:
            return Toolkit(library, include, major)
        compiler_seen = compiler_seen or library is not None
    missing = "the CUDA headers (wheel nvidia-cuda-runtime)" if compiler_seen else "NVRTC (wheel nvidia-cuda-nvrtc)"
    raise ToolkitMissing(f"The emulated device needs {missing}, which is not installed: {INSTALL['emulated']}")
