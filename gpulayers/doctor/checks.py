"""The checks: each looks at one thing and says ok, or what is wrong and the one line that mends it."""

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from gpulayers.cuda import kernel_folder
from gpulayers.doctor.machine import Machine
from gpulayers.remedies import INSTALL


class Status(StrEnum):
    """FAIL stands between the machine and the GPU; WARN costs something else; SKIPPED could not be looked at."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


class Finding(NamedTuple):
    """What a check found, and the line that mends it ('' where there is nothing to mend)."""

    check: str
    status: Status
    found: str
    remedy: str = ""


Answer = tuple[Status, str, str]

OLDEST_DRIVER = 12  # CUDA major
OLDEST_CARD = (7, 5)  # compute capability
OLDEST_NUMPY = "2.1.2"
OLDEST_CUPY = "14"  # the first with bfloat16
ENOUGH_MEMORY = 1 << 30  # bytes
CPU = "choose --backend numpy, or --backend emulated to run the kernels without a GPU"
UNRESTRICTED = "options nvidia NVreg_RestrictProfilingToAdminUsers=0"
STATUS_OF_INIT = {  # cuInit's, with their remedies
    100: ("the driver finds no device", "nvidia-smi  # what it says is what the driver lacks"),
    803: ("the driver and its library are of two versions", "sudo reboot  # loads the driver that was installed last"),
    804: ("the CUDA compatibility library does not fit this card", "unset LD_LIBRARY_PATH"),
    999: ("the driver does not start", "sudo modprobe nvidia_uvm"),
}


def ok(found: str) -> Answer:
    return Status.OK, found, ""


def skipped(found: str) -> Answer:
    return Status.SKIPPED, found, ""


def warn(found: str, remedy: str) -> Answer:
    return Status.WARN, found, remedy


def fail(found: str, remedy: str) -> Answer:
    return Status.FAIL, found, remedy


def numbers(version: str) -> tuple[int, ...]:
    """'2.1.2rc1' -> (2, 1, 2)."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


# ------------------------------------------------------------------------------------------------ the driver


def driver(m: Machine) -> Answer:
    if m.system == "Darwin":
        return fail("macOS has no CUDA", CPU)
    found = m.driver
    if "missing" in found or "error" in found:
        return no_driver(m, found.get("error", ""))
    version, name = found["version"], f"{m.smi}, " if m.smi else ""
    if found["init"]:
        what, remedy = STATUS_OF_INIT.get(found["init"], STATUS_OF_INIT[999])
        return fail(f"{what} (cuInit: {found['init']})", remedy)
    if not found["devices"]:
        return fail("the driver finds no device", "echo $CUDA_VISIBLE_DEVICES  # unset it if it hides the card")
    text = f"{name}CUDA {version // 1000}.{version % 1000 // 10}; " + "; ".join(card(*d) for d in found["devices"])
    if version // 1000 < OLDEST_DRIVER:
        return fail(f"{text}: CUDA {OLDEST_DRIVER} needs a driver from 525 on", driver_line(m))
    if all(tuple(d[1:]) < OLDEST_CARD for d in found["devices"]):
        return fail(f"{text}: the kernels need compute capability {dotted(OLDEST_CARD)}", CPU)
    return ok(text)


def no_driver(m: Machine, error: str) -> Answer:
    """There is no libcuda, or it does not answer."""
    if m.cards == 0:
        return fail("there is no NVIDIA card on this machine", CPU)
    what = f"the driver's library does not answer ({error})" if error else "there is no NVIDIA driver"
    if m.in_container:
        return fail(
            f"{what} in this container", "docker run --gpus all ...  # with the NVIDIA container toolkit on the host"
        )
    return fail(what, driver_line(m))


def driver_line(m: Machine) -> str:
    """The line that installs a driver, as far as one line can."""
    if m.system == "Windows":
        return "start https://www.nvidia.com/drivers"
    if "ubuntu" in m.distribution:
        return "sudo ubuntu-drivers install && sudo reboot"
    return "xdg-open https://www.nvidia.com/drivers  # or your distribution's own package of the driver"


def card(name: str, major: int, minor: int) -> str:
    return f"{name} ({major}.{minor})"


def dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def driver_major(m: Machine) -> int | None:
    """The newest CUDA major that the driver runs; None without one."""
    version = m.driver.get("version")
    return version // 1000 if version else None


def install(m: Machine) -> str:
    """The line that installs what this machine's driver can run."""
    major = driver_major(m)
    return INSTALL["cuda12" if major == 12 else "cuda13"]


# ------------------------------------------------------------------------------------------------ CuPy's wheels


def cupy_wheels(m: Machine) -> dict[str, str]:
    """Installed CuPy distributions. All of them install the same module, so two overwrite each other."""
    return {name: version for name, version in m.packages.items() if re.fullmatch(r"cupy(-cuda\w+|-rocm[\w-]+)?", name)}


def wheel_major(name: str) -> int | None:
    """The CUDA major in a wheel's name; None for one that was built here."""
    found = re.fullmatch(r"cupy-cuda(\d\d)\w*", name)
    return int(found[1]) if found else None


def cupy(m: Machine) -> Answer:
    wheels = cupy_wheels(m)
    if not wheels:
        return fail("CuPy is not installed", install(m))
    text = ", ".join(f"{name} {version}" for name, version in sorted(wheels.items()))
    if len(wheels) > 1:
        return fail(
            f"{text}: they overwrite each other", f"pip uninstall -y {' '.join(sorted(wheels))} && {install(m)}"
        )
    name, version = next(iter(wheels.items()))
    major, newest = wheel_major(name), driver_major(m)
    again = f"pip uninstall -y {name} && {install(m)}"
    if "rocm" in name:
        return fail(f"{text} is for AMD cards", again)
    if major is not None and newest is not None and major > newest:
        return fail(f"{text} is for CUDA {major}, and the driver runs CUDA {newest} at most", again)
    if major is not None and major < OLDEST_DRIVER:
        return fail(f"{text} is for CUDA {major}", again)
    if numbers(version) < numbers(OLDEST_CUPY):
        return fail(f"{text} is older than {OLDEST_CUPY}", f"pip install -U '{name}>={OLDEST_CUPY}'")
    return ok(text)


PARTS = {"NVRTC": "nvidia-cuda-nvrtc", "the CUDA headers": "nvidia-cuda-runtime", "cuBLAS": "nvidia-cublas"}


def missing_parts(m: Machine, major: int) -> list[str]:
    """What CuPy needs from CUDA and no wheel brings. CUDA 13's wheels dropped the suffix that CUDA 12's have."""
    suffix = "" if major >= 13 else f"-cu{major}"
    return [
        what
        for what, name in PARTS.items()
        if name + suffix not in m.packages or numbers(m.packages[name + suffix])[:1] != (major,)
    ]


def parts(m: Machine) -> Answer:
    wheels = [name for name in cupy_wheels(m) if wheel_major(name) is not None]
    if len(wheels) != 1:
        return skipped("no single CuPy wheel")
    major = wheel_major(wheels[0]) or OLDEST_DRIVER
    missing = missing_parts(m, major)
    if not missing:
        return ok(f"NVRTC, headers and cuBLAS of CUDA {major} from wheels")
    if m.toolkit is not None and m.toolkit[1] == major:
        return ok(f"CUDA {major} toolkit in {m.toolkit[0]}")
    return fail(f"missing: {', '.join(missing)}", f"pip install '{wheels[0]}[ctk]'")


def nvrtc(m: Machine) -> Answer:
    found = m.nvrtc
    if "error" not in found:
        major, minor = found["version"]
        return ok(f"NVRTC {major}.{minor} compiles")
    if "not installed" in found["error"]:
        if m.toolkit is not None:
            return skipped(f"no wheel; CuPy takes the one in {m.toolkit[0]}")
        return fail(found["error"].partition(":")[0], install(m))
    reinstall = " ".join(sorted(n for n in m.packages if re.fullmatch(r"nvidia-cuda-(nvrtc|runtime)(-cu\d+)?", n)))
    return fail(found["error"], f"pip install --upgrade --force-reinstall {reinstall}")


def device(m: Machine) -> Answer:
    if not m.driver.get("devices"):
        return skipped("no driver or no device")
    if not cupy_wheels(m):
        return skipped("no CuPy")
    if "error" in m.cupy:
        return fail(m.cupy["error"], "python -c 'import cupy; cupy.show_config()'  # shows what CuPy found")
    return ok(f"CuPy {m.cupy['cupy']} ran a kernel")


def memory(m: Machine) -> Answer:
    if device(m)[0] is not Status.OK:
        return skipped("no device that answers")
    free, total = m.cupy["free"], m.cupy["total"]
    text = f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free"
    return ok(text) if free >= ENOUGH_MEMORY else warn(text, "nvidia-smi  # lists the processes that hold the rest")


# ------------------------------------------------------------------------------------------------ the rest


def cache(m: Machine) -> Answer:
    folder = m.cache_folder
    where = folder
    while not where.exists() and where != where.parent:
        where = where.parent
    elsewhere = f"export CUPY_CACHE_DIR={os.path.join(tempfile.gettempdir(), 'cupy')}"
    if not where.is_dir():
        return fail(f"{where} is not a folder", elsewhere)
    try:
        with tempfile.TemporaryFile(dir=where) as file:
            file.write(bytes(1 << 16))
    except OSError as error:
        return fail(f"{where} cannot be written to ({error.strerror or error})", elsewhere)
    return ok(str(folder))


def numpy(m: Machine) -> Answer:
    version = m.packages.get("numpy", np.__version__)
    if numbers(version) < numbers(OLDEST_NUMPY):
        return fail(f"NumPy {version} is older than {OLDEST_NUMPY}", f"pip install 'numpy>={OLDEST_NUMPY}'")
    for name in cupy_wheels(m):
        wanted = m.numpy_wanted_by(name)
        if not satisfies(version, wanted):
            return warn(f"NumPy {version}, but {name} takes numpy{wanted}", f"pip install 'numpy{wanted}'")
    return ok(f"NumPy {version}")


def satisfies(version: str, wanted: str) -> bool:
    """Whether a version lies within bounds such as '<2.6,>=2.0'; bounds of another kind count as met."""
    for bound in filter(None, wanted.split(",")):
        found = re.fullmatch(r"(<=|>=|<|>)([0-9.]+)", bound)
        if found is None:
            continue
        have, limit = numbers(version), numbers(found[2])
        size = max(len(have), len(limit))
        have, limit = (v + (0,) * (size - len(v)) for v in (have, limit))
        met = {"<": have < limit, "<=": have <= limit, ">": have > limit, ">=": have >= limit}
        if not met[found[1]]:
            return False
    return True


def profiler(m: Machine) -> Answer:
    found = re.search(r"RmProfilingAdminOnly:\s*(\d)", m.driver_parameters)
    if found is None:
        return skipped("no driver module that says")
    if found[1] == "0":
        return ok("every user may read the GPU's counters")
    if m.is_root:
        return ok("only root may read the GPU's counters, and this is root")
    return warn(
        "only root may read the GPU's counters (ncu says ERR_NVGPUCTRPERM); event times need no permission",
        f"echo '{UNRESTRICTED}' | sudo tee /etc/modprobe.d/profiling.conf && sudo reboot",
    )


def kernels(m: Machine) -> Answer:
    try:
        folder = kernel_folder()
    except FileNotFoundError as error:
        return fail(
            str(error).partition(":")[0], "pip install --force-reinstall --no-deps . (in the clone of gpulayers)"
        )
    return ok(f"{len(list(folder.glob('*.cu')))} sources in {folder}")


def emulator(m: Machine) -> Answer:
    if "error" in m.emulator:
        return warn(m.emulator["error"].partition(": pip")[0], INSTALL["emulated"])
    return ok(f"ran a kernel, compiled by NVRTC for CUDA {m.emulator['cuda']}")


CHECKS: dict[str, Callable[[Machine], Answer]] = {
    "driver": driver,
    "cupy": cupy,
    "cuda parts": parts,
    "nvrtc": nvrtc,
    "device": device,
    "memory": memory,
    "cache folder": cache,
    "numpy": numpy,
    "profiler": profiler,
    "kernels": kernels,
    "emulator": emulator,
}


def diagnose(machine: Machine | None = None) -> Iterator[Finding]:
    """One finding for each check, as soon as it is there. Never raises, whatever the machine does."""
    machine = machine or Machine()
    for name, check in CHECKS.items():
        try:
            yield Finding(name, *check(machine))
        except Exception as error:  # a diagnosis that breaks off helps nobody
            note = f"the check itself failed: {type(error).__name__}: {error}"
            yield Finding(name, Status.WARN, note, "gpulayers doctor --json  # send its output with a bug report")
