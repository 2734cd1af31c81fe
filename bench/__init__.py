"""Measurements: `python -m bench.train`, `python -m bench.ops`, `python -m bench compare OLD NEW`; see README.md."""
