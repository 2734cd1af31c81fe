import gc
import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from devices import on_devices
from hypothesis import given, settings
from hypothesis import strategies as st

import gpulayers as gl
from gpulayers.data import ByteTokenizer, CharTokenizer, SubwordTokenizer
from gpulayers.layers.layer import Layer
from gpulayers.models.gpt import GPT, GPTConfig
from gpulayers.parameter import Parameter
from gpulayers.sampling import Sampling
from gpulayers.training.generate import generate, generate_batch, pieces, stream, stream_batch, until, write
from gpulayers.training.windows import window_start


class Counter(Layer):
    """Says that the token after n is n + 1, and remembers what it was shown."""

    def __init__(self, vocab=50) -> None:
        self.config = GPTConfig(vocab, context=4)
        self.weight = Parameter(np.zeros(1, np.float32))
        self.seen = []

    def __call__(self, ids):
        self.seen.append(ids.tolist())
        logits = np.zeros((*ids.shape, self.config.vocab), np.float32)
        np.put_along_axis(logits, (ids + 1)[..., None], 30.0, axis=-1)
        return logits


@pytest.fixture(scope="module")
def model():
    return GPT(GPTConfig(vocab=11, context=8, layers=1, heads=2, dim=16), seed=0)


def test_a_long_text_slides():
    model = Counter()
    assert generate(model, [3, 4], 5).tolist() == [5, 6, 7, 8, 9]
    assert model.seen == [[[3, 4]], [[3, 4, 5]], [[3, 4, 5, 6]], [[4, 5, 6, 7]], [[5, 6, 7, 8]]]


def test_prompt_longer_than_the_context():
    model = Counter()
    assert generate(model, np.arange(10), 1).tolist() == [10]
    assert model.seen == [[[6, 7, 8, 9]]]


def test_same_seed_same_text(model):
    first = generate(model, [1, 2], 20, seed=3)
    assert first.dtype == np.int64
    assert first.shape == (20,)
    assert np.array_equal(first, generate(model, [1, 2], 20, seed=3))
    assert not np.array_equal(first, generate(model, [1, 2], 20, seed=4))
    assert np.array_equal(first[:7], generate(model, [1, 2], 7, seed=3))


def test_temperature_0_is_greedy(model):
    ids = [5]
    for token in generate(model, [5], 12, temperature=0):
        start = 0 if len(ids) <= 8 else 4 if len(ids) <= 12 else 8
        assert token == model(np.array([ids[start:]]))[0, -1].argmax()
        ids.append(int(token))
    assert np.array_equal(generate(model, [5], 12, temperature=0), generate(model, [5], 12, top_k=1))
    assert np.array_equal(generate(model, [5], 12, temperature=0), generate(model, [5], 12, temperature=1e-300))


def test_no_tokens(model):
    assert generate(model, [1], 0).shape == (0,)


def test_float64_model():
    model = GPT(GPTConfig(vocab=11, context=8, layers=1, heads=2, dim=16), seed=0, dtype="float64")
    assert generate(model, [1], 5).shape == (5,)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"ids": []}, "the prompt is empty"),
        ({"tokens": -1}, "tokens must be at least 0, got -1"),
        ({"temperature": -0.1}, "temperature must be at least 0, got -0.1"),
        ({"temperature": float("nan")}, "temperature takes a finite number"),
        ({"top_k": 0}, "top_k must be at least 1, got 0"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1, got 0.0"),
        ({"top_p": 1.1}, "top_p must be above 0 and at most 1, got 1.1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be at least 1e-06 and at most 1000000.0, got 0.0"),
        ({"ids": np.zeros(0, np.int64)}, "the prompt is empty; give at least one token"),
        ({"ids": [1, 11]}, r"the prompt's id 11 at position 1 is outside 0..10"),
        ({"ids": [-1]}, r"the prompt's id -1 at position 0 is outside 0..10"),
        ({"ids": [0.5]}, r"takes a prompt of integer ids, 1-D, got float64 of shape \(1,\)"),
        ({"ids": [[1, 2]]}, r"takes a prompt of integer ids, 1-D, got int64 of shape \(1, 2\)"),
        ({"ids": [1] * 9}, "the prompt has 9 tokens and the model sees 8: shorten it, or read its end alone"),
        ({"end": 11}, r"end must be in 0..10, got 11"),
        ({"slide": 0}, r"slide must be in 1..8, got 0"),
        ({"slide": 9}, r"slide must be in 1..8, got 9"),
    ],
)
def test_options_out_of_range(model, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        generate(model, **{"ids": [1], "tokens": 3, **options})


# ------------------------------------------------------------------------------------------- cache and window


VARIANTS = {"learned": {}, "rotary": {"rotary": True, "kv_heads": 2}}
variants = pytest.mark.parametrize("changes", VARIANTS.values(), ids=list(VARIANTS))


def exact(**changes):
    return GPT(GPTConfig(vocab=11, context=8, layers=2, heads=4, dim=16, **changes), seed=1, dtype="float64")


@variants
@pytest.mark.parametrize("slide", [None, 1, 3, 8])
def test_the_cache_changes_nothing(changes, slide):
    """Well beyond the context, where the window moves on."""
    model = exact(**changes)
    every: list[dict[str, Any]] = [{}, {"top_p": 0.8}, {"temperature": 0.5, "repetition_penalty": 1.3}]
    for options in every:
        cached, whole = (generate(model, [1, 2, 3], 20, seed=5, slide=slide, cache=c, **options) for c in (True, False))
        assert np.array_equal(cached, whole)


def test_the_window_is_a_function_of_the_length():
    starts = [window_start(n, 8, 4) for n in range(1, 18)]
    assert starts == [0] * 8 + [4] * 4 + [8] * 4 + [12]
    assert [window_start(n, 8, 1) for n in range(1, 12)] == [0] * 8 + [1, 2, 3]
    model = exact()
    text = generate(model, [1, 2, 3], 30, temperature=0)
    for cut in (4, 9, 17):  # goes on as it would have
        rest = generate(model, [1, 2, 3, *text[:cut]], 30 - cut, temperature=0, cut_prompt=True)
        assert np.array_equal(rest, text[cut:])


def test_what_the_cache_saves():
    """Ids that the model reads for 100 tokens, context 8: 3 in front, one each, half a window each time it moves."""
    model, read = exact(), []
    step = model.step
    model.step = lambda ids, *a, **k: (read.append(ids.shape[-1] if ids.ndim > 1 else 1), step(ids, *a, **k))[1]
    generate(model, [1, 2, 3], 100)
    assert sum(read) == 3 + 5 + 23 * (5 + 3) + 5 + 1  # the first window; then each: 5 ids at once, and 3 more
    assert len(read) == 100


# ------------------------------------------------------------------------------------------- several at a time


@variants
def test_each_text_is_what_it_is_alone(changes):
    """Unequal prompts, some of which reach the end of the context sooner than others."""
    model, prompts = exact(**changes), [[1, 2, 3, 4, 5, 6, 7], [8], [9, 10, 0]]
    every: list[dict[str, Any]] = [{}, {"slide": 1, "end": 4}]
    for options in every:
        texts = generate_batch(model, prompts, 12, seed=2, **options)
        for row, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
            steps = stream_batch(model, [[0]] * row + [prompt], 12, Sampling(seed=2), **options)
            alone = [token for step in steps for r, token in step if r == row]
            assert text.tolist() == alone
        assert np.array_equal(texts[0], generate(model, prompts[0], 12, seed=2, **options))
        if options.get("end"):
            assert len({len(text) for text in texts}) > 1  # they ended at different times


def test_an_end_is_not_handed_out():
    model = Counter()
    assert generate(model, [3], 40, end=9).tolist() == [4, 5, 6, 7, 8]
    assert [t.tolist() for t in generate_batch(model, [[3], [6]], 4, end=9)] == [[4, 5, 6, 7], [7, 8]]
    assert len(model.seen) == 6 + 7  # who has ended is not read any more
    assert generate_batch(model, [], 4) == []


# ------------------------------------------------------------------------------------------- devices


def on_both(device, context):
    config = GPTConfig(vocab=29, context=context, layers=1, heads=2, dim=8, rotary=True)
    return (GPT(config, seed=2).to(where) for where in ("numpy", device))


DRAWING: dict[str, Any] = {"seed": 11, "temperature": 0.9, "top_p": 0.95, "repetition_penalty": 1.2}


@on_devices
def test_the_same_tokens_on_both_devices(device):
    """200 by the same random numbers, in 40 texts, of which some go on beyond the context; none of these draws lies
    within rounding of a boundary. The slow test below writes 200 of one text."""
    here, there = on_both(device, context=8)
    prompts = [list(range(1, n % 8 + 2)) for n in range(40)]
    found = generate_batch(there, prompts, 5, **DRAWING)
    assert np.array_equal(found, generate_batch(here, prompts, 5, **DRAWING))
    assert len(np.unique(found)) == 29


@pytest.mark.slow
@on_devices
def test_the_same_text_on_both_devices(device):
    here, there = on_both(device, context=128)
    found = list(stream(there, gl.to_device(np.array([1, 2, 3]), device), 200, Sampling(**DRAWING)))
    assert found == generate(here, [1, 2, 3], 200, **DRAWING).tolist()
    assert len(set(found)) > 20


# ------------------------------------------------------------------------------------------- text


def test_pieces_wait_for_whole_characters():
    tokenizer = ByteTokenizer()
    text = "aé€😀b"
    assert list(pieces(tokenizer, tokenizer.encode(text).tolist())) == list(text)
    broken = list(b"a\xe2\x82") + list(b"z\xff")
    assert "".join(pieces(tokenizer, broken)) == bytes(broken).decode(errors="replace")
    assert "".join(pieces(tokenizer, [0xFF] * 40)) == "\ufffd" * 40


def test_pieces_of_characters():
    tokenizer = CharTokenizer("ab€")
    assert list(pieces(tokenizer, tokenizer.encode("b€a").tolist())) == ["b", "€", "a"]


@pytest.mark.parametrize("kind", ["Metaspace", "WordPiece"])
def test_blanks_that_only_the_words_before_them_give(kind):
    """One token at a time, "the cat sat" came out as "thecatsat"."""
    t = pytest.importorskip("tokenizers")
    words = ["the", "cat", "s", "at"]
    if kind == "Metaspace":
        vocab = {token: i for i, token in enumerate(["<unk>", "▁the", "▁cat", "▁s", "at", "s"])}
        inner = t.Tokenizer(t.models.WordLevel(vocab, "<unk>"))
        inner.decoder, ids = t.decoders.Metaspace(), [1, 2, 3, 4]
    else:
        vocab = {token: i for i, token in enumerate(["[UNK]", "the", "cat", "s", "##at"])}
        inner = t.Tokenizer(t.models.WordPiece(vocab, unk_token="[UNK]"))
        inner.decoder, ids = t.decoders.WordPiece(), [1, 2, 3, 4]
    tokenizer = SubwordTokenizer(inner.to_str())
    assert list(pieces(tokenizer, ids)) == [words[0], " cat", " s", "at"]
    assert list(pieces(tokenizer, ids[1:], ids[:1])) == [" cat", " s", "at"]
    assert list(pieces(tokenizer, ids[1:], np.array(ids[:1]))) == [" cat", " s", "at"]


def cut(text, stops):
    """What is written before the stop that is complete first."""
    for n in range(len(text) + 1):
        ended = [n - len(stop) for stop in stops if text[:n].endswith(stop)]
        if ended:
            return text[: min(ended)]
    return text


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.text("abc", max_size=4), max_size=8),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
)
def test_until_whatever_the_pieces(texts, stops):
    found = list(until(iter(texts), stops))
    assert "".join(found) == cut("".join(texts), stops)
    assert all(found)


def test_nothing_is_drawn_after_a_stop():
    """Across the borders of tokens, here of single bytes of characters; what may begin a stop waits."""
    tokenizer, taken = ByteTokenizer(), []
    ids = (taken.append(i) or i for i in tokenizer.encode("aé€bé€c").tolist())
    assert list(until(pieces(tokenizer, ids), ["€c", "€d"])) == ["a", "é", "€b", "é"]
    assert len(taken) == len("aé€bé€c".encode())
    ids = iter(tokenizer.encode("aé€bé€c").tolist())
    assert "".join(until(pieces(tokenizer, ids), ["€b"])) == "aé"
    assert bytes(ids) == "é€c".encode()


def test_write():
    model, tokenizer = Counter(vocab=256), ByteTokenizer()
    assert "".join(write(model, tokenizer, "ab", 10)) == "cdefghijkl"
    assert "".join(write(model, tokenizer, "ab", 10, stop=["hi", "fz"])) == "cdefg"
    assert "".join(write(model, tokenizer, "ab", 10, stop="c")) == ""
    for bad in ("", ["a", ""]):  # one sentence
        with pytest.raises(ValueError, match="stop takes texts of at least one character"):
            write(model, tokenizer, "ab", 10, stop=bad)


def test_write_ends_where_the_tokenizer_ends_a_text():
    class Ending(ByteTokenizer):
        end = ord("f")

    assert "".join(write(Counter(vocab=256), Ending(), "ab", 10)) == "cde"
    assert "".join(write(Counter(vocab=256), Ending(), "ab", 10, end=None)) == "cdefghijkl"
    assert "".join(write(Counter(vocab=256), Ending(), "ab", 2)) == "cd"


def test_a_search_ends_there_too(monkeypatch):
    """The likeliest text of a GPT whose only likely way is a, b, end."""
    from gpulayers.training.tasks import gpt
    from gpulayers.training.tasks.task import Writing

    class Ending(ByteTokenizer):
        end = 3

    model = GPT(GPTConfig(vocab=256, context=8, layers=1, heads=2, dim=8), seed=0)
    way = {ord("x"): ord("a"), ord("a"): ord("b"), ord("b"): 3, 3: ord("z")}

    def step(ids, state=None, **options):
        logits, state = GPT.step(model, ids, state, **options)
        logits = np.zeros_like(logits)
        last = ids if ids.ndim == 1 else ids[:, -1]
        logits[np.arange(len(last)), [way.get(int(i), 5) for i in last]] = 9
        return logits, state

    monkeypatch.setattr(model, "step", step)
    saved: Any = SimpleNamespace(model=model)
    for tokenizer, text in ((Ending(), "ab"), (ByteTokenizer(), "ab\x03z")):
        found = gpt.searched(saved, tokenizer, "x", 4, Writing(beam=3), Sampling())
        assert "".join(found) == text
    for beam, words in ((2, "the prompt has 9 tokens and the model sees 8"), (3, "at most 1 by --tokens")):
        with pytest.raises(ValueError, match=words):
            gpt.searched(saved, ByteTokenizer(), "x" * (11 - beam), 4, Writing(tokens=4, beam=beam), Sampling())


def test_decoding_keeps_nothing_but_keys_and_values():
    """Memory that 64 tokens take: at most twice the rows of keys and values, and little else."""
    model = GPT(GPTConfig(vocab=300, context=256, layers=2, heads=2, dim=64), seed=0)
    _, state = model.step(np.zeros((1, 128), np.int64), last=True)
    _, state = model.step(np.zeros(1, np.int64), state)  # the first step copies the prompt's rows
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(64):
        _, state = model.step(np.zeros(1, np.int64), state)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 20_000  # bytes; the buffers had room
    assert state.length == 193
