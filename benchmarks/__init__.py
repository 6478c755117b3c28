"""Ratios against the machine's own BLAS and against the papers' algorithms, in one run."""
