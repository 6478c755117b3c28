"""A plugin of pytest: lets timm be imported beside a torchvision without its compiled operators.

timm needs torchvision, which has no build for the CPU in some package indexes. Its Python files
are enough for timm's models and transforms once the operators that they register on import are
declared. This changes the whole process, and transformers would take torchvision for a working
one: so the tests of timm run in a process of their own, with `pytest -p torchvision_ops`.
"""

import warnings

import torch

OPERATORS = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that the operators are not there
    import torchvision  # noqa: F401
