"""All cases of `bench.ops`."""

from bench import cases, recurrent_cases, target_cases
from bench.cases import Case

CASES: dict[str, Case] = {**cases.CASES, **recurrent_cases.CASES, **target_cases.CASES}
