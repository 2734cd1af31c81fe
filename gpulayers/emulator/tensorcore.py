"""Tensor-core instructions: `mma.sync`, `ldmatrix`, `stmatrix`, with the register layouts of the PTX ISA.

Products are summed in float64 and rounded once; the hardware's order and internal precision are not documented.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gpulayers.emulator.access import address_reader
from gpulayers.emulator.context import Context, Index, pieces
from gpulayers.emulator.errors import WarpDivergence
from gpulayers.emulator.formats import bfloat16_to_float32
from gpulayers.emulator.indexing import compact, positions, spread
from gpulayers.emulator.program import Instruction
from gpulayers.emulator.regions import Access
from gpulayers.emulator.registry import instruction
from gpulayers.emulator.warp import FULL, WarpStep

Array = np.ndarray
LANES = np.arange(32)
QUAD, WITHIN = LANES >> 2, LANES & 3  # the manual's groupID and threadID_in_group


class Fragment(NamedTuple):
    """Where element i of lane l lies in the matrix: rows[l, i], columns[l, i]."""

    rows: Array
    columns: Array
    shape: tuple[int, int]


def _fragment(rows: int, columns: int, count: int, place: Callable[[int], tuple[Array, Array]]) -> Fragment:
    spots = [place(i) for i in range(count)]
    return Fragment(np.stack([s[0] for s in spots], 1), np.stack([s[1] for s in spots], 1), (rows, columns))


def _layout_a(depth: int, each: int) -> Fragment:
    """A is 16 x depth; a register holds `each` neighbours of a row."""
    half = 4 * each  # columns that one register covers over the four threads of a group

    def place(i: int) -> tuple[Array, Array]:
        register, inside = divmod(i, each)
        return QUAD + 8 * (register & 1), WITHIN * each + inside + half * (register >> 1)

    return _fragment(16, depth, 16 * depth // 32, place)


def _layout_b(depth: int, each: int) -> Fragment:
    """B is depth x 8; a register holds `each` neighbours of a column."""

    def place(i: int) -> tuple[Array, Array]:
        register, inside = divmod(i, each)
        return WITHIN * each + inside + 4 * each * register, QUAD

    return _fragment(depth, 8, 8 * depth // 32, place)


LAYOUT_C = _fragment(16, 8, 4, lambda i: (QUAD + 8 * (i >> 1), WITHIN * 2 + (i & 1)))


def _decode_tf32(registers: Array) -> Array:
    """The hardware reads the upper 19 bits."""
    return (registers & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


def _decode_half(registers: Array) -> Array:
    return registers.view(np.float16).astype(np.float64)


def _decode_bfloat16(registers: Array) -> Array:
    return bfloat16_to_float32(registers.view(np.uint16)).astype(np.float64)


DECODE: dict[str, tuple[int, Callable[[Array], Array]]] = {  # type -> (elements a register, decoder)
    "tf32": (1, _decode_tf32),
    "f16": (2, _decode_half),
    "bf16": (2, _decode_bfloat16),
    "s8": (4, lambda registers: registers.view(np.int8).astype(np.float64)),
    "u8": (4, lambda registers: registers.view(np.uint8).astype(np.float64)),
}
SHAPES = {"tf32": (4, 8), "f16": (8, 16), "bf16": (8, 16), "s8": (16, 32), "u8": (16, 32)}  # depths k


def _whole_warps(group, index: Index, given: Instruction) -> Array:
    """The threads, one row a warp."""
    threads = positions(index)
    if (group.warp_width[index] < 32).any():
        message = f"{given.name} needs whole warps"
        raise group.error(WarpDivergence, message, given.place, int(threads[0]))
    return threads.reshape(-1, 32)


def _registers(group, warps: Array, readers: list) -> Array:
    """The operand's registers as (warps, 32, registers) words."""
    index = compact(warps.reshape(-1))
    columns = [spread(read(group, index), warps.size) for read in readers]
    return np.ascontiguousarray(np.stack(columns, 1)).reshape(len(warps), 32, len(readers))


def _matrix(values: Array, layout: Fragment) -> Array:
    """(warps, 32, elements) -> (warps, rows, columns)."""
    matrix = np.empty((len(values), *layout.shape), values.dtype)
    matrix[:, layout.rows, layout.columns] = values
    return matrix


def _full_mask(group, index: Index) -> np.generic:
    return FULL


@instruction("mma")
def build_product(given: Instruction, context: Context) -> WarpStep:
    """D = A B + C for m16n8k{4,8} tf32, m16n8k{8,16} f16 and bf16, m16n8k{16,32} int8."""
    shape = next((flag for flag in given.flags if flag.startswith("m16n8k")), "")
    given.allow("sync", "aligned", "row", "col", shape, "satfinite")
    if len(given.types) != 4 or not shape or "satfinite" in given.flags:
        raise given.unknown()
    result, left, right, start = given.types
    depth = int(shape[6:])
    if left not in DECODE or depth not in SHAPES[left] or result != start or result not in ("f32", "f16", "s32"):
        raise given.unknown()
    operands = [pieces(operand) for operand in given.operands]
    readers = [[context.reader(name, "b32", given) for name in names] for names in operands[1:]]
    writers = [context.writer(name, "b32", given) for name in operands[0]]
    each = DECODE[left][0]
    layouts = (_layout_a(depth, each), _layout_b(depth, each))

    def step(group, index: Index) -> None:
        warps = _whole_warps(group, index, given)
        a, b = (
            _matrix(DECODE[code][1](_registers(group, warps, readers[k])), layouts[k])
            for k, code in enumerate((left, right))
        )
        c = _matrix(_decode_sum(_registers(group, warps, readers[2]), result), LAYOUT_C)
        d = (a @ b + c)[:, LAYOUT_C.rows, LAYOUT_C.columns]
        words = _encode_sum(d, result).reshape(warps.size, -1)
        for number, write in enumerate(writers):
            write(group, index, words[:, number])

    return WarpStep(step, _full_mask)


def _decode_sum(registers: Array, code: str) -> Array:
    if code == "f16":
        return registers.view(np.float16).astype(np.float64)
    return registers.view(np.float32 if code == "f32" else np.int32).astype(np.float64)


def _encode_sum(values: Array, code: str) -> Array:
    if code == "s32":  # wraps like the hardware's integers
        return values.astype(np.int64).astype(np.uint32)
    return np.ascontiguousarray(values.astype(np.float16 if code == "f16" else np.float32)).view(np.uint32)


@instruction("ldmatrix")
def build_load_matrix(given: Instruction, context: Context) -> WarpStep:
    """8 x 8 matrices of 16-bit elements; lane 8 i + r holds the address of row r of matrix i."""
    flags = given.allow("sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta")
    names = pieces(given.operands[0])
    writers = [context.writer(name, "b32", given) for name in names]
    read_address = address_reader(given, context, given.operands[1])
    access = Access(16, False, False, given.place)
    transpose = "trans" in flags

    def step(group, index: Index) -> None:
        warps = _whole_warps(group, index, given)
        rows = compact(warps[:, : 8 * len(writers)].reshape(-1))
        data = np.empty((len(warps), len(writers), 8, 8), np.uint16)
        for region, where, address, part in group.memory.split(group, read_address(group, rows), access, rows):
            region.check(group, where, address, access, part)
            lanes = np.searchsorted(positions(rows), positions(part))
            data.reshape(-1, 8)[lanes] = region.data[where[:, None] + np.arange(16)].view(np.uint16)
        for number, write in enumerate(writers):
            matrix = data[:, number].swapaxes(1, 2) if transpose else data[:, number]
            low, high = (matrix[:, QUAD, 2 * WITHIN + k].astype(np.uint32) for k in (0, 1))
            write(group, index, (low | high << np.uint32(16)).reshape(-1))

    return WarpStep(step, _full_mask)


@instruction("stmatrix")
def build_store_matrix(given: Instruction, context: Context) -> WarpStep:
    """The reverse of ldmatrix."""
    flags = given.allow("sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta")
    readers = [context.reader(name, "b32", given) for name in pieces(given.operands[1])]
    read_address = address_reader(given, context, given.operands[0])
    access = Access(16, True, False, given.place)
    transpose = "trans" in flags

    def step(group, index: Index) -> None:
        warps = _whole_warps(group, index, given)
        halves = _registers(group, warps, readers).view(np.uint16).reshape(len(warps), 32, len(readers), 2)
        data = np.empty((len(warps), len(readers), 8, 8), np.uint16)
        for k in (0, 1):
            data[:, :, QUAD, 2 * WITHIN + k] = halves[..., k].swapaxes(1, 2)
        data = np.ascontiguousarray(data.swapaxes(2, 3) if transpose else data).reshape(-1, 8)
        rows = compact(warps[:, : 8 * len(readers)].reshape(-1))
        for region, where, address, part in group.memory.split(group, read_address(group, rows), access, rows):
            region.check(group, where, address, access, part)
            lanes = np.searchsorted(positions(rows), positions(part))
            region.data[where[:, None] + np.arange(16)] = data[lanes].view(np.uint8)

    return WarpStep(step, _full_mask)
