"""Models that predict: linear heads, adjusted heads, perceptrons and deep networks."""
