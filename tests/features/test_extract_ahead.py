"""Decoding ahead of the backbone: in order, bounded, each file read once, nothing made twice."""

import builtins
import io
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram import Grid, load_dataset
from fedgram.data.items import Items, read_items
from fedgram.errors import ConfigError, DataError
from fedgram.features import extract
from fedgram.features.backbones import find
from fedgram.features.extract import Extraction

Image = pytest.importorskip("PIL.Image")


class Watched:
    """The pixels, keeping account of what was asked for."""

    name, takes = "watched", "images"

    def __init__(self, digest="watched", before=lambda: None):
        self._pixels, self._before = find("pixels:4"), before
        self.digest, self.seen = digest, 0

    def __call__(self, items):
        self._before()
        self.seen += len(items)
        return self._pixels(items)


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Return 40 images in a folder, in parts of 4."""
    monkeypatch.setattr(extract, "PART", 4)
    rng = np.random.default_rng(0)
    for k in range(40):
        path = tmp_path / "photos" / "ab"[k // 20] / f"{k:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)
    return tmp_path / "photos"


@pytest.fixture
def decoding(monkeypatch):
    """Return the paths decoded so far."""
    done = []

    def decoded(entry, data=None, real=extract.decoded):
        done.append(entry)
        return real(entry, data)

    monkeypatch.setattr(extract, "decoded", decoded)
    return done


def test_the_next_part_is_decoded_while_the_backbone_runs(photos, tmp_path, decoding):
    def before():  # without decoding ahead this would wait in vain
        deadline = time.monotonic() + 60
        while len(decoding) < min(2 * extract.PART, 40) and time.monotonic() < deadline:
            time.sleep(0.001)
        assert len(decoding) >= 2 * extract.PART

    extraction = Extraction(backbone=Watched(before=before), workers=1)
    extraction.run(read_items(str(photos)), tmp_path / "f.npz")
    assert len(decoding) == 40


@pytest.mark.parametrize("workers", [1, 3])
def test_no_more_than_a_part_for_each_thread_is_decoded_ahead(photos, tmp_path, decoding, workers):
    ahead = []

    def before():
        time.sleep(0.01)  # time for the threads to run too far ahead, if they would
        ahead.append(len(decoding) - backbone.seen)

    backbone = Watched(before=before)
    Extraction(backbone=backbone, workers=workers).run(read_items(str(photos)), tmp_path / "f.npz")
    assert max(ahead) <= (workers + 1) * extract.PART


def test_each_file_is_read_once(photos, tmp_path, monkeypatch):
    opened = Counter()

    def opening(path, *more, real=open, **named):
        opened[str(path)] += str(path).endswith(".png")
        return real(path, *more, **named)

    items = read_items(str(photos))
    monkeypatch.setattr(builtins, "open", opening)
    monkeypatch.setattr(io, "open", opening)
    Extraction(backbone=find("pixels:4")).run(items, tmp_path / "f.npz")
    assert {path: n for path, n in opened.items() if n} == {str(path): 1 for path in items.entries}


def test_the_number_of_threads_changes_nothing(photos, tmp_path):
    contents = set()
    for workers in (1, 2, 7):
        out = tmp_path / f"{workers}.npz"
        Extraction(backbone=find("pixels:4"), workers=workers).run(read_items(str(photos)), out)
        contents.add(out.read_bytes())
    assert len(contents) == 1


@pytest.mark.parametrize("workers", [1, 3])
def test_the_first_broken_file_is_named_and_what_came_before_is_kept(photos, tmp_path, workers):
    items, backbone = read_items(str(photos)), Watched()
    whole = items.entries[17].read_bytes()
    for index in (17, 21, 39):
        items.entries[index].write_bytes(whole[:60])  # cut short
    extraction = Extraction(backbone=backbone, workers=workers)
    with pytest.raises(DataError, match=r"17\.png: cannot be read as an image"):
        extraction.run(items, tmp_path / "f.npz")
    assert backbone.seen == 16
    items.entries[17].write_bytes(whole)
    with pytest.raises(DataError, match=r"21\.png: cannot be read as an image"):
        extraction.run(items, tmp_path / "f.npz")
    assert backbone.seen == 20


def test_a_file_that_has_gone_is_named_or_skipped(photos, tmp_path):
    items = read_items(str(photos))
    items.entries[5].unlink()
    with pytest.raises(DataError, match=r"05\.png: cannot be read \(No such file.*--skip-broken"):
        Extraction(backbone=find("pixels:4")).run(items, tmp_path / "f.npz")
    done = Extraction(backbone=find("pixels:4"), broken="skip").run(items, tmp_path / "f.npz")
    assert done.skipped == (str(items.entries[5]),)
    assert len(load_dataset(str(tmp_path / "f.npz"))) == 39


def test_an_image_that_becomes_no_number_is_named(photos, tmp_path):
    class Failing(Watched):
        def __call__(self, items):
            vectors = super().__call__(items)
            return np.where(vectors[:, :1] == poison, np.nan, vectors)

    items = read_items(str(photos))
    poison = find("pixels:4")([extract.decoded(items.entries[22])])[0, 0]
    with pytest.raises(DataError, match=r"22\.png: the features of watched are NaN or infinite"):
        Extraction(backbone=Failing()).run(items, tmp_path / "f.npz")


def test_what_cannot_work_is_refused_before_anything_is_read(photos, tmp_path):
    with pytest.raises(ConfigError, match="workers = 0: use at least 1"):
        Extraction(backbone=find("pixels:4"), workers=0)
    with pytest.raises(ConfigError, match="on a grid"):
        Extraction(backbone=find("pixels:4"), grid=Grid(bits="off"))
    with pytest.raises(ConfigError, match=r"f\.csv: expected a file name that ends in \.npz"):
        Extraction(backbone=find("pixels:4")).run(read_items(str(photos)), tmp_path / "f.csv")


# A file that is there already


def drawn(codes):
    """Return images in memory, one for each code."""
    images = np.zeros((len(codes), 5, 6, 3), np.uint8)
    images[:, :, :, :] = np.arange(90).reshape(5, 6, 3)
    images[:, 0, 0, 0] = codes
    return Items(kind="images", entries=images, y=np.array(codes) % 2, classes=("even", "odd"))


codes = st.lists(st.integers(0, 12), min_size=1, max_size=12)


@given(before=codes, now=codes)
def test_rows_of_known_items_are_taken_over_and_the_file_is_that_of_a_fresh_start(
    before, now, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("reuse")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extract, "PART", 3)
        Extraction(backbone=Watched()).run(drawn(now), folder / "fresh.npz")
        Extraction(backbone=Watched()).run(drawn(before), folder / "f.npz")
        again = Watched()
        done = Extraction(backbone=again).run(drawn(now), folder / "f.npz")
    assert done.reused == sum(code in before for code in now)
    assert again.seen == len(now) - done.reused
    assert (folder / "f.npz").read_bytes() == (folder / "fresh.npz").read_bytes()


def test_names_and_places_of_files_do_not_matter(photos, tmp_path):
    out = tmp_path / "f.npz"
    Extraction(backbone=Watched()).run(read_items(str(photos)), out)
    (photos / "a" / "00.png").rename(photos / "b" / "moved.png")
    (photos / "a" / "01.png").unlink()
    Image.new("RGB", (8, 8), (1, 2, 3)).save(photos / "a" / "02.png")
    backbone = Watched()
    done = Extraction(backbone=backbone).run(read_items(str(photos)), out)
    assert (backbone.seen, done.reused, len(load_dataset(str(out)))) == (1, 38, 39)


def test_a_run_that_takes_rows_over_can_be_interrupted(photos, tmp_path):
    items, out = read_items(str(photos)), tmp_path / "f.npz"
    some = replace(items, entries=items.entries[::2], y=items.y[::2])
    backbone = Watched()
    Extraction(backbone=backbone).run(some, out)
    before = out.read_bytes()

    def interrupt(done, _):
        if done > 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Extraction(backbone=backbone).run(items, out, interrupt)
    assert out.read_bytes() == before
    Extraction(backbone=backbone).run(items, out)
    assert backbone.seen == 40
    Extraction(backbone=Watched()).run(items, tmp_path / "fresh.npz")
    assert out.read_bytes() == (tmp_path / "fresh.npz").read_bytes()


@pytest.mark.parametrize(
    "other", ["backbone", "grid", "damaged", "no digests", "digests of others", "mine"]
)
def test_nothing_is_taken_over_from_a_file_of_another_origin(photos, tmp_path, other):
    items, out = read_items(str(photos)), tmp_path / "f.npz"
    digest = "other" if other == "backbone" else "watched"
    grid = Grid(bits=4) if other == "grid" else Grid()
    Extraction(backbone=Watched(digest), grid=grid).run(items, out)
    if other == "damaged":
        content = bytearray(out.read_bytes())
        content[400] ^= 1
        out.write_bytes(content)
    if other in ("no digests", "digests of others"):
        arrays = dict(np.load(out))
        digests = arrays.pop("digest")
        more = {"digest": digests[1:]} if other == "digests of others" else {}
        np.savez(out, **arrays, **more)
    if other == "mine":
        np.savez(out, x=np.zeros((3, 48)), y=[0, 1, 0])
    backbone = Watched()
    assert Extraction(backbone=backbone).run(items, out).reused == 0
    assert backbone.seen == 40
    Extraction(backbone=Watched()).run(items, tmp_path / "fresh.npz")
    assert out.read_bytes() == (tmp_path / "fresh.npz").read_bytes()
