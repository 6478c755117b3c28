"""Models for programs without fedgram: ONNX, PyTorch, scikit-learn and plain arrays."""

from fedgram.export.folder import TARGETS, Exported, export_model

__all__ = ["TARGETS", "Exported", "export_model"]
