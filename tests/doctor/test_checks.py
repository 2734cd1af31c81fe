"""Every branch of every check, on machines made up for it."""

import re
from pathlib import Path

import pytest

from gpulayers import doctor
from gpulayers.doctor import checks
from gpulayers.doctor.checks import CHECKS, Status, diagnose, satisfies
from gpulayers.doctor.machine import Machine
from gpulayers.remedies import INSTALL

H200 = ["NVIDIA H200", 9, 0]
DRIVER = {"version": 13000, "init": 0, "devices": [H200]}
PARTS = {"nvidia-cuda-nvrtc": "13.0.88", "nvidia-cuda-runtime": "13.0.96", "nvidia-cublas": "13.1.0.3"}
PACKAGES = {"numpy": "2.4.6", "cupy-cuda13x": "14.2.0", **PARTS}
PARTS12 = {f"{name}-cu12": "12.8.1" for name in PARTS}


def machine(**changes):
    """A machine on which everything is fine, but for the changes."""
    found = Machine()
    attributes = {
        "system": "Linux",
        "distribution": {"ubuntu", "debian"},
        "cards": 1,
        "driver": DRIVER,
        "smi": "580.95.05",
        "packages": PACKAGES,
        "toolkit": None,
        "nvrtc": {"version": [13, 0]},
        "cupy": {"cupy": "14.2.0", "free": 140 * 10**9, "total": 143 * 10**9},
        "emulator": {"cuda": 13},
    }
    for name, value in (attributes | changes).items():
        found.__dict__[name] = value  # cached properties take what lies here
    return found


def fixed(monkeypatch, **properties):
    """Plain properties of Machine, which no instance can override."""
    for name, value in properties.items():
        monkeypatch.setattr(Machine, name, property(lambda self, value=value: value))


def answer(check, **changes):
    return getattr(checks, check)(machine(**changes))


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    fixed(
        monkeypatch,
        in_container=False,
        driver_parameters="RmProfilingAdminOnly: 0\n",
        is_root=False,
        cache_folder=tmp_path,
    )
    monkeypatch.setattr(Machine, "numpy_wanted_by", lambda self, package: "<2.6,>=2.0")


def test_a_good_machine_has_nothing_to_mend():
    findings = list(diagnose(machine()))
    assert [f.check for f in findings] == list(CHECKS)
    assert {f.status for f in findings} == {Status.OK}
    assert not any(f.remedy for f in findings)


# ------------------------------------------------------------------------------------------------ the driver

MISSING = {"missing": "libcuda.so.1: cannot open shared object file"}


@pytest.mark.parametrize(
    ("changes", "found", "remedy"),
    [
        ({"system": "Darwin"}, "macOS has no CUDA", "--backend numpy"),
        ({"driver": MISSING}, "there is no NVIDIA driver", "sudo ubuntu-drivers install && sudo reboot"),
        ({"driver": MISSING, "cards": None}, "there is no NVIDIA driver", "sudo ubuntu-drivers install"),
        (
            {"driver": MISSING, "distribution": {"arch"}},
            "there is no NVIDIA driver",
            "xdg-open https://www.nvidia.com/drivers",
        ),
        ({"driver": MISSING, "cards": 0}, "there is no NVIDIA card on this machine", "--backend numpy"),
        (
            {"driver": MISSING, "system": "Windows", "cards": None},
            "there is no NVIDIA driver",
            "start https://www.nvidia.com/drivers",
        ),
        (
            {"driver": {"error": "no answer within 60 s"}},
            r"does not answer \(no answer within 60 s\)",
            "sudo ubuntu-drivers install",
        ),
        ({"driver": DRIVER | {"init": 100}}, r"the driver finds no device \(cuInit: 100\)", "nvidia-smi"),
        ({"driver": DRIVER | {"init": 803}}, "two versions", "sudo reboot"),
        ({"driver": DRIVER | {"init": 804}}, "compatibility library", "unset LD_LIBRARY_PATH"),
        ({"driver": DRIVER | {"init": 1}}, r"does not start \(cuInit: 1\)", "sudo modprobe nvidia_uvm"),
        ({"driver": DRIVER | {"devices": []}}, "the driver finds no device", "CUDA_VISIBLE_DEVICES"),
        ({"driver": DRIVER | {"version": 11080}}, r"CUDA 11\.8; NVIDIA H200 \(9\.0\)", "sudo ubuntu-drivers install"),
        ({"driver": DRIVER | {"devices": [["Tesla V100", 7, 0]]}}, "need compute capability 7.5", "--backend numpy"),
    ],
)
def test_driver(changes, found, remedy):
    status, text, mend = answer("driver", **changes)
    assert status is Status.FAIL
    assert re.search(found, text)
    assert remedy in mend


def test_driver_in_a_container(monkeypatch):
    fixed(monkeypatch, in_container=True)
    assert answer("driver", driver=MISSING)[1:] == (
        "there is no NVIDIA driver in this container",
        "docker run --gpus all ...  # with the NVIDIA container toolkit on the host",
    )


def test_driver_of_two_cards():
    devices = [["Tesla V100", 7, 0], H200]
    status, text, _ = answer("driver", driver=DRIVER | {"devices": devices}, smi="")
    assert status is Status.OK
    assert text == "CUDA 13.0; Tesla V100 (7.0); NVIDIA H200 (9.0)"


# ------------------------------------------------------------------------------------------------ packages


def with_packages(*names, **changes):
    """The good machine's packages with other CuPy wheels."""
    others = {name: version for name, version in PACKAGES.items() if not name.startswith("cupy")}
    return {"packages": others | dict.fromkeys(names, "14.2.0"), **changes}


DRIVER12 = DRIVER | {"version": 12080}


@pytest.mark.parametrize(
    ("changes", "found", "remedy"),
    [
        (with_packages(), "CuPy is not installed", "pip install 'cupy-cuda13x[ctk]>=14'"),
        (with_packages(driver=DRIVER12), "CuPy is not installed", "pip install 'cupy-cuda12x[ctk]>=14'"),
        (with_packages(driver=MISSING), "CuPy is not installed", "pip install 'cupy-cuda13x[ctk]>=14'"),
        (
            with_packages("cupy-cuda12x", "cupy-cuda13x"),
            "cupy-cuda12x 14.2.0, cupy-cuda13x 14.2.0: they overwrite each other",
            "pip uninstall -y cupy-cuda12x cupy-cuda13x && pip install 'cupy-cuda13x[ctk]>=14'",
        ),
        (
            with_packages("cupy", "cupy-cuda12x", driver=DRIVER12),
            "overwrite each other",
            "pip uninstall -y cupy cupy-cuda12x && pip install 'cupy-cuda12x[ctk]>=14'",
        ),
        (
            with_packages("cupy-cuda13x", driver=DRIVER12),
            "cupy-cuda13x 14.2.0 is for CUDA 13, and the driver runs CUDA 12 at most",
            "pip uninstall -y cupy-cuda13x && pip install 'cupy-cuda12x[ctk]>=14'",
        ),
        (
            with_packages("cupy-cuda11x"),
            "is for CUDA 11",
            "pip uninstall -y cupy-cuda11x && pip install 'cupy-cuda13x[ctk]>=14'",
        ),
        (with_packages("cupy-rocm-5-0"), "is for AMD cards", "pip uninstall -y cupy-rocm-5-0 && "),
        ({"packages": PACKAGES | {"cupy-cuda13x": "13.6.0"}}, "older than 14", "pip install -U 'cupy-cuda13x>=14'"),
    ],
)
def test_cupy(changes, found, remedy):
    status, text, mend = answer("cupy", **changes)
    assert status is Status.FAIL
    assert found in text
    assert mend.startswith(remedy)


@pytest.mark.parametrize(
    "changes",
    [
        with_packages("cupy-cuda12x"),  # a new driver runs older code
        with_packages("cupy-cuda13x", driver=MISSING),
        with_packages("cupy"),  # built here
        with_packages("cupy-cuda13x", "cupyx-something", "cupy-xarray"),  # no CuPy
    ],
)
def test_cupy_is_fine(changes):
    assert answer("cupy", **changes)[0] is Status.OK


def test_parts():
    assert answer("parts") == (Status.OK, "NVRTC, headers and cuBLAS of CUDA 13 from wheels", "")
    twelve = {"numpy": "2.4.6", "cupy-cuda12x": "14.2.0", **PARTS12}
    assert answer("parts", packages=twelve)[1] == "NVRTC, headers and cuBLAS of CUDA 12 from wheels"
    assert answer("parts", packages=PACKAGES | {"cupy-cuda12x": "14"})[0] is Status.SKIPPED
    assert answer("parts", **with_packages())[0] is Status.SKIPPED
    # CUDA 13's parts do nothing for the wheel of CUDA 12, nor do parts of another version under the same name.
    assert answer("parts", **with_packages("cupy-cuda12x")) == (
        Status.FAIL,
        "missing: NVRTC, the CUDA headers, cuBLAS",
        "pip install 'cupy-cuda12x[ctk]'",
    )
    assert answer("parts", packages=PACKAGES | {"nvidia-cublas": "14.0"})[1] == "missing: cuBLAS"


def test_parts_from_a_toolkit():
    bare = {"cupy-cuda13x": "14.2.0"}
    assert answer("parts", packages=bare, toolkit=(Path("/cuda"), 13))[:2] == (Status.OK, "CUDA 13 toolkit in /cuda")
    assert answer("parts", packages=bare, toolkit=(Path("/cuda"), 12))[0] is Status.FAIL


NO_NVRTC = {
    "error": "The emulated device needs NVRTC (wheel nvidia-cuda-nvrtc), which is not installed: pip install 'x'"
}


def test_nvrtc():
    assert answer("nvrtc") == (Status.OK, "NVRTC 13.0 compiles", "")
    status, text, mend = answer("nvrtc", nvrtc=NO_NVRTC)
    assert (status, mend) == (Status.FAIL, "pip install 'cupy-cuda13x[ctk]>=14'")
    assert text.endswith("which is not installed")
    assert answer("nvrtc", nvrtc=NO_NVRTC, toolkit=(Path("/cuda"), 13))[0] is Status.SKIPPED
    status, text, mend = answer("nvrtc", nvrtc={"error": "NVRTC: invalid value for --gpu-architecture"})
    assert (status, text) == (Status.FAIL, "NVRTC: invalid value for --gpu-architecture")
    assert mend == "pip install --upgrade --force-reinstall nvidia-cuda-nvrtc nvidia-cuda-runtime"


def test_numpy(monkeypatch):
    assert answer("numpy")[:2] == (Status.OK, "NumPy 2.4.6")
    old = answer("numpy", packages=PACKAGES | {"numpy": "2.1.1"})
    assert old == (Status.FAIL, "NumPy 2.1.1 is older than 2.1.2", "pip install 'numpy>=2.1.2'")
    assert answer("numpy", packages=PACKAGES | {"numpy": "2.1.2rc1"})[0] is Status.OK
    new = answer("numpy", packages=PACKAGES | {"numpy": "2.6.0"})
    assert new[0] is Status.WARN
    assert new[2] == "pip install 'numpy<2.6,>=2.0'"
    assert answer("numpy", packages={})[0] is Status.OK  # a bare module, without metadata


@pytest.mark.parametrize(
    ("version", "wanted", "met"),
    [
        ("2.4.6", "<2.6,>=2.0", True),
        ("2.6", "<2.6", False),
        ("2.6.0", "<=2.6", True),
        ("2.6.1", ">2.6", True),
        ("1.26", ">=2", False),
        ("2.0", "", True),
        ("2.0", "!=2.0,~=1.0", True),
    ],
)
def test_satisfies(version, wanted, met):
    assert satisfies(version, wanted) is met


# ------------------------------------------------------------------------------------------------ the device


def test_device_and_memory():
    assert answer("device") == (Status.OK, "CuPy 14.2.0 ran a kernel", "")
    assert answer("memory") == (Status.OK, "140.0 of 143.0 GB free", "")
    little = {"cupy": "14.2.0", "free": 10**8, "total": 8 * 10**9}
    assert answer("memory", cupy=little)[:2] == (Status.WARN, "0.1 of 8.0 GB free")
    assert answer("device", driver=MISSING)[0] is Status.SKIPPED
    assert answer("device", **with_packages())[0] is Status.SKIPPED
    for changes in ({"driver": MISSING}, with_packages(), {"cupy": {"error": "x"}}):
        assert answer("memory", **changes)[0] is Status.SKIPPED
    status, text, mend = answer("device", cupy={"error": "the kernel gave wrong values"})
    assert (status, text) == (Status.FAIL, "the kernel gave wrong values")
    assert "show_config" in mend


@pytest.mark.parametrize(
    ("parameters", "root", "status"),
    [
        ("", False, Status.SKIPPED),
        ("RmProfilingAdminOnly: 0\n", False, Status.OK),
        ("A: 1\nRmProfilingAdminOnly: 1\n", False, Status.WARN),
        ("RmProfilingAdminOnly: 1\n", True, Status.OK),
    ],
)
def test_profiler(parameters, root, status, monkeypatch):
    fixed(monkeypatch, driver_parameters=parameters, is_root=root)
    found = answer("profiler")
    assert found[0] is status
    assert ("NVreg_RestrictProfilingToAdminUsers=0" in found[2]) == (status is Status.WARN)


# ------------------------------------------------------------------------------------------------ folders


def test_cache(monkeypatch, tmp_path):
    assert answer("cache")[:2] == (Status.OK, str(tmp_path))
    fixed(monkeypatch, cache_folder=tmp_path / "not" / "yet")  # CuPy makes it
    assert answer("cache")[0] is Status.OK
    assert not (tmp_path / "not").exists()
    (tmp_path / "file").write_text("")
    fixed(monkeypatch, cache_folder=tmp_path / "file" / "below")
    status, text, mend = answer("cache")
    assert (status, text) == (Status.FAIL, f"{tmp_path / 'file'} is not a folder")
    assert mend.startswith("export CUPY_CACHE_DIR=")

    def full(**_):
        raise OSError(28, "No space left on device")

    fixed(monkeypatch, cache_folder=tmp_path)
    monkeypatch.setattr(checks.tempfile, "TemporaryFile", full)
    assert answer("cache")[:2] == (Status.FAIL, f"{tmp_path} cannot be written to (No space left on device)")


def test_kernels(monkeypatch):
    assert answer("kernels")[0] is Status.OK

    def missing():
        raise FileNotFoundError("the CUDA sources are nowhere: reinstall gpulayers")

    monkeypatch.setattr(checks, "kernel_folder", missing)
    status, text, mend = answer("kernels")
    assert (status, text) == (Status.FAIL, "the CUDA sources are nowhere")
    assert mend == "pip install --force-reinstall --no-deps . (in the clone of gpulayers)"


def test_emulator():
    assert answer("emulator")[:2] == (Status.OK, "ran a kernel, compiled by NVRTC for CUDA 13")
    status, text, mend = answer("emulator", emulator=NO_NVRTC)
    assert (status, mend) == (Status.WARN, INSTALL["emulated"])
    assert text.endswith("which is not installed")


def test_a_check_that_raises_is_a_warning(monkeypatch):
    def broken(m):
        raise RuntimeError("oh")

    monkeypatch.setitem(CHECKS, "driver", broken)
    first, *rest = diagnose(machine())
    assert first.status is Status.WARN
    assert first.found == "the check itself failed: RuntimeError: oh"
    assert len(rest) == len(CHECKS) - 1


def test_the_machine_here_can_be_diagnosed():
    """Whatever this machine is: every check has an answer, and what fails has a remedy."""
    for finding in doctor.diagnose():
        assert finding.found
        assert bool(finding.remedy) == (finding.status in (Status.WARN, Status.FAIL))
        assert "the check itself failed" not in finding.found
