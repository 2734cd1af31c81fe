import numpy as np
import pytest
from hypothesis import Phase, settings

# The default run draws the same few examples every time, so that it fails for a change and not by chance. A person
# who looks for more: pytest --hypothesis-profile=thorough -n 0 tests/ops/test_any_op.py
settings.register_profile(
    "default run", deadline=None, derandomize=True, max_examples=4, phases=[Phase.explicit, Phase.generate]
)
settings.register_profile("thorough", deadline=None, max_examples=300, print_blob=True)
settings.load_profile("default run")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
