"""Experiment trackers: the rounds of a run in trackio, W&B, MLflow or TensorBoard."""

from fedgram.tracking.trackers import TRACKERS, track

__all__ = ["TRACKERS", "track"]
