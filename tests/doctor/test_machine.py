"""The looks themselves: none raises, none hangs."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpulayers.doctor import machine as module
from gpulayers.doctor.machine import Machine, ask_python, read, run


def test_an_answer():
    assert ask_python("print('noise'); print('{\"a\": [1, 2]}')") == {"a": [1, 2]}
    assert ask_python("import gpulayers; print('{}')") == {}


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("raise ValueError('what is wrong')", "what is wrong"),
        ("import sys; sys.exit(3)", "exit status 3"),
        ("print('no object')", "exit status 0"),
        ("print([1])", "exit status 0"),
        ("print('{}'); import sys; sys.exit('late')", "late"),
        ("import gpulayers.cuda as c; raise c.GPUUnavailable('no GPU: do')", "no GPU: do"),
    ],
)
def test_no_answer(code, error):
    assert ask_python(code) == {"error": error}


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_crash():
    assert ask_python("import os; os.kill(os.getpid(), 11)") == {"error": "the process was killed by signal 11"}


def test_a_hang(monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT", 0.2)
    assert ask_python("import time; time.sleep(60)") == {"error": "no answer within 0 s"}


def test_a_command_that_is_not_there():
    assert run(["no-such-command-anywhere"]) is None
    assert read(Path("/no/such/file")) is None


@pytest.mark.parametrize(
    ("done", "version"),
    [
        (SimpleNamespace(returncode=0, stdout="580.95.05\n580.95.05\n"), "580.95.05"),
        (SimpleNamespace(returncode=9, stdout="NVIDIA-SMI has failed because it could not reach the driver"), ""),
        (SimpleNamespace(returncode=0, stdout=""), ""),
        (None, ""),
    ],
)
def test_nvidia_smi(done, version, monkeypatch):
    monkeypatch.setattr(module.shutil, "which", lambda name: "/usr/bin/" + name)
    monkeypatch.setattr(module, "run", lambda words: done)
    assert Machine().smi == version
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    assert Machine().smi == ""


FAKE_LIBCUDA = r"""
#include <string.h>
int cuDriverGetVersion(int* v) { *v = 13000; return 0; }
int cuInit(unsigned f) { return INIT; }
int cuDeviceGetCount(int* n) { *n = 2; return 0; }
int cuDeviceGetName(char* s, int n, int d) { strcpy(s, d ? "second" : "first"); return 0; }
int cuDeviceGetAttribute(int* v, int a, int d) { *v = a == 75 ? 9 : d; return 0; }
"""


@pytest.mark.skipif(not module.shutil.which("cc") or sys.platform != "linux", reason="needs a C compiler")
@pytest.mark.parametrize(("init", "devices"), [(0, [["first", 9, 0], ["second", 9, 1]]), (100, [])])
def test_the_driver(init, devices, tmp_path, monkeypatch):
    """The probe's own ctypes calls, against a library with the same functions."""
    source, library = tmp_path / "cuda.c", tmp_path / "libcuda.so.1"
    source.write_text(FAKE_LIBCUDA.replace("INIT", str(init)))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert Machine().driver == {"version": 13000, "init": init, "devices": devices}


def test_no_driver(monkeypatch):
    monkeypatch.setattr(module, "DRIVER", module.DRIVER.replace("libcuda.so.1", "libno.so").replace("nvcuda", "no"))
    assert Machine().driver.keys() == {"missing"}


def test_distribution(monkeypatch):
    release = {"ID": "linuxmint", "ID_LIKE": "ubuntu debian"}
    monkeypatch.setattr(module.platform, "freedesktop_os_release", lambda: release)
    assert Machine().distribution == {"linuxmint", "ubuntu", "debian"}

    def unknown():
        raise OSError

    monkeypatch.setattr(module.platform, "freedesktop_os_release", unknown)
    assert Machine().distribution == set()


def test_packages():
    packages = Machine().packages
    assert packages["numpy"].startswith("2.")
    assert "ml-dtypes" in packages


def test_what_a_package_says_of_numpy(monkeypatch):
    def requires(package):
        if package == "gone":
            raise module.importlib.metadata.PackageNotFoundError
        return {"a": ["fastrlock>=0.5", "numpy<2.6,>=2.0"], "b": ["numpy (>=1.2)", "x"], "c": ["numpy"], "d": None}[
            package
        ]

    monkeypatch.setattr(module.importlib.metadata, "requires", requires)
    found = [Machine().numpy_wanted_by(name) for name in ("a", "b", "c", "d", "gone")]
    assert found == ["<2.6,>=2.0", ">=1.2", "", "", ""]


def test_toolkit(tmp_path, monkeypatch):
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "cuda.h").write_text("#define CUDA_VERSION 12080\n")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert Machine().toolkit == (tmp_path, 12)
    compiler = tmp_path / "bin" / "nvcc"
    compiler.parent.mkdir()
    compiler.write_text("")
    monkeypatch.delenv("CUDA_HOME")
    monkeypatch.setattr(module.shutil, "which", lambda name: str(compiler))
    assert Machine().toolkit == (tmp_path.resolve(), 12)


def test_cache_folder(monkeypatch):
    monkeypatch.setenv("CUPY_CACHE_DIR", "/some/where")
    assert Machine().cache_folder == Path("/some/where")
    monkeypatch.delenv("CUPY_CACHE_DIR")
    assert Machine().cache_folder == Path.home() / ".cupy" / "kernel_cache"


def test_cards(monkeypatch, tmp_path):
    real = Path

    def path(place):
        return real(
            str(place).replace("/sys/bus/pci/devices", str(tmp_path)).replace("/dev/dxg", str(tmp_path / "dxg"))
        )

    monkeypatch.setattr(module, "Path", path)
    for name, vendor, kind in [
        ("gpu", "0x10de", "0x030200"),
        ("its audio", "0x10de", "0x040300"),
        ("other", "0x1002", "0x030000"),
    ]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(vendor + "\n")
        (tmp_path / name / "class").write_text(kind + "\n")
    monkeypatch.setattr(Machine, "system", "Linux")
    assert Machine().cards == 1
    monkeypatch.setattr(Machine, "system", "Windows")
    assert Machine().cards is None


def test_the_rest_of_this_machine():
    here = Machine()
    assert isinstance(here.in_container, bool)
    assert isinstance(here.driver_parameters, str)
    assert isinstance(here.is_root, bool)
