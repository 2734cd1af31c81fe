import numpy as np
import pytest
from contract import check_layer

from gpulayers.layers.layernorm import LayerNorm


@pytest.mark.parametrize("shape", [(1, 1), (4, 7), (2, 3, 8), (0, 4), (3, 1023)])
@pytest.mark.parametrize("bias", [True, False])
def test_contract(shape, bias, rng):
    check_layer(lambda: LayerNorm(shape[-1], bias=bias), rng.normal(size=shape))


@pytest.mark.parametrize("mean", [4096, 10000, 100000])
def test_a_large_mean_does_not_cancel(mean):
    """burn-rs #5607, pytorch PR #40308: the one-pass variance E[x^2] - E[x]^2 gives 0 or garbage here."""
    x = (mean + np.array([[0, 0.5, 1, 1.5]])).astype(np.float32)
    expected = [[-1.3416193, -0.4472064, 0.4472064, 1.3416193]]
    assert np.allclose(LayerNorm(4)(x), expected, rtol=1e-6)
