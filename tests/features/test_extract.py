"""Features from items: on the grid, the same however often it was interrupted."""

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec

import numpy as np
import pytest
from click.testing import CliRunner

from fedgram import Grid, load_dataset
from fedgram.cli import main
from fedgram.data.items import read_items
from fedgram.errors import ConfigError, DataError
from fedgram.features import extract
from fedgram.features.backbones import find, registry
from fedgram.features.backbones.preprocessing import rows_first
from fedgram.features.extract import Extraction
from fedgram.federation.federated_dataset import gridded

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(0)
    for label in ("ant", "bee", "cat"):
        for k in range(50):
            side = 8 + k % 5
            path = tmp_path / "photos" / label / f"{k:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(path)
    return tmp_path / "photos"


class Counting:
    """The pixels, counting how many images were asked for."""

    def __init__(self):
        self._pixels, self.seen = find("pixels:4"), 0
        self.name, self.takes, self.digest = "counting", "images", "counting"

    def __call__(self, items):
        self.seen += len(items)
        return self._pixels(items)


def test_what_is_stored_is_what_the_grid_makes_of_the_backbones_vectors(photos, tmp_path):
    items, backbone = read_items(str(photos)), find("pixels:4")
    Extraction(backbone=backbone).run(items, tmp_path / "f.npz")
    data = load_dataset(str(tmp_path / "f.npz"))
    images = [extract.decoded(path) for path in items.entries]
    expected = Grid()(backbone(images), backbone=data.backbone)
    stored = gridded(data, Grid())
    assert np.array_equal(stored.features.values, expected.values)
    assert stored.features.space == expected.space
    assert (data.x.dtype, data.classes) == (np.int8, ("ant", "bee", "cat"))
    assert np.array_equal(data.y, items.y)


def test_other_grids_than_the_stored_one_are_refused(photos, tmp_path):
    Extraction(backbone=find("pixels:4")).run(read_items(str(photos)), tmp_path / "f.npz")
    with pytest.raises(DataError, match=r"stored on a grid of 8 bits, clip 6; set grid.bits=8"):
        gridded(load_dataset(str(tmp_path / "f.npz")), Grid(bits=4))


def test_an_interrupted_extraction_goes_on_and_ends_with_the_same_bytes(photos, tmp_path):
    items = read_items(str(photos))
    whole = Counting()
    Extraction(backbone=whole).run(items, tmp_path / "whole.npz")
    assert whole.seen == len(items)

    def interrupt(done, _):
        if done > 64:
            raise KeyboardInterrupt

    broken = Counting()
    with pytest.raises(KeyboardInterrupt):
        Extraction(backbone=broken).run(items, tmp_path / "f.npz", interrupt)
    assert not (tmp_path / "f.npz").exists()
    Extraction(backbone=broken).run(items, tmp_path / "f.npz")
    assert broken.seen == len(items)  # nothing was made twice
    assert (tmp_path / "f.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()
    assert not list(tmp_path.glob("*.part*"))


def test_a_changed_image_is_made_anew(photos, tmp_path):
    backbone = Counting()

    def interrupt(done, total):
        if done == total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Extraction(backbone=backbone).run(read_items(str(photos)), tmp_path / "f.npz", interrupt)
    Image.new("RGB", (8, 8), (1, 2, 3)).save(photos / "ant" / "00.png")
    backbone.seen = 0
    Extraction(backbone=backbone).run(read_items(str(photos)), tmp_path / "f.npz")
    assert backbone.seen == extract.PART


@pytest.mark.xdist_group("kills")
@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.faults)])
def test_a_killed_process_loses_at_most_a_part(photos, tmp_path, kills):
    script = (
        "import sys, time\n"
        "from fedgram.features import extract\n"
        "from fedgram.cli import main\n"
        "extract.PART = 8\n"
        "main(['features', sys.argv[1], '-o', sys.argv[2], '--backbone', 'pixels:4'])\n"
    )
    out = tmp_path / "killed.npz"
    command = [sys.executable, "-c", script, str(photos), str(out)]
    parts = out.with_name(out.name + ".parts")
    for kill in range(1, kills + 1):
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while child.poll() is None and (
            not parts.is_dir() or len(list(parts.iterdir())) < 4 * kill
        ):
            time.sleep(0.005)
        if child.poll() is None:
            os.kill(child.pid, signal.SIGKILL)
        child.wait()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([*command[:-1], str(tmp_path / "calm.npz")], check=True)
    assert out.read_bytes() == (tmp_path / "calm.npz").read_bytes()


def test_broken_images_are_refused_or_skipped_as_asked(photos, tmp_path):
    (photos / "bee" / "07.png").write_bytes(b"not an image")
    items = read_items(str(photos))
    with pytest.raises(DataError, match=r"07\.png: .* \(unknown format\); .*--skip-broken"):
        Extraction(backbone=find("pixels:4")).run(items, tmp_path / "f.npz")
    extraction = Extraction(backbone=find("pixels:4"), broken="skip")
    done = extraction.run(items, tmp_path / "f.npz")
    assert [path[-10:] for path in done.skipped] == ["bee/07.png"]
    assert len(load_dataset(str(tmp_path / "f.npz"))) == len(items) - 1


def test_a_backbone_for_other_things_is_refused(photos, tmp_path):
    with pytest.raises(ConfigError, match=r"expected vectors, got images"):
        Extraction(backbone=find("identity")).run(read_items(str(photos)), tmp_path / "f.npz")


def test_from_a_folder_to_a_run_by_two_commands(photos, tmp_path):
    out = tmp_path / "f.npz"
    done = CliRunner().invoke(
        main, ["features", str(photos), "-o", str(out), "--backbone", "pixels"]
    )
    assert (done.exit_code, done.exception) == (0, None)
    source = f"data.source={out}"
    run = CliRunner().invoke(
        main, ["run", "-m", "afl", "-s", source, "-s", "data.clients=3", "--json"]
    )
    assert json.loads(run.stdout)["runs"][0]["clients"] == 3


def test_a_second_extraction_says_what_it_took_over(photos, tmp_path):
    command = ["features", str(photos), "-o", str(tmp_path / "f.npz"), "--backbone", "pixels:4"]
    first, second = (CliRunner().invoke(main, command) for _ in range(2))
    assert first.stdout.endswith("f.npz: 150 samples, pixels:4\n")
    assert second.stdout.endswith("f.npz: 150 samples, pixels:4, 150 of them unchanged\n")
    assert first.stderr == second.stderr == ""  # no bar where there is no terminal


def test_on_a_terminal_a_bar_shows_rate_and_time_left(photos, tmp_path):
    pty = pytest.importorskip("pty")  # not on every platform
    ours, theirs = pty.openpty()
    command = ["features", str(photos), "-o", str(tmp_path / "f.npz"), "--backbone", "pixels:4"]
    child = subprocess.Popen(
        [sys.executable, "-m", "fedgram.cli", *command],
        stdin=theirs,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(theirs)
    drawn = b""
    with contextlib.suppress(OSError):  # the child has closed the terminal
        while content := os.read(ours, 2**16):
            drawn += content
    os.close(ours)
    assert child.wait() == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn.decode())
    assert re.search(r"pixels:4 .*150/150 [\d,.]+/s \d+:\d\d:\d\d left", plain)


def test_sites_with_different_backbones_are_refused_by_name(photos, tmp_path):
    contributions = []
    for k, backbone in enumerate(("pixels:4", "pixels:4", "pixels:3")):
        out, part = tmp_path / f"{k}.npz", tmp_path / f"{k}.contribution"
        CliRunner().invoke(main, ["features", str(photos), "-o", str(out), "--backbone", backbone])
        CliRunner().invoke(main, ["contribute", str(out), "--client", f"s{k}", "-o", str(part)])
        contributions.append(str(part))
    ledger = str(tmp_path / "ledger")
    CliRunner().invoke(main, ["ledger", "init", ledger])
    done = CliRunner().invoke(main, ["ledger", "join", ledger, *contributions])
    assert done.exit_code == 4
    assert "client s2" in done.stderr
    assert "pixels:4" in done.stderr
    assert "pixels:3" in done.stderr


# Models


def tiny_model(path, batch="n", side=6, **sidecar):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    kernel = onnx.numpy_helper.from_array(rng.normal(size=(5, 3, 3, 3)).astype(np.float32), "w")
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w"], ["c"]),
        onnx.helper.make_node("Relu", ["c"], ["r"]),
        onnx.helper.make_node("GlobalAveragePool", ["r"], ["f"]),
    ]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "tiny",
        [value("x", onnx.TensorProto.FLOAT, [batch, 3, side, side])],
        [value("f", onnx.TensorProto.FLOAT, [batch, 5, 1, 1])],
        [kernel],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    model.ir_version = 8
    path.write_bytes(model.SerializeToString())
    path.with_name(path.name + ".json").write_text(json.dumps({"size": 6, **sidecar}))
    return find(f"onnx:{path}"), rng


@pytest.mark.parametrize("batch", ["n", 1, 3])
@pytest.mark.parametrize("prepared", [True, False])
def test_features_of_an_onnx_model_do_not_depend_on_the_batch(photos, tmp_path, batch, prepared):
    backbone, _ = tiny_model(tmp_path / "m.onnx", batch=batch)
    images = [extract.decoded(path) for path in read_items(str(photos)).entries[:20]]
    together = backbone(images)
    assert together.shape == (20, 5)
    if prepared:
        images = [backbone.prepare(image) for image in images]
    made = backbone.embed if prepared else backbone
    for size in (1, 7):
        parts = [made(images[k : k + size]) for k in range(0, 20, size)]
        assert np.array_equal(np.concatenate(parts), together)


def test_a_model_that_resizes_by_itself_sees_each_image_in_its_own_size(photos, tmp_path):
    backbone, _ = tiny_model(tmp_path / "m.onnx", side=None, size=0)
    images = [extract.decoded(path) for path in read_items(str(photos)).entries[:20]]
    assert len({image.shape for image in images}) == 5
    alone = [backbone([image])[0] for image in images]
    assert np.array_equal(backbone(images), alone)


def test_a_model_that_takes_something_else_is_refused_in_one_line(photos, tmp_path):
    backbone, _ = tiny_model(tmp_path / "m.onnx", size=5)
    images = [extract.decoded(path) for path in read_items(str(photos)).entries[:3]]
    message = r"'onnx:m.onnx' cannot be run on float32 of shape \(3, 5, 5\) .*next to it$"
    with pytest.raises(DataError, match=message):
        backbone(images)


def test_weights_and_preprocessing_are_part_of_a_models_digest(tmp_path):
    one, _ = tiny_model(tmp_path / "a.onnx")
    same, _ = tiny_model(tmp_path / "b.onnx")
    other, _ = tiny_model(tmp_path / "c.onnx", mean=0.4)
    assert one.digest == same.digest != other.digest
    assert other.digest == tiny_model(tmp_path / "d.onnx", mean=[0.4, 0.4, 0.4])[0].digest


def test_the_digest_of_a_model_with_one_mean_is_the_one_it_always_had(tmp_path):
    one, _ = tiny_model(tmp_path / "a.onnx")
    weights = hashlib.sha256((tmp_path / "a.onnx").read_bytes()).hexdigest()
    recipe = '{"layout": "NCHW", "mean": 0.5, "raw": false, "size": 6, "std": 0.5}'
    assert one.digest == hashlib.sha256(f"{weights} {recipe}".encode()).hexdigest()


def test_every_channel_may_have_its_own_mean_and_std(tmp_path):
    """Channels that are prepared by hand, for a model that takes them as they come."""
    mean, std = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
    images = list(np.random.default_rng(1).integers(0, 256, (3, 6, 6, 3), dtype=np.uint8))
    own, _ = tiny_model(tmp_path / "own.onnx", mean=mean.tolist(), std=std.tolist())
    session = pytest.importorskip("onnxruntime").InferenceSession(str(tmp_path / "own.onnx"))
    pixels = (np.stack(images).astype(np.float32) / np.float32(255) - mean) / std
    expected = session.run(None, {"x": pixels.transpose(0, 3, 1, 2)})[0].reshape(3, 5)
    assert np.allclose(own(images), expected, atol=1e-5)
    plain, _ = tiny_model(tmp_path / "plain.onnx")
    assert not np.allclose(own(images), plain(images), atol=1e-2)


@pytest.mark.parametrize(
    ("sidecar", "message"),
    [
        ({"mean": [0.5, 0.5]}, "expected one number, or three"),
        ({"std": [0.2, 0.0, 0.2]}, "must not be 0"),
        ({"std": 0}, "must not be 0"),
        ({"mean": [0.5, "gray", 0.5]}, r"mean\[1\] = 'gray'"),
        ({"layout": "CHW"}, "expected 'NCHW' or 'NHWC'"),
    ],
)
def test_preprocessing_that_makes_no_sense_is_refused(tmp_path, sidecar, message):
    with pytest.raises(ConfigError, match=message):
        tiny_model(tmp_path / "m.onnx", **sidecar)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("onnx:none.onnx", "file not found"),
        ("onnx", "file not found"),
        ("pixels:0", "pixels:SIDE"),
        ("efficientnet-lite", "did you mean 'efficientnet-lite0'"),
    ],
)
def test_backbones_that_are_not_there_are_refused_with_a_proposal(name, message):
    with pytest.raises(ConfigError, match=message):
        find(name)


@pytest.mark.parametrize("name", ["identity", "pixels:4", "onnx:m.onnx", "efficientnet-lite0"])
def test_weights_for_a_backbone_that_takes_none_are_refused(name, tmp_path):
    (tmp_path / "w.pth").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"takes no weights; .* hf:NAME, timm:NAME"):
        find(name, tmp_path / "w.pth")


@pytest.mark.parametrize("package", ["timm", "torchvision"])
def test_packages_that_timm_needs_are_named(package, tmp_path, monkeypatch):
    if package == "torchvision":
        (tmp_path / "timm.py").write_text("import torchvision")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"needs the package {package}: .*fedgram\[timm\]"):
        find("timm:resnet18")


def test_a_torchvision_that_does_not_fit_torch_is_named(tmp_path, monkeypatch):
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(ConfigError, match=r"cannot be imported .*nms.* matching versions"):
        find("timm:resnet18")


def test_a_file_that_is_no_model_is_refused(tmp_path):
    pytest.importorskip("onnxruntime")
    (tmp_path / "m.onnx").write_bytes(b"nothing")
    with pytest.raises(DataError, match="cannot be read as an ONNX model"):
        find(f"onnx:{tmp_path / 'm.onnx'}")


@pytest.mark.parametrize("shape", [(8, 8), (9, 13), (3, 20), (2, 2)])
def test_pixels_are_the_mean_colors_of_cells(shape):
    image = np.random.default_rng(1).integers(0, 256, (*shape, 3), dtype=np.uint8)
    cells = find("pixels:4")([image])[0].reshape(4, 4, 3)
    for i in range(4):
        for j in range(4):
            top, left = i * shape[0] // 4, j * shape[1] // 4
            bottom, right = (i + 1) * shape[0] // 4, (j + 1) * shape[1] // 4
            if min(shape) < 4:
                bottom, right = top + 1, left + 1
            assert np.allclose(cells[i, j], image[top:bottom, left:right].mean(axis=(0, 1)))


def test_the_module_of_every_backbone_exists():
    for source, module in registry._SOURCES.items():
        assert find_spec(f"fedgram.features.backbones.{module}"), source


@pytest.mark.parametrize(("height", "width"), [(9, 300), (64, 64), (100, 120), (30, 20)])
def test_images_are_resized_as_pillow_does_where_all_its_versions_agree(height, width):
    Image = pytest.importorskip("PIL.Image")
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    for name in ("bicubic", "bilinear", "lanczos", "nearest", "box"):
        kind = Image.Resampling[name.upper()]
        expected = np.asarray(Image.fromarray(image).resize((64, 48), kind))
        found = np.asarray(rows_first(Image.fromarray(image), (64, 48), name))
        np.testing.assert_array_equal(found, expected)
