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

GRADIENT = 1e-6  # backward in float64 against finite differences
LAYER = 5  # times RELATIVE for a layer: it is several ops, each with its own rounding


def error(actual: object, reference: object, scale: float = 0.0) -> float:
    """Largest difference, relative to the largest magnitude of the reference, or to `scale` if that is larger.

    Equal infinities and two NaN are no difference. NaN if one side alone is NaN. Raises ValueError for other shapes.
    """
    actual, reference = np.asarray(actual, np.float64), np.asarray(reference, np.float64)
    if actual.shape != reference.shape:
        raise ValueError(f"shape {actual.shape}, expected {reference.shape}")
    if actual.size == 0:
        return 0.0
    same = (actual == reference) | (np.isnan(actual) & np.isnan(reference))
    difference = np.where(same, 0.0, np.abs(np.where(same, 0.0, actual) - np.where(same, 0.0, reference)))
    finite = np.abs(reference[np.isfinite(reference)])
    return float(difference.max() / max(finite.max(initial=0.0), scale, 1e-30))
