"""Models of timm, small ones with random weights: the loading code and the hub's cache are real."""

import argparse
import json
import pickle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from fedgram import Grid, load_dataset
from fedgram.cli import main
from fedgram.errors import ConfigError, DataError
from fedgram.features.backbones import find
from fedgram.features.backbones import timm as backbone_of_timm

torch = pytest.importorskip("torch")
try:
    import timm
    import timm.data
except Exception as error:  # a torchvision that does not fit torch fails with more than ImportError
    pytest.skip(f"timm cannot be imported ({error})", allow_module_level=True)
constants = pytest.importorskip("huggingface_hub.constants")
Image = pytest.importorskip("PIL.Image")
save_file = pytest.importorskip("safetensors.torch").save_file

pytestmark = pytest.mark.vision
NETWORKS = ["test_vit", "test_resnet", "test_convnext", "test_efficientnet"]
MAE = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Cut the network and start with an empty cache."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def network(name="test_vit", seed=0, **more):
    torch.manual_seed(seed)
    model = timm.create_model(name, **more)
    for module in model.modules():  # statistics that an untrained network does not have
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.5, 2)
    return model


def cached(cache, model):
    """Lay a model's weights where a download would have put them."""
    repo = cache / f"models--{model.pretrained_cfg['hf_hub_id'].replace('/', '--')}"
    revision = "0" * 40
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(revision)
    (repo / "snapshots" / revision).mkdir(parents=True)
    save_file(model.state_dict(), repo / "snapshots" / revision / "model.safetensors")


def folder(path, model, **config):
    """Save a model as timm does."""
    from timm.models._hub import save_for_hf

    save_for_hf(model, path, model_config=config, safe_serialization="both")
    return path


def images(count=4, seed=0):
    rng = np.random.default_rng(seed)
    shapes = rng.integers(20, 60, (count, 2))
    return [rng.integers(0, 256, (*shape, 3), dtype=np.uint8) for shape in shapes]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_model_by_name_gives_what_timm_itself_gives(cache, name):
    model = network(name)
    cached(cache, model)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    model.reset_classifier(0)
    with torch.inference_mode():
        expected = [model.eval()(transform(Image.fromarray(i))[None])[0] for i in images()]
    tag = model.pretrained_cfg["tag"]
    backbone = find(f"timm:{name}")
    assert backbone.name == f"timm:{name}.{tag}"
    assert backbone.digest == find(f"timm:{name}.{tag}").digest
    assert np.array_equal(backbone(images()), np.stack(expected))


@pytest.mark.parametrize(
    ("name", "arguments"), [("vit_base_patch16_224", MAE), ("test_resnet", {})]
)
def test_features_land_on_the_same_grid_points_in_any_batch(tmp_path, name, arguments):
    model = network(name, num_classes=0, **arguments)
    model.pretrained_cfg["input_size"] = (3, 32, 32)
    saved = folder(tmp_path / "saved", model, model_args=arguments)
    backbone, many = find(f"timm:{saved}"), images(64)
    on_grid = [
        np.concatenate([Grid()(backbone(many[k : k + size])).values for k in range(0, 64, size)])
        for size in (1, 7, 64)
    ]
    assert np.array_equal(on_grid[0], on_grid[1])
    assert np.array_equal(on_grid[0], on_grid[2])
    assert len(np.unique(on_grid[0], axis=0)) > 32  # random weights tell most images apart


CONFIGS = st.fixed_dictionaries(
    {
        "input_size": st.tuples(st.just(3), st.integers(8, 40), st.integers(8, 40)),
        "crop_pct": st.sampled_from([0.5, 0.875, 0.9, 0.95, 0.965, 1.0, 1.15]),
        "crop_mode": st.sampled_from(["center", "squash", "border"]),
        "interpolation": st.sampled_from(["nearest", "bilinear", "bicubic", "lanczos", "box"]),
        "mean": st.tuples(*[st.sampled_from([0.0, 0.485, 0.5])] * 3),
        "std": st.tuples(*[st.sampled_from([0.225, 0.5, 1.0])] * 3),
    }
)


RESIZE = Image.Image.resize


def in_our_order(image, size, resample):
    return RESIZE(RESIZE(image, (size[0], image.height), resample), size, resample)


@given(CONFIGS, st.booleans(), st.tuples(st.integers(4, 60), st.integers(4, 60)))
def test_preprocessing_is_timms_own_to_the_bit(config, square, shape):
    """With timm's resizing in our order: newer versions of Pillow change the order by the image."""
    if square:
        config["input_size"] = (3, *[config["input_size"][1]] * 2)
    model = SimpleNamespace(pretrained_cfg=config)
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Image.Image, "resize", in_our_order)
        expected = transform(Image.fromarray(image)).numpy()
    ours = backbone_of_timm._picture(timm, model, "timm:any", {})(image)
    assert ours.shape == config["input_size"]
    assert np.array_equal(ours, expected)


def test_every_pretrained_model_asks_for_preprocessing_that_is_known():
    names = timm.list_models(pretrained=True)
    assert len(names) > 1000
    for name in names:
        model = SimpleNamespace(pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
        assert backbone_of_timm._picture(timm, model, name, {}).size


def write(path, state):
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    return path


@pytest.mark.parametrize("name", NETWORKS)
def test_weights_from_a_file_are_those_of_the_cache(cache, tmp_path, name):
    model = network(name)
    cached(cache, model)
    state = model.state_dict()
    wrapped = {"epoch": 3, "args": argparse.Namespace(lr=0.1), "state_dict": state}
    parallel = {"model": {f"module.{key}": value for key, value in state.items()}}
    expected = find(f"timm:{name}")
    for file, content in [
        ("w.safetensors", state),
        ("w.pth", state),
        ("wrapped.pth.tar", wrapped),
        ("parallel.bin", parallel),
    ]:
        backbone = find(f"timm:{name}", write(tmp_path / file, content))
        assert backbone.name == f"timm:{name}"
        assert backbone.digest == expected.digest
        assert np.array_equal(backbone(images(1)), expected(images(1)))


def test_a_masked_autoencoder_with_its_decoder(tmp_path):
    """As the authors' training program writes it, for a model that timm has saved."""
    model = network("vit_base_patch16_224", num_classes=0, **MAE)
    saved = folder(tmp_path / "mae", model, model_args=MAE)
    state = network("vit_base_patch16_224", seed=1, num_classes=0, **MAE).state_dict()
    decoder = {"decoder_blocks.0.norm1.weight": torch.ones(8), "mask_token": torch.zeros(1, 1, 8)}
    weights = write(tmp_path / "checkpoint-799.pth", {"model": {**state, **decoder}, "epoch": 799})
    first, second = find(f"timm:{saved}"), find(f"timm:{saved}", weights)
    assert second.digest != first.digest
    model.load_state_dict(state)
    pixels = torch.from_numpy(second._picture(images(1)[0]))[None]
    with torch.inference_mode():
        assert np.array_equal(second(images(1)), model.eval()(pixels).numpy())


def test_a_saved_folder_has_the_same_name_and_digest_wherever_it_lies(tmp_path):
    model = network("vit_base_patch16_224", num_classes=0, **MAE)
    here = folder(tmp_path / "here", model, model_args=MAE)
    there = folder(tmp_path / "there", model, model_args=MAE)
    (there / "model.safetensors").unlink()  # and by its other file
    one, same, spelled = find(f"timm:{here}"), find(f"timm:{there}"), find(f"timm:local-dir:{here}")
    assert one.name == same.name == spelled.name == "timm:vit_base_patch16_224"
    assert one.digest == same.digest == spelled.digest
    assert np.array_equal(one(images()), same(images()))


def test_weights_arguments_and_preprocessing_are_part_of_the_digest(tmp_path):
    average = {"global_pool": "avg", "fc_norm": False}
    models = [
        network("vit_base_patch16_224", num_classes=0, **MAE),
        network("vit_base_patch16_224", num_classes=0, seed=1, **MAE),
        network("vit_base_patch16_224", num_classes=0, **MAE, **average),
        network("vit_base_patch16_224", num_classes=0, **MAE),
    ]
    models[3].pretrained_cfg["mean"] = (0.4, 0.5, 0.5)
    arguments = [MAE, MAE, {**MAE, **average}, MAE]
    backbones = [
        find(f"timm:{folder(tmp_path / str(k), model, model_args=arguments[k])}")
        for k, model in enumerate(models)
    ]
    assert len({backbone.digest for backbone in backbones}) == 4
    assert len({backbone(images(1)).tobytes() for backbone in backbones}) == 4


def changed(state, case):
    if case == "lacks":
        return {key: value for key, value in state.items() if "blocks.1." not in key}
    if case == "too many":
        return {**state, "blocks.99.norm1.weight": torch.ones(64)}
    return {**state, "norm.weight": torch.ones(7)}


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("lacks", r"w\.pth does not fit timm:test_vit: missing: blocks\.1\.\S+, .* and \d+ more"),
        ("too many", r"unexpected: blocks\.99\.norm1\.weight"),
        ("shape", r"norm\.weight: expected shape \(64,\), got \(7,\)"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_their_keys(tmp_path, case, message):
    weights = write(tmp_path / "w.pth", changed(network().state_dict(), case))
    with pytest.raises(DataError, match=message):
        find("timm:test_vit", weights)


def test_weights_that_timm_cannot_convert_are_refused(tmp_path):
    weights = write(tmp_path / "w.pth", {"pos_embed": torch.ones(3)})
    with pytest.raises(DataError, match=r"w\.pth does not fit timm:test_vit"):
        find("timm:test_vit", weights)


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_files_that_hold_no_weights_are_refused_and_not_run(tmp_path):
    (tmp_path / "bomb.pth").write_bytes(pickle.dumps({"a": Bomb(tmp_path / "mark")}))
    torch.save({"a": Bomb(tmp_path / "mark")}, tmp_path / "zipped.pth")
    (tmp_path / "text.safetensors").write_text("not weights")
    for name in ("bomb.pth", "zipped.pth", "text.safetensors"):
        with pytest.raises(DataError, match=f"{name}: cannot be read as weights .*safetensors"):
            find("timm:test_vit", tmp_path / name)
    assert not (tmp_path / "mark").exists()
    for content in ({"epoch": 3}, [torch.ones(2)]):
        with pytest.raises(DataError, match="no weights"):
            find("timm:test_vit", write(tmp_path / "none.pth", content))
    with pytest.raises(DataError, match="not found"):
        find("timm:test_vit", tmp_path / "nowhere.pth")


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("", "neither a model nor a folder"),
        ("vit_base_patch16_225", "did you mean .*vit_base_patch16_224"),
        ("vit_base_patch16_225.mae", r"did you mean .*vit_base_patch16_224\.mae"),
        ("vit_base_patch16_224.may", r"timm has .*vit_base_patch16_224\.mae"),
        ("vit_base_patch16_224_dino", r"deprecated name; use vit_base_patch16_224\.dino"),
        ("%%%", r"see timm.list_models"),
    ],
)
def test_names_that_timm_does_not_know_are_refused_with_proposals(rest, message):
    with pytest.raises(ConfigError, match=message):
        find(f"timm:{rest}")


@pytest.mark.parametrize("rest", ["test_vit.r160_in1k", "hf-hub:someone/something"])
def test_without_network_the_remedies_are_named(rest):
    with pytest.raises(DataError, match=r"not in the cache .* --weights"):
        find(f"timm:{rest}")


def test_an_architecture_that_has_no_weights_asks_for_them():
    bare = next(name for name in timm.list_models() if not timm.is_model_pretrained(name))
    with pytest.raises(DataError, match="timm has no weights for it; use --weights"):
        find(f"timm:{bare}")


def test_folders_that_are_not_whole_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"not a model saved by timm .*config\.json"):
        find(f"timm:{tmp_path}")
    model = network("test_vit")
    saved = folder(tmp_path / "saved", model)
    for path in saved.glob("*model.*"):
        path.unlink()
    with pytest.raises(DataError, match=r"model\.safetensors is missing; use --weights"):
        find(f"timm:{saved}")
    config = json.loads((saved / "config.json").read_text())
    config["architecture"] = "no_such_net"
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match=r"cannot be loaded .*no_such_net"):
        find(f"timm:{saved}", write(tmp_path / "w.pth", model.state_dict()))


def test_models_without_one_vector_an_image_or_without_colors_are_refused(tmp_path):
    unpooled = {**MAE, "global_pool": ""}
    model = network("vit_base_patch16_224", num_classes=0, **unpooled)
    backbone = find(f"timm:{folder(tmp_path / 'tokens', model, model_args=unpooled)}")
    with pytest.raises(DataError, match="expected one pooled vector"):
        backbone(images(1))
    gray = network("vit_base_patch16_224", num_classes=0, in_chans=1, **MAE)
    gray.pretrained_cfg["input_size"] = (1, 32, 32)
    with pytest.raises(ConfigError, match="expected a model for 3 channels, got 1"):
        find(f"timm:{folder(tmp_path / 'gray', gray, model_args=MAE)}")


def test_from_a_folder_of_images_to_features_by_one_command(tmp_path):
    for k, image in enumerate(images(10)):
        path = tmp_path / "photos" / ("ant" if k % 2 else "bee") / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    weights = write(tmp_path / "w.safetensors", network().state_dict())
    out = tmp_path / "f.npz"
    command = ["features", str(tmp_path / "photos"), "-o", str(out), "--backbone", "timm:test_vit"]
    done = CliRunner().invoke(main, [*command, "--weights", str(weights)])
    assert done.exit_code == 0, done.output
    data, backbone = load_dataset(str(out)), find("timm:test_vit", weights)
    assert data.backbone == f"timm:test_vit {backbone.digest[:16]}"
    first = np.asarray(Image.open(sorted(Path(tmp_path / "photos").rglob("*.png"))[0]))
    assert np.array_equal(data.x[0], Grid()(backbone([first])).values[0, :-1])
