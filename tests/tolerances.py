"""Assertions on the package's table of tolerances, which `gpulayers verify` holds every body to as well."""

from gpulayers.verify.tolerances import RELATIVE, error

__all__ = ["RELATIVE", "assert_close", "error"]


def assert_close(
    actual: object, reference: object, dtype: str = "float32", factor: float = 1.0, scale: float = 0.0
) -> None:
    """factor: for a named reason, such as a sum over many terms; state it where it is used.

    scale: magnitude of the terms, where the result is a difference in which they may cancel.
    """
    found, bound = error(actual, reference, scale), RELATIVE[dtype] * factor
    assert found <= bound, f"error {found:.3e} is above {bound:.3e}"
