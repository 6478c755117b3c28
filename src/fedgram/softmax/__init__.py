"""Softmax regression, solved by exact sums of residuals."""
