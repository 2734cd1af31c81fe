"""`EMA` where the model holds the average rounded: float16 parameters that have no masters."""

import numpy as np
import pytest

from gpulayers.optim import EMA


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_swapping_there_and_back_keeps_every_bit_of_both(dtype, model, gradients):
    model.to(dtype=dtype)
    average = EMA(model, 0.9)
    gradients(model, np.random.default_rng(0))
    for parameter in model.parameters():
        parameter.data += parameter.grad
    average.update()
    before = [value.tobytes() for state in (average.state_dict(), model.state_dict()) for value in state.values()]
    with average.swapped():
        assert np.array_equal(model.weight.data, average._named()["average.weight"].astype(dtype))
    after = [value.tobytes() for state in (average.state_dict(), model.state_dict()) for value in state.values()]
    assert after == before
