"""Models of transformers, built small with random weights and saved: the loading code is real."""

import json

import numpy as np
import pytest

from fedgram.errors import ConfigError, DataError
from fedgram.features.backbones import find

pytestmark = pytest.mark.vision
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
VISION = {**SMALL, "image_size": 32, "patch_size": 8}


def saved(folder, kind):
    torch.manual_seed(0)
    if kind == "mae":
        decoder = {f"decoder_{k}": v for k, v in SMALL.items()}
        model = transformers.ViTMAEModel(transformers.ViTMAEConfig(**VISION, **decoder))
    elif kind == "dinov2":
        model = transformers.Dinov2Model(transformers.Dinov2Config(**VISION))
    else:
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "my", "card", "is", "lost", "late"]
        (folder / "vocab.txt").write_text("\n".join(words))
        transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
        model = transformers.BertModel(transformers.BertConfig(**SMALL, vocab_size=len(words)))
    model.save_pretrained(folder)
    return str(folder)


def images():
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (s, s + 3, 3), dtype=np.uint8) for s in (32, 40, 20, 32)]


@pytest.mark.parametrize("kind", ["mae", "dinov2"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_images_do_not_depend_on_their_neighbours_or_on_chance(tmp_path, kind, pooling):
    name = f"hf:{saved(tmp_path, kind)}@{pooling}"
    backbone = find(name)
    together = backbone(images())
    assert together.shape == (4, 32)
    assert np.isfinite(together).all()
    alone = np.concatenate([find(name)([image]) for image in images()])
    assert np.array_equal(together, alone)
    assert len({row.tobytes() for row in together}) == 4


def test_texts_do_not_depend_on_their_neighbours(tmp_path):
    backbone = find(f"hf:{saved(tmp_path, 'bert')}")
    texts = ["my card is lost", "late", "my card"]
    assert backbone.takes == "texts"
    assert np.array_equal(backbone(texts)[2], backbone(texts[2:])[0])


def test_weights_pooling_and_preprocessing_are_part_of_the_digest(tmp_path):
    folder = saved(tmp_path, "dinov2")
    digests = {find(f"hf:{folder}@cls").digest, find(f"hf:{folder}@mean").digest}
    assert find(f"hf:{folder}").digest in digests
    settings = {"image_mean": [0.4] * 3, "size": {"height": 32, "width": 32}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    digests.add(find(f"hf:{folder}").digest)
    assert len(digests) == 3


def test_what_cannot_be_loaded_is_refused_by_name(tmp_path):
    for rest in ("", "@cls", "some@max"):
        with pytest.raises(ConfigError, match="write hf:NAME"):
            find(f"hf:{rest}")
    with pytest.raises(DataError, match="cannot be loaded"):
        find(f"hf:{tmp_path / 'nothing'}")
