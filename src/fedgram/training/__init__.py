"""The shared part of gradient methods: training loop, local SGD and learning-rate search."""
