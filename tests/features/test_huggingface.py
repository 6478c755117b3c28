"""Models of transformers, built small with random weights and saved: the loading code is real."""

import json
import shutil

import numpy as np
import pytest

from fedgram.errors import ConfigError, DataError
from fedgram.features.backbones import find
from fedgram.features.backbones.huggingface import picture

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
    elif kind == "vit":
        model = transformers.ViTForImageClassification(transformers.ViTConfig(**VISION))
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


def test_a_folder_has_the_same_name_and_digest_wherever_it_lies(tmp_path):
    (tmp_path / "here").mkdir()
    one = find(f"hf:{saved(tmp_path / 'here', 'dinov2')}")
    same = find(f"hf:{shutil.move(tmp_path / 'here', tmp_path / 'there')}")
    assert (one.name, one.digest) == (same.name, same.digest) == ("hf:dinov2@cls", one.digest)


def test_a_layer_that_is_drawn_anew_at_every_loading_is_no_part_of_the_digest(tmp_path):
    folder = saved(tmp_path, "vit")  # a classifier, saved without the pooler of the plain model
    one, same = find(f"hf:{folder}"), find(f"hf:{folder}")
    assert one.digest == same.digest
    assert np.array_equal(one(images()), same(images()))


def test_half_precision_weights_are_run_in_single_precision(tmp_path):
    folder = saved(tmp_path, "dinov2")
    model = transformers.AutoModel.from_pretrained(folder).to(torch.bfloat16)
    model.save_pretrained(folder)
    assert find(f"hf:{folder}")(images()).dtype == np.float32


def pretraining(tmp_path, **more):
    """Return a folder with a masked autoencoder, and a file of other weights with a decoder."""
    folder = saved(tmp_path, "mae")
    torch.manual_seed(1)
    decoder = {f"decoder_{k}": v for k, v in SMALL.items()}
    config = transformers.ViTMAEConfig(**{**VISION, **more}, **decoder)
    other = transformers.ViTMAEForPreTraining(config)
    torch.save({"model": other.state_dict(), "epoch": 7}, tmp_path / "w.pth")
    return folder, other


def test_weights_from_a_file_take_the_place_of_the_folders_own(tmp_path):
    folder, other = pretraining(tmp_path)
    backbone = find(f"hf:{folder}", tmp_path / "w.pth")
    assert backbone.digest != find(f"hf:{folder}").digest
    (tmp_path / "other").mkdir()
    other.vit.save_pretrained(tmp_path / "other")
    expected = find(f"hf:{tmp_path / 'other'}")
    assert (backbone.name, backbone.digest) == (expected.name, expected.digest)
    assert np.array_equal(backbone(images()), expected(images()))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"num_hidden_layers": 1}, r"w\.pth does not fit hf:.*: missing: .* and \d+ more"),
        ({"num_hidden_layers": 3}, r"w\.pth does not fit hf:.*: unexpected: .*2.*"),
        ({"intermediate_size": 48}, r"expected shape \(64,\), got \(48,\)"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_their_keys(tmp_path, more, message):
    folder, _ = pretraining(tmp_path, **more)
    with pytest.raises(DataError, match=message):
        find(f"hf:{folder}", tmp_path / "w.pth")


def test_tables_that_older_versions_saved_among_the_weights_are_no_further_layer(tmp_path):
    folder = saved(tmp_path, "bert")
    state = transformers.AutoModel.from_pretrained(folder).state_dict()
    positions = torch.arange(512)[None]
    torch.save({**state, "embeddings.position_ids": positions}, tmp_path / "w.pth")
    assert find(f"hf:{folder}", tmp_path / "w.pth").digest == find(f"hf:{folder}").digest
    headed = {f"bert.{key}": value for key, value in state.items()}
    torch.save({**headed, "bert.embeddings.position_ids": positions}, tmp_path / "w.pth")
    assert find(f"hf:{folder}", tmp_path / "w.pth").digest == find(f"hf:{folder}").digest


SETTINGS = [
    ("ViT", {"size": {"height": 24, "width": 28}}),
    ("ViT", {"size": {"height": 24, "width": 24}, "resample": 1, "image_mean": [0.1, 0.2, 0.3]}),
    ("ViT", {"size": {"height": 24, "width": 24}, "do_normalize": False}),
    ("ViT", {"size": {"height": 24, "width": 24}, "do_rescale": False}),
    ("ViT", {"size": {"height": 24, "width": 24}, "rescale_factor": 1 / 127.5}),
    ("CLIP", {"size": {"shortest_edge": 24}, "crop_size": {"height": 24, "width": 24}}),
    ("CLIP", {"size": {"shortest_edge": 28}, "crop_size": {"height": 23, "width": 21}}),
    ("CLIP", {"size": {"shortest_edge": 20}, "crop_size": {"height": 25, "width": 25}}),
    ("CLIP", {"size": {"shortest_edge": 20}, "do_center_crop": False}),
]


@pytest.mark.parametrize(("kind", "settings"), SETTINGS)
def test_preprocessing_is_that_of_transformers(kind, settings):
    name = f"{kind}ImageProcessor"
    processor = getattr(transformers, f"{name}Pil", None) or getattr(transformers, name)
    processor = processor(**settings)
    ours = picture(json.loads(processor.to_json_string()), 32, "hf:any")
    for image in [*images(), np.zeros((24, 24, 3), np.uint8)]:
        expected = processor(image, return_tensors="np", input_data_format="channels_last")
        expected = expected["pixel_values"][0]
        if not processor.do_center_crop and kind == "CLIP":  # it must become a square here
            short = min(expected.shape[1:])
            top, left = ((side - short) // 2 for side in expected.shape[1:])
            expected = expected[:, top : top + short, left : left + short]
        assert np.allclose(ours(image), expected, atol=1e-5 * max(1, abs(expected).max()))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"size": {"longest_edge": 32}}, "size.longest_edge"),
        ({"size": {"shortest_edge": 32}, "crop_pct": 0.9}, "crop_pct"),
        ({"do_resize": False}, "do_resize=false"),
    ],
)
def test_preprocessing_that_is_not_known_is_refused_by_name(settings, named):
    with pytest.raises(DataError, match=f"with {named} is not supported"):
        picture(settings, 32, "hf:any")


def test_sizes_as_older_versions_wrote_them():
    assert picture({"size": 24}, 32, "hf:any").resize == (24, 24)
    assert picture({"size": 24}, 32, "hf:any").fit == "squash"
    cut = picture({"size": 28, "do_center_crop": True, "crop_size": 24}, 32, "hf:any")
    assert (cut.fit, cut.resize, cut.size) == ("shorter", (28, 28), (24, 24))
    assert picture({}, 32, "hf:any").size == (32, 32)
