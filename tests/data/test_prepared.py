import json
import multiprocessing
import os
import subprocess
import sys

import numpy as np
import pytest

from gpulayers.data import (
    Batches,
    ByteTokenizer,
    CharTokenizer,
    DataError,
    SubwordTokenizer,
    encode_split,
    load_corpus,
    prepare,
    prepared,
    sources,
    validation_windows,
)
from gpulayers.storage import FileError

LINES = [f"{i} green bottles, hanging on the wall … and if 1 of the {i} should fall …\n" for i in range(300)]
KINDS = ["byte", "char", "bpe"]


@pytest.fixture
def files(tmp_path):
    (tmp_path / "a.txt").write_text("".join(LINES), "utf-8")
    (tmp_path / "b.txt").write_text("".join(LINES[:50]), "utf-8")
    documents = [{"text": line, "n": i} for i, line in enumerate(LINES[:80])]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, documents)), "utf-8")
    return [tmp_path / name for name in ("a.txt", "b.txt", "c.jsonl")]


@pytest.fixture
def small_pieces(monkeypatch):
    """Many pieces, as a large text has."""
    monkeypatch.setattr(prepared, "pieces", lambda texts: sources.pieces(texts, 200))
    monkeypatch.setattr(sources, "CHUNK", 333)


def same(one, other):
    for a, b in zip([*one.train, *one.validation], [*other.train, *other.validation], strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", KINDS)
def test_in_memory_and_in_a_file_the_tokens_are_those_of_the_whole_text(files, kind, tmp_path, small_pieces):
    plain = files[:2]
    found, mapped = prepare(plain, kind, 300), prepare(plain, kind, 300, cache=tmp_path / "cache")
    corpus = load_corpus(plain)
    train, validation = encode_split(corpus, found.tokenizer)
    assert (found.name, found.names, found.digest) == (corpus.name, corpus.names, corpus.digest)
    for one in (found, mapped):
        assert one.tokenizer.to_json() == found.tokenizer.to_json()
        for a, b in zip([*one.train, *one.validation], [*train, *validation], strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


def test_the_tokenizers(files):
    assert isinstance(prepare(files, "byte").tokenizer, ByteTokenizer)
    assert prepare(files, "char").tokenizer.vocabulary == CharTokenizer("".join(LINES)).vocabulary
    bpe = prepare(files, "bpe", 300)
    assert bpe.tokenizer.vocab_size == 300
    assert bpe.train[0].dtype == np.uint16
    given = prepare(files, bpe.tokenizer)
    assert given.tokenizer is bpe.tokenizer
    same(given, bpe)


def test_a_tokenizer_from_a_file(files, tmp_path):
    first = prepare(files, "bpe", 300)
    for name, content in first.tokenizer.files().items():
        (tmp_path / name).write_bytes(content)
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        same(prepare(files, str(path)), first)


def test_documents_end_with_the_token_for_it(files):
    bpe = prepare(files[2:], "bpe", 300)
    assert bpe.tokenizer.decode(bpe.train[0]).startswith(LINES[0] + "<|endoftext|>" + LINES[1])
    assert np.count_nonzero(bpe.train[0] == bpe.tokenizer.end) == 72
    assert bytes(prepare(files[2:], "byte").train[0]).decode().startswith(LINES[0] + "\n\n" + LINES[1])


def test_a_bpe_is_trained_on_the_training_part(tmp_path):
    (tmp_path / "x").write_text("ab" * 900 + "zq" * 100, "utf-8")
    bpe = prepare([tmp_path / "x"], "bpe", 300).tokenizer
    assert len(bpe.encode("abab")) < 4
    assert len(bpe.encode("zqzq")) == 4


def test_a_bpe_of_short_documents_has_seen_no_validation_text(tmp_path):
    """END is longer than the line break that stands for it: the cut was another one, in the midst of the last text."""
    texts = [*"ab" * 500, "zq" * 500]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    found = prepare([tmp_path / "a.jsonl"], "bpe", 300)
    assert isinstance(found.tokenizer, SubwordTokenizer)
    assert len(found.tokenizer.encode("zqzq")) == 4
    assert "z" not in found.tokenizer.decode(found.train[0])


def test_the_whole_for_training(files):
    found = prepare(files[:1], "byte", whole=True)
    assert bytes(found.train[0]).decode() == "".join(LINES)
    assert len(found.validation[0]) == 1  # the last training token, which is not scored


def test_the_default_is_the_python_documentation(tmp_path):
    found, corpus = prepare(None, "byte", cache=tmp_path), load_corpus()
    assert (found.name, found.digest) == (corpus.name, corpus.digest)
    np.testing.assert_array_equal(found.train[0], encode_split(corpus, ByteTokenizer())[0][0])


# ------------------------------------------------------------------------------------------------ the cache


def count_encoding(monkeypatch):
    """How many pieces are encoded from here on."""
    counted, real = [], prepared._encoded

    def encoded(*arguments):
        for tokens in real(*arguments):
            counted.append(len(tokens))
            yield tokens

    monkeypatch.setattr(prepared, "_encoded", encoded)
    return counted


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_is_tokenised_once(files, kind, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    first = prepare(files, kind, 300, cache=cache)
    counted = count_encoding(monkeypatch)
    monkeypatch.setattr(prepared, "_made", lambda *_: pytest.fail("the tokenizer was made again"))
    same(prepare(files, kind, 300, cache=cache), first)
    same(prepare(files, first.tokenizer, cache=cache), first)  # as a resumed run does
    assert counted == []


def test_another_text_tokenizer_or_split_is_another_entry(files, tmp_path, monkeypatch):
    cache, counted = tmp_path / "cache", count_encoding(monkeypatch)

    def encoded(*arguments, **options):
        counted.clear()
        prepare(*arguments, cache=cache, **options)
        return bool(counted)

    assert encoded(files, "byte")
    assert not encoded(files, "byte")
    assert encoded(files, "char")
    assert encoded(files, "bpe", 300)
    assert encoded(files, "bpe", 301)
    assert encoded(files, "byte", whole=True)
    assert encoded(files[::-1], "byte")
    files[0].write_text("".join(LINES)[:-1] + "!", "utf-8")
    assert encoded(files, "byte")
    assert not encoded(files, "byte")


@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_a_damaged_entry_is_made_again(files, tmp_path, damage):
    cache = tmp_path / "cache"
    first = prepare(files, "bpe", 300, cache=cache)
    wanted = [*map(np.array, [*first.train, *first.validation])]
    del first
    for path in [*cache.rglob("*.safetensors"), *cache.rglob("*.json")]:
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content[: len(content) // 2] if damage is None else damage)
    again = prepare(files, "bpe", 300, cache=cache)
    for a, b in zip([*again.train, *again.validation], wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_counts_that_the_tokens_do_not_have(files, tmp_path):
    first = prepare(files, "byte", cache=tmp_path)
    (path,) = tmp_path.rglob("tokens.safetensors")
    path.write_bytes(path.read_bytes()[:-8] + b"\xff" * 8)  # the last count is -1
    again = prepare(files, "byte", cache=tmp_path)
    assert [len(part) for part in again.train] == [len(part) for part in first.train]


@pytest.mark.parametrize("kind", ["byte", "char", "bpe"])
@pytest.mark.parametrize("cached", [True, False])
def test_a_file_that_changes_while_it_is_read(kind, cached, tmp_path, monkeypatch):
    """The tokens of the new text lay in the cache under the digest of the old one."""
    file, cache = tmp_path / "a.txt", tmp_path / "cache" if cached else None
    file.write_text("old " * 100)

    def and_then(found):
        digest = sources.digest_of(found)
        file.write_text("newer " * 100)
        return digest

    with monkeypatch.context() as patched:
        patched.setattr(prepared, "digest_of", and_then)
        with pytest.raises(DataError, match=r"a.txt has changed while it was read: start again when it is complete"):
            prepare([file], kind, 260 if kind == "bpe" else None, cache=cache)
    assert not list(tmp_path.rglob("*.safetensors")) + list(tmp_path.rglob("tokenizer.json"))
    file.write_text("old " * 100)
    found = prepare([file], kind, 260 if kind == "bpe" else None, cache=cache)
    assert found.tokenizer.decode(found.train[0][:4]).startswith("old")


def test_large_texts_go_to_the_users_cache(files, tmp_path, monkeypatch):
    monkeypatch.setattr(prepared, "cache_folder", lambda: tmp_path / "user" / "tokens")
    small = prepare(files, "byte")
    assert not (tmp_path / "user").exists()
    monkeypatch.setattr(prepared, "IN_MEMORY", 1000)
    same(prepare(files, "byte"), small)
    assert len(list((tmp_path / "user").rglob("tokens.safetensors"))) == 1


def test_the_users_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert prepared.cache_folder() == tmp_path / "gpulayers" / "tokens"


def test_a_cache_that_a_file_names_is_read_and_not_written(files, tmp_path, monkeypatch):
    cache, other = tmp_path / "cache", tmp_path / "other"
    first = prepare(files, "bpe", 300, cache=cache)
    counted = count_encoding(monkeypatch)
    same(prepare(files, first.tokenizer, cache=cache, recorded=True), first)
    assert not counted
    same(prepare(files, first.tokenizer, cache=other, recorded=True), first)
    assert counted
    assert not other.exists()


def test_mapped_tokens_are_read_only_and_of_the_file(files, tmp_path):
    found = prepare(files, "byte", cache=tmp_path / "cache")
    for tokens in (*found.train, *found.validation):
        assert not tokens.flags.writeable
        assert not tokens.flags.owndata


def test_a_full_disk_leaves_nothing_half(files, tmp_path, monkeypatch):
    cache = tmp_path / "cache"

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(FileError, match=r"cannot write .*tokens.safetensors: No space left on device"):
        prepare(files, "byte", cache=cache)
    assert not [path for path in cache.rglob("*") if path.is_file()]
    monkeypatch.undo()
    prepare(files, "byte", cache=cache)


@pytest.mark.parametrize("locks", [True, False])
def test_leftovers_go_where_nobody_else_can_be_writing_them(files, locks, tmp_path, monkeypatch):
    """A folder of a network may have no locks: there the file of another machine's process was taken away."""
    fcntl = pytest.importorskip("fcntl")
    prepare(files, "byte", cache=tmp_path)
    (path,) = tmp_path.rglob("tokens.safetensors")
    path.with_name(".tokens.safetensors.1.tmp").touch()

    def no_locks(*_):
        raise OSError(37, "No locks available")

    if not locks:
        monkeypatch.setattr(fcntl, "flock", no_locks)
    prepare(files, "byte", cache=tmp_path)
    assert len(list(path.parent.iterdir())) == (1 if locks else 2)


def test_a_cache_that_cannot_be_a_folder(files, tmp_path):
    with pytest.raises(FileError, match=r"cannot make the folder .* for tokens: "):
        prepare(files, "byte", cache=files[0])


def test_bad_text_is_named_and_leaves_no_entry(files, tmp_path):
    files[1].write_bytes(b"good \xff")
    with pytest.raises(DataError, match=r"b.txt is not UTF-8 text: byte 0xff at offset 5"):
        prepare(files, "byte", cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


PROGRAM = """
import sys, numpy as np
from gpulayers.data import prepare
found = prepare(sys.argv[2:], "bpe", 300, cache=sys.argv[1])
print(found.digest, sum(int(t.sum()) for t in found.train), len(found.tokenizer.to_json()["tokenizer"]))
"""


def test_processes_that_prepare_at_once(files, tmp_path):
    """All get the same, one does the work, and nothing is left over."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "cache"), *map(str, files)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    found = [process.communicate(timeout=100) for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], found
    assert len({out for out, _ in found}) == 1
    names = sorted(path.name for path in (tmp_path / "cache").rglob("*") if path.is_file())
    assert names == ["tokenizer.json", "tokens.safetensors"]


def test_a_long_one_shows_how_far_it_is(files, monkeypatch, capsys):
    monkeypatch.setattr(prepared, "EVERY", -1.0)
    prepare(files[:1], "byte")
    assert f"tokenising {files[0]}: 100 %\n" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ batches of it


def test_batches_of_mapped_tokens_are_those_in_memory(files, tmp_path):
    found, mapped = prepare(files, "bpe", 300), prepare(files, "bpe", 300, cache=tmp_path / "cache")
    whole = Batches([np.concatenate(found.train)], 9, 4, seed=3)
    one, other = (Batches(some.train, 9, 4, seed=3) for some in (found, mapped))
    assert one.windows == whole.windows - 9 * 2
    for k in (0, 7, 10**9):
        for a, b in zip(one.batch(k), other.batch(k), strict=True):
            assert a.dtype == np.int64
            np.testing.assert_array_equal(a, b)
    for pair in zip(*(validation_windows(some.validation, 9, 4) for some in (found, mapped)), strict=True):
        for a, b in zip(*pair, strict=True):
            np.testing.assert_array_equal(a, b)


def peak_of(path, cache):
    """Peak memory of a process that prepares `path`, in bytes."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(peak, (path, cache))


def peak(path, cache):
    import resource  # not on Windows

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = prepare([path], "byte", cache=cache)
    Batches(found.train, 128, 8, seed=0).batch(0)
    return 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no peak memory from Python")
def test_gigabytes_do_not_need_gigabytes_of_memory(tmp_path):
    with open(tmp_path / "x.txt", "w", encoding="utf-8") as file:
        for i in range(1 << 20):
            file.write(f"{i:20} {i * i:30} some more words to fill it, and … a character of three bytes\n" * 8)
    assert os.path.getsize(tmp_path / "x.txt") > 900_000_000
    assert peak_of(tmp_path / "x.txt", tmp_path / "cache") < 200_000_000
