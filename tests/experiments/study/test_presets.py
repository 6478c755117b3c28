"""Every preset runs small, offline: two of its runs here, all of it in the tests marked wide."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from fedgram.cli import main
from fedgram.data.sources import load_dataset
from fedgram.experiments.runner import run as run_method
from fedgram.experiments.study import published
from fedgram.experiments.study.cells import Source, cells, needed
from fedgram.experiments.study.settings import load, presets, title
from fedgram.federation.federated_dataset import federate

NEED_TORCH = {"fedacnnl-cnn"}
REFUSED = {"fedhip-tiny-ridge": "the Gram matrix is singular"}
NAMES = [
    pytest.param(name, marks=[pytest.mark.wide] if name in NEED_TORCH else []) for name in presets()
]
# The smallest tables: few clients and rounds, narrow networks and lifts, one seed.
SMALL = ("table.seeds=1", "every.rounds=2", "every.rate=0.1", "scoring.every=1")


def small(name):
    found = load(name)
    number = 12 if name == "fedhip-joiners" else 5
    clients = () if found.clients == (None,) else (f"table.clients={number}",)
    if len(found.partitions) > 1:
        clients = (*clients, f'table.partitions=["{found.partitions[0].name}"]')
    takes = {parameter for row in found.methods for parameter in row.takes()}
    return [*clients, *(text for text in SMALL if takes & {"rounds"} or "every." not in text)]


def few(source):
    """Some samples of every client, or of the whole."""
    data = load_dataset(source)
    rows = np.random.default_rng(0).permutation(len(data))[:300]
    if data.client is not None:
        rows = np.flatnonzero(np.isin(data.client, np.unique(data.client)[:4]))[:400]
    parts = {
        field.name: getattr(data, field.name)[rows]
        for field in dataclasses.fields(data)
        if field.name in ("x", "y", "client", "domain", "split")
        and getattr(data, field.name) is not None
    }
    return dataclasses.replace(data, **parts)


@pytest.fixture(scope="module")
def sources():
    """The sources that have been described, by name."""
    return {}


def runs_of(name, sources, overrides=()):
    found = load(name, overrides)
    for dataset in found.datasets:
        source = dataset.settings["data"]["source"]
        if source not in sources:
            sources[source] = Source.of(load_dataset(source))
    return needed(cells(found, sources))


@pytest.mark.parametrize("name", presets())
def test_a_preset_is_read_offline_and_its_settings_are_those_of_the_methods(name, sources):
    found = load(name)
    assert title(name) == found.title
    assert len(found.seeds) in (1, 3)
    for run in runs_of(name, sources, ["table.seeds=1"]):
        assert run.made
        plan = run.settings.data  # equal training samples: validation samples are nobody's
        assert plan.reserve_valid or not plan.valid_fraction
    for paper in found.published:
        assert published.load(paper).source


@pytest.mark.parametrize("name", NAMES)
def test_the_first_and_the_last_run_of_a_preset_end_with_scores(name, sources):
    runs = runs_of(name, sources, small(name))
    for run in (runs[0], runs[-1]):
        plan = run.settings.data
        everybody = federate(few(plan.source), plan, run.settings.grid)
        method = run.made.shortened(search=False)
        result = run_method(method, everybody, metrics=run.settings.metrics)
        assert 0 < result.accuracy["client_mean"] <= 1


def listed(columns):
    given = {"env": {"COLUMNS": str(columns)}, "catch_exceptions": False}
    lines = CliRunner().invoke(main, ["study", "--list"], **given).output.splitlines()
    assert max(map(len, lines)) <= columns
    assert all(line == line.rstrip() for line in lines)
    return lines


def test_the_command_lists_every_preset_with_one_line():
    lines = listed(columns=80)
    assert dict(re.split(r"  +", line) for line in lines) == {n: title(n) for n in presets()}


def test_a_narrow_terminal_breaks_the_list_of_presets_between_words():
    found, longest = {}, max(map(len, presets()))
    for line in listed(columns=60):
        name, text = line[:longest].strip(), line[longest:].strip()
        if name:
            found[name] = text
        else:  # what the line above has no room for
            before = list(found)[-1]
            found[before] += f" {text}"
    assert found == {name: title(name) for name in presets()}


def test_the_page_describes_every_preset():
    text = (Path(__file__).parents[3] / "docs" / "tables-of-results.md").read_text(encoding="utf-8")
    table = text[text.index("## Presets") :]
    assert [name for name in presets() if f"`{name}`" not in table] == []


@pytest.mark.wide
@pytest.mark.parametrize("name", presets())
def test_a_whole_preset_runs_small(tmp_path, name):
    if name in NEED_TORCH:
        pytest.importorskip("torch")
    changes = [text for change in small(name) for text in ("-s", change)]
    words = ["study", name, "-o", str(tmp_path), "-j", "2", "--json", *changes]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    content = json.loads((tmp_path / "table.json").read_text(encoding="utf-8"))
    if name in REFUSED:  # all that is missing is what the preset shows: a refusal with its reason
        assert {run["run"] for run in content["failed"]} == set(content["missing"])
        assert all(REFUSED[name] in run["error"] for run in content["failed"])
        assert all("ridge-1e-09" in run for run in content["missing"])
        return
    assert done.exit_code == 0, done.output
    assert content["complete"]
    assert not content["failed"]
