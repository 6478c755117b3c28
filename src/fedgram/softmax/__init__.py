"""Softmax (multinomial logistic) regression by exact sums of residuals."""
