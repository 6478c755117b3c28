"""The recipe for ImageNet-R and ViT-MAE, from images in its layout to the papers' table.

The weights are random and the network is small, so accuracies mean nothing; the commands, the
layout and the loading code are those of the recipe in docs/imagenet-r.md.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from fedgram.cli import main

pytestmark = [pytest.mark.vision, pytest.mark.wide]
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")

PAGE = Path(__file__).parents[2] / "docs" / "imagenet-r.md"
RENDITIONS = ("art", "cartoon", "sketch")
CLASSES = ("n01443537", "n01484850", "n01494475", "n01498041")


def renditions(folder):
    """Write images as ImageNet-R has them: a folder per class, files named by their rendition."""
    rng = np.random.default_rng(0)
    for shade, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for number in range(75):
            size = (rng.integers(30, 60), rng.integers(30, 60), 3)
            pixels = rng.integers(50 * shade, 50 * shade + 60, size).astype(np.uint8)
            image = Image.fromarray(pixels)
            image.save(folder / name / f"{RENDITIONS[number % 3]}_{number}.jpg")


def weights(folder):
    torch.manual_seed(0)
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    decoder = {f"decoder_{key}": value for key, value in small.items()}
    model = transformers.ViTMAEModel(
        transformers.ViTMAEConfig(
            **small, **decoder, intermediate_size=64, image_size=32, patch_size=8
        )
    )
    model.save_pretrained(folder)


def test_the_recipe_leads_from_images_to_the_papers_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    renditions(tmp_path / "imagenet-r")
    weights(tmp_path / "vit-mae")
    page = PAGE.read_text(encoding="utf-8")
    extract, study = re.findall(r"^fedgram (.+)$", page, re.MULTILINE)[:2]
    assert "facebook/vit-mae-base" in extract
    extract = extract.replace("facebook/vit-mae-base", "./vit-mae")
    cli = CliRunner()
    done = cli.invoke(main, extract.split(), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    small = ["table.seeds=1", "table.clients=4", "every.rounds=1", "every.rate=0.1"]
    small += ["method.apfl.primary={width=32}", "method.apfl.refinement={width=32}"]
    words = [*study.split(), *(text for change in small for text in ("-s", change)), "-j", "2"]
    done = cli.invoke(main, [*words, "-o", "table"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    table = json.loads(Path("table/table.json").read_text(encoding="utf-8"))
    assert table["complete"]
    assert {number["dataset"] for number in table["numbers"]} == {"ImageNet-R"}
