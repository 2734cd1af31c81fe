"""Text, tokenizers and batches."""

from gpulayers.data.batches import IGNORE, Batches, encode_split, validation_windows
from gpulayers.data.prepared import Prepared, prepare
from gpulayers.data.subword import SubwordTokenizer, TokenizersMissing
from gpulayers.data.text import Corpus, DataError, load_corpus
from gpulayers.data.tokenizers import (
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    make_tokenizer,
    tokenizer_from_json,
)

__all__ = [
    "IGNORE",
    "Batches",
    "ByteTokenizer",
    "CharTokenizer",
    "Corpus",
    "DataError",
    "Prepared",
    "SubwordTokenizer",
    "Tokenizer",
    "TokenizersMissing",
    "encode_split",
    "load_corpus",
    "make_tokenizer",
    "prepare",
    "tokenizer_from_json",
    "validation_windows",
]
