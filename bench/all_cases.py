"""All cases of `bench.ops`."""

from bench import activation_cases, cases, recurrent_cases, target_cases
from bench.cases import Case

CASES: dict[str, Case] = {**cases.CASES, **activation_cases.CASES, **recurrent_cases.CASES, **target_cases.CASES}
