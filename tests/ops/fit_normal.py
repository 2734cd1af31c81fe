"""Prints the coefficients of `kernels/gates.cuh` and their error: python tests/ops/fit_normal.py

m(a) = Phi(-a) exp(a^2 / 2) as a polynomial in t = 1 / (1 + slope a): weighted least squares for the relative error, the
weights multiplied by the error again and again until its peaks are level (Lawson, 1961).
"""

import math

import numpy as np


def exact(a: np.ndarray) -> np.ndarray:
    erfc = np.array([math.erfc(x) for x in a / math.sqrt(2)])
    return erfc / 2 * np.exp(a * a / 2)


def fit(slope: float, degree: int, rounds: int = 80) -> tuple[float, np.ndarray]:
    """(largest relative error, coefficients with the highest power first) of the best round."""
    a = np.linspace(0, 14, 4001)
    powers = np.vander(1 / (1 + slope * a), degree + 1) / exact(a)[:, None]
    weight, best = np.ones(len(a)), (math.inf, np.zeros(degree + 1))
    for _ in range(rounds):
        root = np.sqrt(weight)
        coefficients = np.linalg.lstsq(powers * root[:, None], root, rcond=None)[0]
        error = np.abs(powers @ coefficients - 1)
        if error.max() < best[0]:
            best = float(error.max()), coefficients
        weight = weight * error / (weight * error).sum()
    return best


if __name__ == "__main__":
    for degree in (6, 7, 8):
        slope, (error, coefficients) = min(
            ((s, fit(s, degree)) for s in np.arange(0.25, 0.4501, 0.01)), key=lambda found: found[1][0]
        )
        print(f"degree {degree}, slope {slope:.2f}, relative error {error:.1e}:", *map(float, coefficients), sep="\n  ")
