import shlex
import tomllib
from pathlib import Path

import pytest

from gpulayers.remedies import INSTALL

EXTRAS = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]


@pytest.mark.parametrize("extra", list(INSTALL))
def test_installs_what_the_extra_installs(extra):
    words = shlex.split(INSTALL[extra])
    assert words[:2] == ["pip", "install"]
    assert words[2:] == [requirement.partition(";")[0].strip() for requirement in EXTRAS[extra]]
