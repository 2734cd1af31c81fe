"""The compiler without a device: options, errors, resources, and the signatures that it spells."""

import importlib.util

import pytest

from gpulayers.emulator import disk_cache, nvrtc, parser, signature, toolkit
from gpulayers.emulator.errors import CompileError, ParseError, ToolkitMissing
from gpulayers.emulator.module import compile_module

SOURCE = """
#include <cuda_fp16.h>
#ifndef STORAGE
#define STORAGE float
#endif
typedef unsigned long long word;
struct Pair { float a, b; };
namespace inner { struct Box { int x; }; }
template <typename T> __global__ void templated(T* y, const T* x) { y[0] = x[0]; }
extern "C" __global__ void __launch_bounds__(256) plain(STORAGE* __restrict__ y, const STORAGE* __restrict__ x, word n,
                                                        float4* v, bool flag, unsigned char c, Pair pair,
                                                        inner::Box* box, double** table, const volatile int* flagged) {
    if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x];
}
// __global__ void not_a_kernel(int x)
extern "C" __global__ void empty() {}
"""
pytestmark = pytest.mark.usefixtures("compiler")


def test_the_toolkit_is_found_in_the_wheels():
    found = toolkit.find()
    assert found.library.is_file()
    assert (found.include / "cuda_fp16.h").is_file()
    assert nvrtc.version()[0] == found.major


def test_a_missing_wheel_is_one_sentence(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    toolkit.find.cache_clear()
    try:
        with pytest.raises(ToolkitMissing, match=r"NVRTC .*pip install 'nvidia-cuda-nvrtc>=") as caught:
            toolkit.find()
        assert "\n" not in str(caught.value)
        assert isinstance(caught.value, ImportError)
    finally:
        toolkit.find.cache_clear()


@pytest.mark.parametrize("arch", ["compute_75", "compute_80", "compute_90", "compute_100", "compute_120"])
def test_ptx_of_each_architecture_is_parsed(arch):
    text = nvrtc.compile_ptx(SOURCE, arch=arch).text
    program = parser.parse(text, "kernel.cu", SOURCE)
    assert program.target == arch.replace("compute", "sm")
    assert {"plain", "empty"} <= set(program.kernels)
    places = {given.place.text for given in program.kernels["plain"].code}
    assert "if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x];" in places


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_120"])
def test_resources_are_read_from_the_log(arch):
    source = """extern "C" __global__ void spills(float* y, const float* x) {
        __shared__ float cell[100];
        float a[64];
        for (int i = 0; i < 64; ++i) a[i] = x[i * blockDim.x + threadIdx.x];
        cell[threadIdx.x] = a[threadIdx.x & 63];
        __syncthreads();
        for (int r = 0; r < 3; ++r) for (int i = 0; i < 64; ++i) a[i] = a[(i * 7 + r) & 63] * cell[i] + a[i];
        float s = 0; for (int i = 0; i < 64; ++i) s += a[i];
        y[threadIdx.x] = s; }
        extern "C" __global__ void small(float* y) { y[0] = 1; }"""
    report = nvrtc.resources(source, arch=arch, options=("-maxrregcount=24",))
    assert set(report) == {"spills", "small"}
    assert report["spills"].shared >= 400
    assert 0 < report["spills"].registers <= 24
    assert report["spills"].spill_stores + report["spills"].stack > 0
    assert report["small"].spill_stores == report["small"].spill_loads == report["small"].stack == 0
    assert nvrtc.compile_cubin(source, arch=arch).code[:4] == b"\x7fELF"


def test_errors_show_the_compilers_log():
    with pytest.raises(CompileError, match=r"name.cu\(1\): error"):
        nvrtc.compile_ptx("__global__ void k() { undeclared = 1; }", "name.cu")


def test_an_edited_header_is_compiled_again(tmp_path):
    header = tmp_path / "common.cuh"
    source = '#include "common.cuh"\nextern "C" __global__ void k(int* x) { *x = VALUE; }'
    texts = []
    for value in ("11", "2222"):
        header.write_text(f"#define VALUE {value}\n")
        texts.append(nvrtc.compile_ptx(source, options=(f"-I{tmp_path}",)).text)
    assert ", 11;" in texts[0]
    assert ", 2222;" in texts[1]


def types_of(kernel: str, *options: str) -> list[str]:
    expression = signature.probe_expression(kernel)
    compiled = nvrtc.compile_ptx(SOURCE + signature.PROBE_SOURCE, options=options, name_expressions=[expression])
    types = signature.parameter_types(compiled.names[expression])
    assert types is not None
    return [str(one) for one in types]


def test_signatures_with_typedefs_structs_and_macros():
    assert types_of("plain") == [
        "float*", "const float*", "unsigned long long", "float4*", "bool", "unsigned char", "Pair", "Box*", "double**",
        "const int*",
    ]  # fmt: skip
    assert types_of("plain", "-DSTORAGE=__half")[:2] == ["__half*", "const __half*"]
    assert types_of("templated<__half>") == ["__half*", "const __half*"]
    assert types_of("empty") == []


def test_kernels_are_found_in_the_source():
    assert signature.kernel_names(SOURCE) == ["plain", "empty"]


def test_text_that_is_not_ptx():
    with pytest.raises(ParseError, match="not a PTX module"):
        parser.parse("int main() {}")


def test_signatures_of_the_kernels_that_this_architecture_has():
    source = """extern "C" __global__ void always(float* x) { *x = 1; }
    #if __CUDA_ARCH__ >= 900
    extern "C" __global__ void new_only(double* x) { *x = 1; }
    #endif"""
    assert set(compile_module(source, arch="compute_75").types) == {"always"}
    assert set(compile_module(source, arch="compute_90").types) == {"always", "new_only"}


def test_ptx_is_kept_on_disk(own_cache, monkeypatch):
    source = 'extern "C" __global__ void kept(float* x) { *x = 1.0f; }'
    first = nvrtc.compile_ptx(source, "kept.cu")
    monkeypatch.setattr(nvrtc, "_cache", {})
    monkeypatch.setattr(nvrtc, "_run", lambda *arguments: pytest.fail("compiled again"))
    again = nvrtc.compile_ptx(source, "kept.cu")
    assert again.text == first.text
    assert again.names == first.names
    monkeypatch.undo()
    monkeypatch.setattr(nvrtc, "_cache", {})
    for path in own_cache.glob("*.json"):
        path.write_text("{ broken")
    assert nvrtc.compile_ptx(source, "kept.cu").text == first.text


def test_a_cache_folder_that_cannot_be_written_does_not_matter(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setattr(disk_cache, "folder", lambda: blocked / "inside")
    assert "blocked" in nvrtc.compile_ptx('extern "C" __global__ void blocked() {}').text
