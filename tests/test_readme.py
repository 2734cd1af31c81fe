"""The programs in the README and on the pages of docs run as they are printed, for two steps."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[1]
PROGRAMS = {
    "a step by hand": ("README.md", "model.backward", r"^0 5\.\d+"),
    "a kernel of your own": ("README.md", "RawKernel", r"^\[1\. 3\. 5\.\]"),
    "a layer of your own": ("docs/contract.md", "class Square", "^$"),
    "four norms": (
        "docs/norms.md",
        "InstanceNorm",
        r"^LayerNorm    \(6, 4, 5\) mean 0\.0, variance 1\.0\n(.*\(6,\).* 1\.0\s){3}$",
    ),
    "a feed-forward network": ("docs/feedforward.md", "FeedForwardNet", "^$"),
    "an encoder-decoder": ("docs/seq2seq.md", "Seq2SeqConfig", r"^\d\.\d+ \[7 6 5\] \[.*\]\n\[\["),
    "a ledger": ("docs/lab.md", "Ledger", r"^\['wte', .*'head'\]\nTrue None$"),
    "decoding with a transformer": ("docs/transformer.md", "beam_search", r"^2 2\n\(2, 4, 3, 4\)$"),
    "a GPT that writes": ("docs/generation.md", "generate_batch", r"20 2 \(1, 5\)$"),
    "weights of GPT-2": ("docs/gpt2.md", "save_pretrained", "^True$"),
    "batches of a text": ("docs/data.md", "prepare", r"^\(8, 64\) True$"),
    "a vision transformer by hand": ("docs/vit.md", "ViTConfig", r"^\d+\.\d+ \d\.\d+\n\[\[\["),
}


@pytest.mark.parametrize(("page", "word", "printed"), PROGRAMS.values(), ids=list(PROGRAMS))
def test_program(page, word, printed):
    blocks = re.findall(r"```python\n(.*?)```", (TOP / page).read_text(encoding="utf-8"), re.DOTALL)
    (program,) = (block for block in blocks if word in block)
    program = re.sub(r"range\(\d+\)", "range(2)", program)
    if page != "README.md":
        program = "import numpy as np\nx = np.ones((2, 3))\n" + program
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    assert re.search(printed, result.stdout), result.stdout
