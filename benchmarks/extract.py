"""Speed and memory of `fedgram features`, from image files to the feature file.

FEDGRAM_DATA=... python -m benchmarks.extract [--quick]

Speed is a share of the bare backbone's: the same session on tensors in memory, each the best of
runs in turn. Small images are those of cifar100_png_5000.zip where FEDGRAM_DATA holds it,
else drawn; photographs are drawn.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image

from benchmarks.core import best, timed
from fedgram import FedgramError
from fedgram.data.items import Items, read_items
from fedgram.data.sources import DATA_VARIABLE
from fedgram.features.backbones import Backbone, find
from fedgram.features.backbones.efficientnet import RECIPE, cache
from fedgram.features.backbones.registry import Staged
from fedgram.features.extract import PART, Extraction, decoded

ARCHIVE = "cifar100_png_5000.zip"
NETWORK = "efficientnet-lite0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few images, to try the script")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as folder:
        for line in lines(Path(folder), quick=quick):
            print(line, flush=True)


def lines(folder: Path, *, quick: bool) -> Iterator[str]:
    try:
        network = find(NETWORK)
    except FedgramError as error:
        yield f"skipped: {error}"
        return
    count, repeats = (2 * PART, 1) if quick else (10 * PART, 5)
    counts = (PART, 2 * PART) if quick else (500, 5_000)
    small = small_images(folder / "small", counts[1])
    sources = {
        "PNG files of 32 x 32": small,
        "JPEG files of 500 x 375": drawn(folder / "photos", count, (375, 500), "jpg"),
    }
    yield f"{NETWORK}, a share of the bare backbone, {os.cpu_count()} cores (goal >= 0.8)"
    for name, source in sources.items():
        yield f"  {count} {name}: {share(network, first(source, count), repeats)}"
    yield "pixels:8, where decoding is the work and a share of the backbone would say nothing"
    for name, source in sources.items():
        yield f"  {count} {name}: {speed(first(source, count), repeats)}"
    yield f"{NETWORK}, peak memory (goal: the same)"
    yield "  " + "; ".join(f"{n} images: {peak(small, n)} MB" for n in counts)


def share(network: Backbone, items: Items, repeats: int) -> str:
    """Extract and run the bare backbone in turn, so that noise hits both alike."""
    assert isinstance(network, Staged)
    ready = [network.prepare(decoded(path)) for path in items.entries[:PART]]
    (model,) = cache().glob(f"{NETWORK}-*-{RECIPE}.onnx")
    plain = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    batches = [{"images": np.stack(ready[k : k + 8])} for k in range(0, PART, 8)]
    turns = len(items) // PART
    works = (
        lambda: extract(network, items),
        lambda: [network.embed(ready) for _ in range(turns)],
        lambda: [plain.run(None, batch) for _ in range(turns) for batch in batches],
    )
    times = [[timed(work) for work in works] for _ in range(repeats)]
    ours, bare, batched = (len(items) / min(of_one) for of_one in zip(*times, strict=True))
    return (
        f"{ours / bare:.2f}, {ours:.0f} images/s of {bare:.0f}; onnxruntime as it comes, "
        f"on batches of 8: {batched:.0f}"
    )


def speed(items: Items, repeats: int) -> str:
    pixels = find("pixels:8")
    ours = len(items) / best(lambda: extract(pixels, items), repeats)
    theirs = len(items) / best(lambda: [decoded(path) for path in items.entries], repeats)
    return f"{ours:.0f} images/s; one thread that only decodes makes {theirs:.0f}"


def extract(backbone: Backbone, items: Items) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Extraction(backbone=backbone).run(items, Path(folder) / "features.npz")


def peak(source: Path, count: int) -> int:
    """Return the megabytes that an extraction takes, in a process of its own."""
    script = (
        "from pathlib import Path; from benchmarks import extract as e; "
        f"e.extract(e.find(e.NETWORK), e.first(Path({str(source)!r}), {count})); "
        "print(Path('/proc/self/status').read_text())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", done.stdout)
    return int(kilobytes) // 1000


def first(source: Path, count: int) -> Items:
    items = read_items(str(source))
    return replace(items, entries=items.entries[:count], y=items.y[:count], split=None)


def small_images(folder: Path, count: int) -> Path:
    archive = Path(os.environ.get(DATA_VARIABLE, "")) / ARCHIVE
    if not archive.is_file():
        return drawn(folder, count, (32, 32), "png")
    with zipfile.ZipFile(archive) as images:
        images.extractall(folder)
    return folder


def drawn(folder: Path, count: int, shape: tuple[int, int], suffix: str) -> Path:
    """Draw smooth patches under some noise: about as hard to decode as a photograph."""
    rng = np.random.default_rng(0)
    (folder / "drawn").mkdir(parents=True)
    for k in range(count):
        patches = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        smooth = np.asarray(patches.resize(shape[::-1], Image.Resampling.BICUBIC), np.float64)
        image = np.clip(smooth + rng.normal(0, 8, smooth.shape), 0, 255).astype(np.uint8)
        Image.fromarray(image).save(folder / "drawn" / f"{k:05d}.{suffix}")
    return folder


if __name__ == "__main__":
    main()
