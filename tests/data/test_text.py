import os

import pytest

from gpulayers.data import DataError, load_corpus


def test_the_default_is_the_python_documentation_whole_and_in_order():
    corpus = load_corpus()
    assert len(corpus.texts) == 1
    assert len(corpus.texts[0]) > 300_000
    assert corpus.texts[0].startswith("assert\n======\n\n")
    assert corpus.texts[0].index("\nwhile\n=====\n") > corpus.texts[0].index("\ntry\n===\n")
    assert load_corpus() == corpus


def test_files_stay_as_they_are(tmp_path):
    content = "\ufeffone\r\ntwo\rthree\n\x00äöü🙂"
    (tmp_path / "a.txt").write_bytes(content.encode())
    (tmp_path / "b.txt").write_bytes(b"b")
    corpus = load_corpus([tmp_path / "a.txt", tmp_path / "b.txt"])
    assert corpus.texts == [content, "b"]
    assert corpus.name == f"{tmp_path / 'a.txt'} and 1 more"
    assert corpus.names == [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]


def test_validation_is_the_last_tenth_of_each_file(tmp_path):
    (tmp_path / "a.txt").write_text("é" * 90 + "x" * 10, encoding="utf-8")
    (tmp_path / "b.txt").write_text("short", encoding="utf-8")
    train, validation = load_corpus([tmp_path / "a.txt", tmp_path / "b.txt"]).split()
    assert train == ["é" * 90, "short"]
    assert validation == ["x" * 10, ""]


def test_the_digest_depends_on_every_byte_the_order_and_the_borders(tmp_path):
    def digest(*texts: str) -> str:
        paths = [tmp_path / f"{i}.txt" for i in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text, encoding="utf-8")
        return load_corpus(paths).digest

    variants = [("ab", "c"), ("a", "bc"), ("c", "ab"), ("ab", "d"), ("abc",)]
    assert len({digest(*texts) for texts in variants}) == len(variants)
    assert digest("ab", "c") == digest("ab", "c")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "data file .*x.txt does not exist"),
        (b"", "data file .*x.txt is empty"),
        (b"good \xff bad", r"data file .*x.txt is not UTF-8 text: byte 0xff at offset 5$"),
        ("text".encode("utf-16"), r"x.txt is not UTF-8 text: byte 0xff at offset 0 \(it looks like UTF-16\)"),
        (b"cut in a character \xf0\x9f\x99", "byte 0xf0 at offset 19"),
    ],
)
def test_bad_files_get_one_sentence(tmp_path, content, sentence):
    path = tmp_path / "x.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        load_corpus([path])


def test_a_folder_or_no_file_at_all(tmp_path):
    with pytest.raises(DataError, match="is a folder"):
        load_corpus([tmp_path])
    with pytest.raises(DataError, match="no data file was given"):
        load_corpus([])


def test_a_name_that_no_file_can_have():
    with pytest.raises(DataError, match="cannot be read: embedded null byte"):
        load_corpus(["a\0b"])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with a name")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="pipe is a pipe or a device: give a file"):
        load_corpus([tmp_path / "pipe"])


@pytest.mark.skipif(os.name == "nt" or not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("secret", encoding="utf-8")
    path.chmod(0)
    with pytest.raises(DataError, match=r"x.txt cannot be read: Permission denied"):
        load_corpus([path])


def test_a_read_error_of_the_disk(tmp_path, monkeypatch):
    path = tmp_path / "x.txt"
    path.write_text("text", encoding="utf-8")
    monkeypatch.setattr(type(path), "open", lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    with pytest.raises(DataError, match=r"x.txt cannot be read: Input/output error"):
        load_corpus([path])
