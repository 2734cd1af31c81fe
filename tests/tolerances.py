"""One table of tolerances: how far a body may be from the float64 reference, by the dtype it computes in.

Errors are relative to the largest magnitude of the reference array (so that a value that cancels to nearly nothing is
held to the scale of its neighbours), plus a few units of the last place.
"""

import numpy as np

RELATIVE = {
    "float64": 1e-12,
    "float32": 2e-6,
    "float16": 2e-3,
    "bfloat16": 1.6e-2,
}


def error(actual: object, reference: object, scale: float = 0.0) -> float:
    """Largest difference, relative to the largest magnitude of the reference, or to `scale` if that is larger."""
    actual, reference = np.asarray(actual, np.float64), np.asarray(reference, np.float64)
    assert actual.shape == reference.shape, f"shape {actual.shape}, expected {reference.shape}"
    if actual.size == 0:
        return 0.0
    same = (actual == reference) | (np.isnan(actual) & np.isnan(reference))  # equal infinities too
    difference = np.where(same, 0.0, np.abs(np.where(same, 0.0, actual) - np.where(same, 0.0, reference)))
    finite = np.abs(reference[np.isfinite(reference)])
    return float(difference.max() / max(finite.max(initial=0.0), scale, 1e-30))


def assert_close(
    actual: object, reference: object, dtype: str = "float32", factor: float = 1.0, scale: float = 0.0
) -> None:
    """factor: for a named reason, such as a sum over many terms; state it where it is used.

    scale: magnitude of the terms, where the result is a difference in which they may cancel.
    """
    found, bound = error(actual, reference, scale), RELATIVE[dtype] * factor
    assert found <= bound, f"error {found:.3e} is above {bound:.3e}"
