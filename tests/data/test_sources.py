import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayers.data import DataError, load_corpus, sources
from gpulayers.data.sources import chunks, digest_of, find_sources, part, pieces


def text_of(*paths, field="text", separator="|"):
    return ["".join(chunks(source, separator)) for source in find_sources(paths or None, field)]


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_files_are_as_load_corpus_reads_them(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "CHUNK", 3)  # characters are cut in two
    a, b = write(tmp_path / "a.txt", "\ufeffone\r\ntwo\rthree\n\x00äöü🙂"), write(tmp_path / "b", "b")
    corpus = load_corpus([a, b])
    assert text_of(a, b) == corpus.texts
    assert digest_of(find_sources([a, b])) == corpus.digest
    assert [source.name for source in find_sources([a, b])] == corpus.names


def test_the_default_is_the_python_documentation():
    corpus = load_corpus()
    assert text_of() == corpus.texts
    assert digest_of(find_sources(None)) == corpus.digest


def test_the_documents_of_a_jsonl_file(tmp_path):
    lines = [{"text": "first\nline", "id": 1}, {"id": 2, "text": ""}, {"text": "é🙂", "title": "x"}]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, lines)) + "\n\n")
    assert text_of(path) == ["first\nline||é🙂|"]
    write(path, '{"title": "x"}')
    assert text_of(path, field="title") == ["x|"]


def test_the_files_of_a_folder_in_order(tmp_path):
    write(tmp_path / "b.txt", "B")
    write(tmp_path / "a" / "z.md", "Z")
    write(tmp_path / "a" / "y.jsonl", '{"text": "Y"}\n{"text": "X"}\n')
    for name in (".hidden", ".git/config", "empty.txt"):
        write(tmp_path / name, b"" if name == "empty.txt" else b"\xff")
    assert text_of(tmp_path) == ["B|Y|X|Z|"]
    assert find_sources([tmp_path])[0].name == str(tmp_path)


def test_the_digest_depends_on_files_fields_and_borders(tmp_path):
    def digest(*paths, field="text"):
        return digest_of(find_sources(paths, field))

    a, b = write(tmp_path / "x" / "a", "1"), write(tmp_path / "x" / "b", "2")
    lines = write(tmp_path / "c.jsonl", '{"text": "1", "title": "2"}')
    same = write(tmp_path / "c.txt", '{"text": "1", "title": "2"}')
    variants = [digest(a, b), digest(b, a), digest(tmp_path / "x"), digest(lines), digest(lines, field="title")]
    variants += [digest(same), digest(a)]
    assert len(set(variants)) == len(variants)
    assert digest(a, b) == digest(a, b)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("x.txt", None, "data file .*x.txt does not exist"),
        ("x.txt", b"", "data file .*x.txt is empty"),
        ("x.txt", b"good \xff bad", r"data file .*x.txt is not UTF-8 text: byte 0xff at offset 5$"),
        ("x.txt", "text".encode("utf-16"), r"byte 0xff at offset 0 \(it looks like UTF-16\)"),
        ("x.txt", b"cut in a character \xf0\x9f\x99", "byte 0xf0 at offset 19"),
        ("x.txt", b"12\xc3\x28", "byte 0xc3 at offset 2"),
        ("x.jsonl", b'{"text": "a"}\n{', r"line 2 of data file .*x.jsonl is not JSON: "),
        ("x.jsonl", b'{"a": 1, "b": 2}', r"line 1 of data file .*x.jsonl has no text under 'text'; it has 'a', 'b'"),
        ("x.jsonl", b'{"text": 1}', r"has no text under 'text'; it has 1 there"),
        ("x.jsonl", b"[1]", r"has no text under 'text'; it has no object but '\[1\]'"),
        ("x.jsonl", b"{}", r"has no text under 'text'; it has nothing"),
        ("x.jsonl", b"[" * 100_000, r"line 1 of data file .*x.jsonl is not JSON: "),
        ("x.jsonl", b'{"text": "\\ud800"}', r"line 1 of data file .*x.jsonl holds '\\ud800', which is not a character"),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1 << 20])
def test_bad_files_get_one_sentence(tmp_path, monkeypatch, name, content, sentence, size):
    monkeypatch.setattr(sources, "CHUNK", size)
    if content is not None:
        write(tmp_path / name, content)
    with pytest.raises(DataError, match=sentence) as caught:
        text_of(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_folders_without_text_and_names_that_no_file_can_have(tmp_path):
    with pytest.raises(DataError, match=r"data folder .* holds no file that is not empty"):
        find_sources([tmp_path])
    with pytest.raises(DataError, match="no data file was given"):
        find_sources([])
    with pytest.raises(DataError, match="cannot be read: embedded null byte"):
        find_sources(["a\0b"])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with a name")
def test_a_pipe_in_a_folder_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(DataError, match="pipe is a pipe or a device: give a file"):
            find_sources([path])


texts = st.lists(st.text(alphabet="ab \n.é", max_size=40), max_size=6)


@settings(deadline=None, max_examples=100)
@given(texts=texts, size=st.integers(1, 12))
def test_pieces_are_the_text_however_it_comes(texts, size):
    found = list(pieces(texts, size))
    assert "".join(found) == "".join(texts)
    assert all(1 <= len(piece) <= size for piece in found)
    assert list(pieces(["".join(texts)], size)) == found


@settings(deadline=None, max_examples=100)
@given(texts=texts, start=st.integers(0, 60), length=st.integers(0, 60))
def test_a_part_is_a_slice(texts, start, length):
    assert "".join(part(iter(texts), start, start + length)) == "".join(texts)[start : start + length]


def test_pieces_are_cut_in_front_of_a_line_break():
    assert list(pieces(["one two\nthree\n\nfour five"], 12)) == ["one two", "\nthree", "\n\nfour five"]
    assert list(pieces(["one two three"], 9)) == ["one two", " three"]
    assert list(pieces(["x" * 25], 10)) == ["x" * 10, "x" * 10, "x" * 5]
