"""Models and choices from sums alone."""
