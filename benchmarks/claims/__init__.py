"""The papers' claims beside our measurements: `python -m benchmarks.claims`."""
