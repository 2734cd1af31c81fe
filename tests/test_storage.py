"""Files are whole or the old ones: H24 of the reported cases (Lightning-AI/pytorch-lightning #688, #19970)."""

import contextlib
import json
import struct
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayers import storage
from gpulayers.storage import FileError, load_tensors, map_tensors, remove_leftovers, save_tensors, write_atomically

TENSORS = {
    "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
    "strange": np.array([np.nan, -0.0, np.inf, 5e-324]),
    "transposed": np.arange(6, dtype=np.float16).reshape(2, 3).T,
    "scalar": np.array(7, np.int64),
    "empty": np.zeros((0, 3), np.float32),
    "brain": np.array([1.5, -2], ml_dtypes.bfloat16),
    "yes": np.array([True, False, True]),
    "big endian": np.array([1, 2], ">i4"),
}


def raw(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_tensors_come_back_bit_for_bit(tmp_path):
    path = tmp_path / "x.safetensors"
    save_tensors(path, TENSORS, {"key": 'välue "\n'})
    tensors, metadata = load_tensors(path)
    assert metadata == {"key": 'välue "\n'}
    assert tensors.keys() == TENSORS.keys()
    for name, array in TENSORS.items():
        assert tensors[name].dtype == array.dtype.newbyteorder("=")
        assert tensors[name].shape == array.shape
        assert tensors[name].tobytes() == array.astype(array.dtype.newbyteorder("=")).tobytes()
    assert load_tensors(path, "s")[0].keys() == {"strange", "scalar"}
    assert names(tmp_path) == ["x.safetensors"]


def test_the_official_library_reads_and_writes_the_same_files(tmp_path):
    from safetensors.numpy import load_file, save_file

    plain = {name: TENSORS[name] for name in ("matrix", "scalar", "empty", "yes")}
    save_tensors(tmp_path / "ours", plain, {})
    save_file(plain, tmp_path / "theirs", {"a": "b"})
    assert load_tensors(tmp_path / "theirs")[1] == {"a": "b"}
    for loaded in (load_file(tmp_path / "ours"), load_tensors(tmp_path / "theirs")[0]):
        for name, array in plain.items():
            np.testing.assert_array_equal(loaded[name], array)


def test_a_mapped_file_is_read_as_it_is_used(tmp_path):
    save_tensors(tmp_path / "x", TENSORS, {"key": "value"})
    tensors, metadata = map_tensors(tmp_path / "x")
    assert metadata == {"key": "value"}
    for name, array in load_tensors(tmp_path / "x")[0].items():
        assert tensors[name].dtype == array.dtype
        assert tensors[name].shape == array.shape
        assert tensors[name].tobytes() == array.tobytes()
        assert not tensors[name].flags.writeable
        assert array.flags.writeable
    content = (tmp_path / "x").read_bytes()
    (tmp_path / "y").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(FileError, match="is damaged: the checksum of"):
        map_tensors(tmp_path / "y")
    assert map_tensors(tmp_path / "y", checked=False)[0].keys() == TENSORS.keys()


def test_arrays_are_aligned_in_the_file(tmp_path):
    save_tensors(tmp_path / "x", {"a": np.ones(3, bool), "b": np.ones(3), "c": np.ones(3, np.float32)}, {"odd": "x"})
    content = (tmp_path / "x").read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    assert size % 8 == 0
    assert [header[name]["data_offsets"][0] for name in "bca"] == [0, 24, 36]


def test_what_a_file_cannot_hold_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(TypeError, match="x has dtype complex128, a file can hold float64"):
        save_tensors(tmp_path / "x", {"x": np.ones(1, complex)}, {})
    assert names(tmp_path) == []


@pytest.mark.parametrize("error", [RuntimeError("stop"), KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_write_that_fails_half_way_leaves_the_old_file(tmp_path, error):
    path = tmp_path / "x"
    save_tensors(path, TENSORS, {})
    before = path.read_bytes()

    def fail_half_way() -> None:
        with storage.replacing(path) as file:
            file.write(b"half of it")
            file.flush()
            assert len(names(tmp_path)) == 2
            raise error

    with pytest.raises(FileError if isinstance(error, OSError) else type(error)) as caught:
        fail_half_way()
    if isinstance(error, OSError):
        assert str(caught.value) == f"cannot write {path}: No space left on device"
    assert path.read_bytes() == before
    assert names(tmp_path) == ["x"]


def test_a_full_disk(tmp_path):
    """A real short write: the system refuses to let any file grow beyond the limit, as a full disk would."""
    resource = pytest.importorskip("resource")
    path = tmp_path / "x"
    write_atomically(path, b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
        with pytest.raises(FileError, match=r"cannot write .*x: File too large"):
            save_tensors(path, {"large": np.zeros(100_000)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["x"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_disk_that_fails_at_the_end(tmp_path, monkeypatch, step):
    write_atomically(tmp_path / "x", b"old")

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(storage.os, step, fail)
        with pytest.raises(FileError, match=r"cannot write .*x: Input/output error"):
            write_atomically(tmp_path / "x", b"new")
    assert (tmp_path / "x").read_bytes() == b"old"
    assert names(tmp_path) == ["x"]


def test_a_folder_that_is_not_there_and_a_name_that_is_taken(tmp_path):
    with pytest.raises(FileError, match=r"cannot write .*: No such file or directory"):
        write_atomically(tmp_path / "no" / "x", b"")
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    with pytest.raises(FileError, match=r"cannot write .*folder"):
        write_atomically(tmp_path / "folder", b"")
    assert names(tmp_path) == ["folder"]


def test_only_our_own_leftovers_are_removed(tmp_path):
    for name in (".checkpoint-1.safetensors.4711.tmp", ".loss.png.1.tmp", ".mine.tmp", "a.1.tmp", "loss.png"):
        (tmp_path / name).touch()
    (tmp_path / ".folder.1.tmp").mkdir()
    remove_leftovers(tmp_path)
    assert names(tmp_path) == [".folder.1.tmp", ".mine.tmp", "a.1.tmp", "loss.png"]
    remove_leftovers(tmp_path / "missing")


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(FileError, match="x does not exist"):
        load_tensors(tmp_path / "x")
    with pytest.raises(FileError, match="is not a file"):
        load_tensors(tmp_path)


F32 = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        struct.pack("<Q", 1 << 62) + b"{}",
        struct.pack("<Q", 1 << 30) + b" " * 100,
        raw(b"no json"),
        raw(b"\xff\xfe"),
        raw(b"[" * 100_000),
        raw([]),
        raw({"__metadata__": {"key": 1}}),
        raw({"__metadata__": {storage.CHECKSUMS: "[]"}, "x": F32}, b"1234"),
        raw({"__metadata__": {storage.CHECKSUMS: "{"}, "x": F32}, b"1234"),
        raw({"x": F32}),  # cut short
        raw({"x": F32}, b"123456789"),  # too long
        raw({"x": F32, "y": F32}, b"1234"),  # the two overlap
        raw({"x": F32 | {"data_offsets": [4, 0]}}, b"1234"),
        raw({"x": F32 | {"data_offsets": [-4, 0]}}, b"1234"),
        raw({"x": F32 | {"shape": [1 << 40]}}, b"1234"),
        raw({"x": F32 | {"shape": [1 << 62, 1 << 62]}}, b"1234"),
        raw({"x": F32 | {"shape": [0, 1 << 62], "data_offsets": [0, 0]}}),
        raw({"x": F32 | {"shape": [1] * 70}}, b"1234"),
        raw({"x": F32 | {"dtype": "F7"}}, b"1234"),
        raw({"x": {"dtype": "F4", "shape": [8], "data_offsets": [0, 4]}}, b"1234"),
    ],
)
def test_no_strange_file_leads_to_anything_but_one_sentence(tmp_path, content):
    path = tmp_path / "strange.safetensors"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(FileError, match=r"strange.safetensors (is not a whole|cannot be read)") as caught:
            load_tensors(path)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000  # nothing is allocated on the header's word
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)


def whole(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "x"
    save_tensors(path, TENSORS, {"key": "value"})
    return path.read_bytes()


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> tuple:
    return tmp_path_factory.mktemp("mutated") / "x", whole(tmp_path_factory)


def test_every_truncation_is_noticed(file):
    path, content = file
    for length in [*range(16), *range(16, len(content) - 16, 23), *range(len(content) - 16, len(content))]:
        path.write_bytes(content[:length])
        with pytest.raises(FileError):
            load_tensors(path)


def test_every_flipped_byte_of_an_array_is_noticed(file):
    path, content = file
    for place in range(len(content) - sum(array.nbytes for array in TENSORS.values()), len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(FileError, match="is damaged: the checksum of"):
            load_tensors(path)


def test_every_flipped_byte_of_the_metadata_is_noticed(file):
    path, content = file
    for word in (b"key", b"value"):
        start = content.index(word)
        for place in range(start, start + len(word)):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            with pytest.raises(FileError, match="is damaged: the checksum of __metadata__"):
                load_tensors(path)


def test_a_file_without_a_checksum_of_its_metadata(file):
    path, content = file
    path.write_bytes(content.replace(b'\\"__metadata__\\":', b'\\"__metadatA__\\":'))
    assert load_tensors(path)[1] == {"key": "value"}


edits = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 4), st.binary(max_size=4)), min_size=1, max_size=5)


@settings(max_examples=50, deadline=None)
@given(edits=edits)
def test_a_mutated_file_is_read_or_refused_with_one_sentence(file, edits):
    path, content = file
    for place, cut, new in edits:
        place %= len(content)
        content = content[:place] + new + content[place + cut :]
    path.write_bytes(content)
    with contextlib.suppress(FileError):
        load_tensors(path)
