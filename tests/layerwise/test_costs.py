"""The costs in docs/deep.md: operations and numbers by formula are those of recorded runs."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedgram import InProcess
from fedgram.checks.federations import partitioned
from fedgram.core.statistics import Statistics
from fedgram.experiments.runner import run
from fedgram.federation.method import create_method
from fedgram.layerwise.patches import positions
from fedgram.models.architecture import MapShape, read, shapes

ROOT = Path(__file__).parents[2]
CLASSES, CLIENTS = 10, 3
NETWORKS = ["dense 12", "conv 4 3x3 pad 1 max 2, dense 9", "conv 3 3x3, conv 5 2x2 mean 2"]


def expected(layers, samples, *, targets):
    """Operations of each exchange over all clients, and numbers of a client's sums."""
    maps = shapes(read(layers), MapShape(height=8, width=8, channels=1))
    forward, operations, numbers = 0, [], []
    for layer, inputs in zip(read(layers), maps, strict=False):
        f, places, m = layer.fan_in(inputs) + 1, positions(layer, inputs), layer.channels
        coded = CLIENTS * 2 * CLASSES * places * f * m if targets else 0
        operations.append(
            samples * places * f * (f + 1) + 2 * samples * inputs.size * CLASSES + coded + forward
        )
        numbers.append(f * (f + 1) // 2 + (f * m if targets else 0))
        forward += 2 * samples * places * f * m
    d = maps[-1].size + 1
    operations.append(samples * d * (d + 1) + 2 * samples * d * CLASSES + forward)
    numbers.append(d * (d + 1) // 2 + d * CLASSES)
    return operations, numbers


@pytest.mark.parametrize("filters", ["principal", "position"])
@pytest.mark.parametrize("layers", NETWORKS)
def test_operations_and_numbers_are_those_of_the_formulas(layers, filters, monkeypatch):
    sizes, real = [], InProcess.sum

    def watched(engine, step, *given, **named):
        total = real(engine, step, *given, **named)
        if isinstance(total, Statistics):
            sizes.append(total.gram.size + total.moment.size)
        return total

    monkeypatch.setattr(InProcess, "sum", watched)
    everybody = partitioned(clients=CLIENTS)
    settings = {"layers": layers, "image": [8, 8, 1], "filters": filters}
    asks = run(create_method("fedacnnl", settings), everybody).record.exchanges
    recorded = [ask.flops for ask in asks if ask.step.endswith("statistics")]
    samples = sum(len(site.train) + len(site.valid) for site in everybody.members)
    operations, numbers = expected(layers, samples, targets=filters == "position")
    assert recorded == operations
    assert sizes == numbers


def test_the_table_in_the_page_is_made_of_the_stored_measurement(tmp_path):
    page = ROOT / "docs" / "benchmarks" / "deep.md"
    copy = tmp_path / "deep.md"
    copy.write_text(page.read_text(encoding="utf-8"), encoding="utf-8")
    command = [sys.executable, "-m", "benchmarks.layer_costs", "render"]
    stored = ROOT / "docs" / "results" / "layer-costs.json"
    subprocess.run([*command, str(stored), str(copy)], cwd=ROOT, check=True)
    assert copy.read_text(encoding="utf-8") == page.read_text(encoding="utf-8")
