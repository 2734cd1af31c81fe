"""The tool that plants faults: what it changes, what it makes of the outcome, how survivors are named."""

from collections import Counter

import pytest
from mutation import campaign, survivors
from mutation.campaign import Campaign
from mutation.operators import KINDS, faults, sample
from mutation.source import Fault, Source

TEXT = """
// a < b in a comment
#define NOTHING (a < b)
template <typename T> __device__ float warp_sum(float x) {
    for (int step = WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}
extern "C" __global__ void kernel(float* y, const float* x, offset rows, int cols) {
    const offset row = (offset)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    __shared__ float sums[WARP];
    const bool aligned = cols % PACK == 0 && aligned16(x);
    if (aligned && !(cols & 15)) fill(y, -1.0f);
    __syncthreads();  // all
    y[row * cols] = row < cols ? fmaxf(x[row], 0.0f) : sums[0];
}
"""


@pytest.fixture(scope="module")
def source():
    return Source("kernel.cu", TEXT)


def test_each_kind_changes_what_it_says(source):
    marked = {(one.kind, one.function, one.marked(TEXT)) for one in faults(source)}
    loop = "for (int step = WARP / 2; step > 0; step /= 2)"
    wanted = {
        ("barrier", "kernel", "{__syncthreads(); → ;}"),
        ("comparison", "kernel", "if (row {>= → >} rows) return;"),
        ("arithmetic", "kernel", "y[row {* → /} cols] = row < cols ? fmaxf(x[row], 0.0f) : sums[0];"),
        ("bits", "kernel", "if (aligned && !(cols {& → |} 15)) fill(y, -1.0f);"),
        ("logic", "kernel", "if (aligned {&& → ||} !(cols & 15)) fill(y, -1.0f);"),
        ("shuffle", "warp_sum", f"{loop} x += __shfl_xor_sync({{ALL_LANES → 0x0000ffffu}}, x, step);"),
        ("shuffle", "warp_sum", f"{loop} x += __shfl_xor_sync(ALL_LANES, x, {{step → step + 1}});"),
        ("stride", "kernel", "const offset row = (offset)blockIdx.x * {blockDim.x → (2 * blockDim.x)} + threadIdx.x;"),
        ("guard", "kernel", "{if (row >= rows) return; → ;}"),
        ("guard", "kernel", "if ({aligned && !(cols & 15) → true}) fill(y, -1.0f);"),
        ("bound", "kernel", "__shared__ float sums[{WARP → WARP - 1}];"),
        ("minmax", "kernel", "y[row * cols] = row < cols ? {fmaxf → fminf}(x[row], 0.0f) : sums[0];"),
        ("index", "kernel", "if (row >= {rows → cols}) return;"),
        ("accumulate", "warp_sum", f"{loop} x {{+= → =}} __shfl_xor_sync(ALL_LANES, x, step);"),
        ("constant", "kernel", "y[row * cols] = row < cols ? fmaxf(x[row], {0.0f → 1.0f}) : sums[0];"),
        ("negation", "kernel", "if (aligned && {! → }(cols & 15)) fill(y, -1.0f);"),
        (
            "branch",
            "kernel",
            "y[row * cols] = row < cols ? {fmaxf(x[row], 0.0f) : sums[0] → sums[0] : fmaxf(x[row], 0.0f)};",
        ),
        ("alignment", "kernel", "const bool aligned = cols % PACK == 0 && {aligned16(x) → true};"),
        (
            "reduction",
            "warp_sum",
            "for (int step = WARP / {2 → 4}; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);",
        ),
        ("cast", "kernel", "const offset row = {(offset) → }blockIdx.x * blockDim.x + threadIdx.x;"),
        ("call", "kernel", "if (aligned && !(cols & 15)) {fill(y, -1.0f); → ;}"),
    }
    assert wanted <= marked
    assert {kind for kind, *_ in wanted} == set(KINDS)
    assert not any("NOTHING" in line or "typename" in line for *_, line in marked)


def test_a_fault_keeps_the_lines(source):
    assert {one.apply(TEXT).count("\n") for one in faults(source)} == {TEXT.count("\n")}


def test_a_larger_sample_holds_the_smaller_and_kinds_take_turns(source):
    every = faults(source)
    small, large = (sample(every, most, seed=3) for most in (12, 30))
    assert len(small) == 12 == len({one.kind for one in small})
    assert set(small) < set(large)
    assert sample(every, 0, seed=3) == every
    assert max(Counter(one.kind for one in sample(every, 2 * len(KINDS), seed=3)).values()) > 1


def test_survivors_are_read_back(source, tmp_path, monkeypatch):
    keys = [survivors.key_of(one, TEXT) for one in faults(source)]
    assert any("|" in key.line for key in keys)
    monkeypatch.setattr(survivors, "PAGE", tmp_path / "page.md")
    assert survivors.explained() == {}
    lines = ["| where | kind | fault | why |", "|---|---|---|---|", *(survivors.row(key, "because") for key in keys)]
    survivors.PAGE.write_text("\n".join(lines), "utf-8")
    assert survivors.explained() == dict.fromkeys(keys, "because")


def test_outcomes(tmp_path, monkeypatch):
    """A kernel as it is, and with faults whose outcome is known; and nothing is run twice."""
    monkeypatch.setattr(campaign, "CACHE", tmp_path / "cache")
    one = Campaign(tmp_path / "project", jobs=2)
    one.run_normal(["elementwise"], print)
    assert list(one.normal) == ["elementwise"]

    def fault(old: str, new: str) -> Fault:
        start = one.sources["elementwise.cu"].text.index(old)
        return Fault("elementwise.cu", "multiply", "test", start, start + len(old), new)

    planted = [
        fault("a * b;", "a / b;"),
        fault("a, b, n,", "a, b + 1, n,"),
        fault("a * b", "(a * b)"),
        fault("b;", "c;"),
    ]
    found = one.run(planted, print)
    assert [(found.outcome, found.how) for found in found] == [
        ("killed", "value"),
        ("killed", "check"),
        ("same", ""),
        ("refused", ""),
    ]
    assert "Misaligned" in found[1].error or "OutOfBounds" in found[1].error
    monkeypatch.setattr(Campaign, "work", None)
    assert Campaign(tmp_path / "again", jobs=1).run_one("elementwise") == one.normal["elementwise"]
    assert one.run(planted, print) == found


def test_faults_are_found_in_every_source():
    for path in sorted((campaign.ROOT / "kernels").glob("*.cu*")):
        assert list(faults(Source(path.name, path.read_text("utf-8")))), path.name
