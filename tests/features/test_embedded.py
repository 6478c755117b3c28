"""The backbones that packages carry: they work without any download."""

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedgram import load_dataset
from fedgram.features.backbones import find
from fedgram.features.extract import decoded

TEXTS = ["my card has not arrived", "why was I charged twice?", "top up by bank transfer", "hi"]


def test_texts_do_not_depend_on_their_neighbours():
    pytest.importorskip("wordllama")
    backbone = find("wordllama")
    together = backbone(TEXTS)
    assert together.shape == (4, 256)
    assert np.array_equal(together[2], backbone([TEXTS[2]])[0])
    assert find("wordllama").digest == backbone.digest


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    pytest.importorskip("torch")
    pytest.importorskip("efficientnet_lite_pytorch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDGRAM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield find("efficientnet-lite0")


@pytest.mark.vision
def test_images_do_not_depend_on_the_batch(network):
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (s, s, 3), dtype=np.uint8) for s in (32, 32, 40, 32, 40, 33, 32)]
    together = network(images)
    assert together.shape == (7, 1280)
    for size in (1, 3):
        parts = [network(images[k : k + size]) for k in range(0, 7, size)]
        assert np.array_equal(np.concatenate(parts), together)


@pytest.mark.vision
@pytest.mark.data
def test_images_reproduce_stored_features_up_to_their_rounding(network, tmp_path):
    folder = Path(os.environ.get("FEDGRAM_DATA", tmp_path))
    archive, source = folder / "cifar100_png_5000.zip", "cifar100_efficientnet_lite0.npz"
    if not archive.is_file() or not (folder / source).is_file():
        pytest.skip("FEDGRAM_DATA does not hold the CIFAR-100 files")
    with zipfile.ZipFile(archive) as files:
        names = [name for name in files.namelist() if name.endswith(".png")]
        classes = sorted({name.split("/")[1] for name in names})
        chosen = {}
        for c in (0, 7, 99):
            mine = sorted(n for n in names if n.startswith(f"train/{classes[c]}/"))
            chosen.update({500 * c + j: files.extract(mine[j], tmp_path) for j in (0, 1, 39)})
    data = load_dataset(str(folder / source))
    made = network([decoded(Path(path)) for path in chosen.values()])
    stored = data.x[list(chosen)] * data.scale + data.offset
    step = np.broadcast_to(data.scale, made.shape[1:])
    low, high = data.offset, data.offset + 255 * data.scale  # what the stored code can hold
    # Half a step is the rounding of the stored code; the rest is that of another runtime.
    assert np.all(np.abs(np.clip(made, low, high) - stored) <= 0.6 * step)
