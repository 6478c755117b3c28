"""Data sets of the Hugging Face hub: saved by its library, and from a cache without a network."""

import io
import json
import shutil
import sys
import tracemalloc

import numpy as np
import pytest
from click.testing import CliRunner

from fedgram import Grid, load_dataset
from fedgram.cli import main
from fedgram.data.dataset import TEST, TRAIN, VALID
from fedgram.data.items import Columns, Encoded, read_items
from fedgram.errors import DataError
from fedgram.features import extract
from fedgram.features.backbones import find
from fedgram.features.extract import Extraction

datasets = pytest.importorskip("datasets")
Image = pytest.importorskip("PIL.Image")

NAMES = ["cat", "ant", "bee"]  # in an order of their own
PHOTOS = datasets.Features(
    {
        "photo": datasets.Image(),
        "label": datasets.ClassLabel(names=NAMES),
        "site": datasets.Value("string"),
        "family": datasets.ClassLabel(names=["mammal", "insect"]),
    }
)
TEXTS = datasets.Features(
    {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])}
)


@pytest.fixture(autouse=True)
def quiet(monkeypatch, tmp_path):
    """Cut the network, start with an empty cache and without progress bars."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()


def pixels(count, side=8, seed=0):
    rng = np.random.default_rng(seed)
    return list(rng.integers(0, 256, (count, side, side + 1, 3), dtype=np.uint8))


def photos(count, seed=0):
    labels = [k % 2 for k in range(count)]  # there is no bee
    columns = {
        "photo": [Image.fromarray(image) for image in pixels(count, seed=seed)],
        "label": labels,
        "site": ["north" if k % 3 else "south" for k in range(count)],
        "family": [int(label > 0) for label in labels],
    }
    return datasets.Dataset.from_dict(columns, features=PHOTOS)


def texts(*rows):
    columns = {"text": [text for text, _ in rows], "label": [label for _, label in rows]}
    return datasets.Dataset.from_dict(columns, features=TEXTS)


def saved(path, data):
    (datasets.DatasetDict(data) if isinstance(data, dict) else data).save_to_disk(path)
    return str(path)


def test_images_with_the_classes_that_are_declared(tmp_path):
    source = saved(tmp_path / "photos", photos(6))
    items = read_items(source, Columns(client="site", domain="family"))
    assert (items.kind, items.classes, list(items.y)) == ("images", tuple(NAMES), [0, 1] * 3)
    assert list(items.client) == ["south", "north", "north"] * 2
    assert list(items.domain) == ["mammal", "insect"] * 3
    assert items.split is None
    for entry, expected in zip(items.entries, pixels(6), strict=True):
        assert np.array_equal(extract.decoded(entry), expected)
    assert str(items.entries[3]) == f"{source}: [3]"
    assert len(items.entries[2:5]) == 3


def test_splits_by_their_names(tmp_path):
    parts = {"train": photos(3), "validation": photos(2, 1), "test": photos(4, 2)}
    source = saved(tmp_path / "photos", parts)
    items = read_items(source)
    assert list(items.split) == [TRAIN] * 3 + [VALID] * 2 + [TEST] * 4
    assert np.array_equal(extract.decoded(items.entries[5]), pixels(4, seed=2)[0])
    assert str(items.entries[8]) == f"{source}: test[3]"
    assert read_items(f"hf:{source}").classes == items.classes


def test_a_single_split_is_left_to_be_split(tmp_path):
    assert read_items(saved(tmp_path / "photos", {"train": photos(3)})).split is None


def test_rows_that_were_chosen_and_shuffled_are_read_as_chosen(tmp_path):
    chosen = photos(9).select([7, 2, 4])
    items = read_items(saved(tmp_path / "photos", chosen))
    assert [
        np.array_equal(extract.decoded(items.entries[k]), pixels(9)[i])
        for k, i in enumerate([7, 2, 4])
    ] == [True] * 3
    assert list(items.y) == [1, 0, 0]


def test_texts(tmp_path):
    parts = {"train": texts(("good", 1), ("bad, very", 0)), "test": texts(("fine", 1))}
    items = read_items(saved(tmp_path / "reviews", parts), Columns(text="text"))
    assert (items.kind, list(items.entries)) == ("texts", ["good", "bad, very", "fine"])
    assert (items.classes, list(items.y)) == (("neg", "pos"), [1, 0, 1])
    assert list(items.split) == [TRAIN, TRAIN, TEST]


def test_numbers_and_vectors_with_labels_and_splits_in_columns(tmp_path):
    data = datasets.Dataset.from_dict(
        {
            "age": [3, 4, 5],
            "label": ["b", "a", "b"],
            "embedding": [[0.5, 1.0], [2.0, 3.0], [4.0, 5.0]],
            "split": ["train", "test", "validation"],
        }
    )
    items = read_items(saved(tmp_path / "numbers", data))
    assert (items.kind, items.classes, list(items.y)) == ("vectors", ("a", "b"), [1, 0, 1])
    assert np.array_equal(items.entries, [[3, 0.5, 1], [4, 2, 3], [5, 4, 5]])
    assert list(items.split) == [TRAIN, TEST, VALID]


def test_images_in_files_of_their_own(tmp_path):
    paths = []
    for k, image in enumerate(pixels(2)):
        paths.append(str(tmp_path / f"{k}.png"))
        Image.fromarray(image).save(paths[-1])
    data = datasets.Dataset.from_dict({"photo": paths, "label": ["a", "b"]})
    data = data.cast_column("photo", datasets.Image())
    data.save_to_disk(tmp_path / "linked")
    items = read_items(str(tmp_path / "linked"))
    assert np.array_equal(extract.decoded(items.entries[1]), pixels(2)[1])


def test_a_data_set_by_name_from_the_cache(tmp_path):
    """Laid where a download would have put it."""
    folder = tmp_path / "reviews"
    folder.mkdir()
    texts(("good", 1), ("bad", 0)).to_parquet(folder / "train.parquet")
    texts(("fine", 1)).to_parquet(folder / "test.parquet")
    assert len(read_items(f"hf:{folder}", Columns(text="text"))) == 3  # files of a folder
    (made,) = (tmp_path / "cache").rglob("dataset_info.json")
    for configuration in ("default", "large"):
        cached = tmp_path / "cache" / "somebody___reviews" / configuration / "0.0.0" / ("f" * 40)
        shutil.copytree(made.parent, cached)
        for path in cached.glob("*.arrow"):
            path.rename(cached / f"reviews-{path.name.rpartition('-')[2]}")
        info = json.loads((cached / "dataset_info.json").read_text())
        info["config_name"] = configuration
        (cached / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(DataError, match=r"multiple .* configurations in the cache"):
        read_items("hf:somebody/reviews", Columns(text="text"))
    for name in ("hf:somebody/reviews@default", "hf:somebody/reviews@large"):
        items = read_items(name, Columns(text="text"))
        assert sorted(zip(items.entries, items.split, strict=True)) == [
            ("bad", TRAIN),
            ("fine", TEST),
            ("good", TRAIN),
        ]


def test_features_are_those_of_the_same_files_in_a_folder(tmp_path):
    source = saved(tmp_path / "photos", photos(70))
    out = tmp_path / "f.npz"
    done = CliRunner().invoke(
        main, ["features", source, "-o", str(out), "--backbone", "pixels:4", "--client", "site"]
    )
    assert done.exit_code == 0, done.output
    data = load_dataset(str(out))
    assert data.classes == tuple(NAMES)
    assert set(data.client) == {"north", "south"}
    expected = Grid()(find("pixels:4")(pixels(70))).values[:, :-1]
    assert np.array_equal(data.x, expected)


def test_memory_does_not_grow_with_the_images(tmp_path):
    def peak(count):
        source = saved(tmp_path / str(count), photos_of(count))
        read_items(source)  # imports and first-time caches are no part of it
        tracemalloc.start()
        items = read_items(source)
        seen = sum(len(entry.read_bytes()) for entry in items.entries)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return seen, most

    def photos_of(count):
        noise = io.BytesIO()
        Image.fromarray(pixels(1, side=120)[0]).save(noise, "PNG")
        cells = [{"bytes": noise.getvalue(), "path": None}] * count
        columns = {"photo": cells, "label": ["a"] * count}
        return datasets.Dataset.from_dict(columns).cast_column("photo", datasets.Image())

    few, many = peak(5), peak(100)
    assert many[0] == 20 * few[0]
    assert many[1] < few[1] + many[0] / 10


def test_broken_images_are_named_and_can_be_skipped(tmp_path):
    cells = [{"bytes": b"not an image", "path": None}, None]
    for image in pixels(2):
        good = io.BytesIO()
        Image.fromarray(image).save(good, "PNG")
        cells.append({"bytes": good.getvalue(), "path": None})
    features = datasets.Features({"photo": datasets.Image(), "label": datasets.Value("string")})
    columns = {"photo": cells, "label": ["a", "b", "a", "b"]}
    items = read_items(
        saved(tmp_path / "photos", datasets.Dataset.from_dict(columns, features=features))
    )
    with pytest.raises(DataError, match=r"photos: \[0\]: cannot be read as an image"):
        Extraction(backbone=find("pixels:2")).run(items, tmp_path / "f.npz")
    Extraction(backbone=find("pixels:2"), broken="skip").run(items, tmp_path / "f.npz")
    assert len(load_dataset(str(tmp_path / "f.npz"))) == 2


def changed(case):
    two = photos(2).add_column("other", [None, None]).cast_column("other", datasets.Image())
    rows = {
        "column": photos(2),
        "several": two,
        "no images": photos(2),
        "no texts": photos(2),
        "both": two,
        "split": {"train": texts(("a", 0)), "unsupervised": texts(("b", 0))},
        "columns": {"train": texts(("a", 0)), "test": photos(2)},
        "gap": texts(("a", 0), ("b", None)),
        "unlabelled": {"train": texts(("a", 0)), "test": texts(("b", 1), ("c", -1))},
        "words": texts(("a", 0)),
        "nothing": texts(("a", 0)).remove_columns("text"),
        "column split": texts(("a", 0)).add_column("split", ["unsupervised"]),
    }
    return rows[case]


@pytest.mark.parametrize(
    ("case", "columns", "message"),
    [
        ("column", Columns(label="lable"), "column 'lable' is missing; did you mean 'label'"),
        ("several", Columns(), "photo, other contain images; select one with --image"),
        ("no images", Columns(image="site"), "'site' does not contain images"),
        ("no texts", Columns(text="photo"), "'photo' does not contain texts"),
        ("both", Columns(text="site", image="photo"), "got both"),
        ("split", Columns(text="text"), "expected one of .*, got 'unsupervised'; save"),
        ("columns", Columns(text="text"), "the splits have different columns"),
        ("gap", Columns(text="text"), r"\[1\]: 'label' is missing; remove such rows"),
        ("unlabelled", Columns(text="text"), r"test\[1\]: 'label' is missing"),
        ("words", Columns(), "a feature is not a number .*--text"),
        ("nothing", Columns(), "no feature columns"),
        ("column split", Columns(text="text"), r"\[0\]: split: expected one of"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tmp_path, case, columns, message):
    source = saved(tmp_path / "data", changed(case))
    with pytest.raises(DataError, match=message) as caught:
        read_items(source, columns)
    assert str(caught.value).startswith(source)


def test_a_data_set_without_rows_is_refused(tmp_path, monkeypatch):
    """As versions of the library give one back that do not refuse it themselves."""
    source = saved(tmp_path / "data", texts(("a", 0)))
    monkeypatch.setattr(datasets, "load_from_disk", lambda _: texts())
    with pytest.raises(DataError, match="data: no rows"):
        read_items(source, Columns(text="text"))


def test_of_several_images_one_is_chosen(tmp_path):
    items = read_items(saved(tmp_path / "data", changed("several")), Columns(image="photo"))
    assert isinstance(items.entries[0], Encoded)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("hf:", "write hf:NAME"),
        ("hf:@large", "write hf:NAME"),
        ("hf:somebody/nothing", r"cannot be loaded .*; connect once, or use a folder"),
    ],
)
def test_data_sets_that_are_not_there_are_refused(source, message):
    with pytest.raises(DataError, match=message):
        read_items(source)


def test_a_folder_whose_files_are_gone_is_refused(tmp_path):
    source = saved(tmp_path / "photos", photos(2))
    for path in (tmp_path / "photos").glob("*.arrow"):
        path.unlink()
    with pytest.raises(DataError, match="photos: cannot be loaded"):
        read_items(source)


def test_without_the_library_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"needs: pip install 'fedgram\[datasets\]'"):
        read_items("hf:mnist")


def test_a_column_of_images_is_refused_elsewhere(tmp_path):
    (tmp_path / "a.csv").write_text("a,label\n1,x\n")
    with pytest.raises(DataError, match="only Hugging Face data sets"):
        read_items(str(tmp_path / "a.csv"), Columns(image="a"))
