"""What the checks look at. Every look is lazy, made once, and can neither raise nor hang.

What loads a driver or a GPU library does it in a process of its own: a library that crashes, or waits for ever, then
costs a line in the report and not the report.
"""

import functools
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

TIMEOUT = 60.0  # seconds; the first call on a cold GPU compiles, and takes some of them

DRIVER = """
import ctypes, json, sys
try:
    cuda = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
except OSError as error:
    print(json.dumps({"missing": str(error)}))
    raise SystemExit
version, count = ctypes.c_int(), ctypes.c_int()
cuda.cuDriverGetVersion(ctypes.byref(version))
found = {"version": version.value, "init": cuda.cuInit(0), "devices": []}
if found["init"] == 0:
    cuda.cuDeviceGetCount(ctypes.byref(count))
for device in range(count.value):
    name, numbers = ctypes.create_string_buffer(256), (ctypes.c_int(), ctypes.c_int())
    cuda.cuDeviceGetName(name, 256, device)
    for attribute, number in zip((75, 76), numbers):  # the compute capability
        cuda.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
    found["devices"].append([name.value.decode(errors="replace"), *(n.value for n in numbers)])
print(json.dumps(found))
"""

NVRTC = """
import json
from gpulayers.emulator import nvrtc
nvrtc.compile_cubin('extern "C" __global__ void doctor(float* x) { x[0] = 1; }', arch=ARCH)
print(json.dumps({"version": nvrtc.version()}))
"""

RUN_KERNEL = """
kernel = xp.RawKernel('extern "C" __global__ void doctor(float* x) { x[threadIdx.x] = threadIdx.x; }', "doctor")
x = xp.zeros(32, xp.float32)
kernel((1,), (32,), (x,))
assert x.get().tolist() == list(range(32)), "the kernel gave wrong values"
"""

CUPY = f"""
import json
from gpulayers.cuda import import_cupy
xp = import_cupy()
{RUN_KERNEL}
free, total = xp.cuda.runtime.memGetInfo()
print(json.dumps({{"cupy": xp.__version__, "free": free, "total": total}}))
"""

EMULATOR = f"""
import json
from gpulayers.emulator import cupy as xp, toolkit
{RUN_KERNEL}
print(json.dumps({{"cuda": toolkit.find().major}}))
"""


class Machine:
    """The machine that this runs on. A test makes one of its own, with the attributes that it wants."""

    system = platform.system()

    @functools.cached_property
    def cards(self) -> int | None:
        """NVIDIA cards on the PCI bus; None where that cannot be told (Windows, WSL)."""
        bus = Path("/sys/bus/pci/devices")
        if self.system != "Linux" or Path("/dev/dxg").exists() or not bus.is_dir():
            return None
        # Class 03: display and 3D controllers.
        return sum(
            (read(device / "vendor") or "").startswith("0x10de") and (read(device / "class") or "").startswith("0x03")
            for device in bus.iterdir()
        )

    @functools.cached_property
    def distribution(self) -> set[str]:
        """The names of this Linux and of those that it descends from, such as {'ubuntu', 'debian'}."""
        try:
            release = platform.freedesktop_os_release()
        except OSError:
            return set()
        return {release.get("ID", ""), *release.get("ID_LIKE", "").split()}

    @property
    def in_container(self) -> bool:
        return Path("/.dockerenv").exists() or Path("/run/.containerenv").exists()

    @functools.cached_property
    def driver(self) -> dict[str, Any]:
        """version (13000: CUDA 13.0), init (cuInit's status), devices [(name, major, minor)]; or missing, or error."""
        return ask_python(DRIVER)

    @functools.cached_property
    def smi(self) -> str:
        """The driver's own version by nvidia-smi, '' if there is no answer."""
        words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = run(words) if shutil.which(words[0]) else None
        lines = done.stdout.split() if done is not None and done.returncode == 0 else []
        return lines[0] if lines else ""

    @functools.cached_property
    def packages(self) -> dict[str, str]:
        """Installed distributions and their versions, names in lower case with hyphens."""
        found = {}
        for distribution in importlib.metadata.distributions():
            name = distribution.metadata["Name"]
            if name:  # a half-removed package has none
                found[re.sub(r"[-_.]+", "-", name).lower()] = distribution.version or "0"
        return found

    def numpy_wanted_by(self, package: str) -> str:
        """The versions of NumPy that a package declares, such as '<2.6,>=2.0'; '' if it declares none."""
        try:
            requirements = importlib.metadata.requires(package) or []
        except importlib.metadata.PackageNotFoundError:
            return ""
        for requirement in requirements:
            if found := re.fullmatch(r"numpy\s*\(?([<>=!~0-9.,\s]+)\)?", requirement.strip()):
                return found[1].replace(" ", "")
        return ""

    @functools.cached_property
    def toolkit(self) -> tuple[Path, int] | None:
        """The folder and the major version of a CUDA toolkit outside of the wheels, as CuPy looks for it."""
        compiler = shutil.which("nvcc")
        places = [os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME")]
        places += [str(Path(compiler).resolve().parent.parent)] if compiler else []
        for place in filter(None, [*places, "/usr/local/cuda"]):
            header = read(Path(place) / "include" / "cuda.h") or ""
            if found := re.search(r"#define CUDA_VERSION (\d+)", header):
                return Path(place), int(found[1]) // 1000
        return None

    @functools.cached_property
    def nvrtc(self) -> dict[str, Any]:
        """version [major, minor] of the wheel's NVRTC after it compiled a kernel; or error."""
        devices = self.driver.get("devices") or [["", 7, 5]]
        return ask_python(NVRTC.replace("ARCH", repr(f"sm_{devices[0][1]}{devices[0][2]}")))

    @functools.cached_property
    def cupy(self) -> dict[str, Any]:
        """cupy (its version), free and total bytes, after CuPy ran a kernel on the device; or error."""
        return ask_python(CUPY)

    @functools.cached_property
    def emulator(self) -> dict[str, Any]:
        """cuda (the major version of its compiler) after the emulated device ran a kernel; or error."""
        return ask_python(EMULATOR)

    @property
    def cache_folder(self) -> Path:
        """Where CuPy keeps compiled kernels."""
        return Path(os.environ.get("CUPY_CACHE_DIR") or Path("~/.cupy/kernel_cache").expanduser())

    @property
    def driver_parameters(self) -> str:
        """The parameters of the loaded kernel module, '' if there is none."""
        return read(Path("/proc/driver/nvidia/params")) or ""

    @property
    def is_root(self) -> bool:
        return hasattr(os, "geteuid") and os.geteuid() == 0


def read(path: Path) -> str | None:
    """A small file, None if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def run(words: list[str], environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str] | None:
    """A finished command, None if it did not start or took too long."""
    try:
        return subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def ask_python(code: str) -> dict[str, Any]:
    """The JSON object in the last line that some code prints in a Python of its own; {'error': reason} otherwise."""
    package = str(Path(__file__).resolve().parents[2])  # so that a bare checkout works too
    path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = run([sys.executable, "-P", "-c", code], {**os.environ, "PYTHONPATH": path})
    if done is None:
        return {"error": f"no answer within {TIMEOUT:.0f} s"}
    try:
        answer = json.loads(done.stdout.strip().splitlines()[-1])
        if done.returncode == 0 and isinstance(answer, dict):
            return answer
    except (ValueError, IndexError):
        pass
    if done.returncode < 0:
        return {"error": f"the process was killed by signal {-done.returncode}"}
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    message = lines[-1] if lines else f"exit status {done.returncode}"
    return {"error": re.sub(r"^[\w.]+(?:Error|Exception|Missing|Unavailable): ", "", message)}
