"""Frozen features: backbones, quantization to integers, random features and residual blocks."""
