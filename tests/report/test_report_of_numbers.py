"""The report of a regression speaks of R2, and leaves every name as it is."""

import re

import numpy as np
import pytest
from click.testing import CliRunner

import fedgram as fg
from fedgram.cli import main
from fedgram.report.groups import comparisons
from fedgram.report.paper_figures import _drawings


def test_a_report_of_numbers_speaks_of_r2_and_keeps_names(tmp_path):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(120, 9))  # few for a client alone
    ids = np.array(["accuracy", "percentage points", "Accuracies"])[np.arange(120) % 3]
    y = x.sum(axis=1) / 3 + 0.5 * rng.normal(size=120)
    np.savez(tmp_path / "d.npz", x=x, y=y, client=ids)
    words = ["run", tmp_path / "d.npz", "-m", "local", "-m", "auto", "-o", tmp_path / "r"]
    settings = ("task=regression", "output_range=[-9, 9]", "partition=given", "split=within-client")
    for text in settings:
        words += ["-s", f"data.{text}"]
    assert CliRunner().invoke(main, [str(word) for word in words]).exit_code == 0
    done = CliRunner().invoke(main, ["report", str(tmp_path / "r"), "-o", str(tmp_path / "p.html")])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "p.html").read_text("utf-8").split("<main")[1].split("<script")[0]
    for text in (
        "% mean R2 over clients",
        "points more than training alone",
        "R2 values in %.",
        "R2 and cost",
        "Every client&#x27;s R2",
        "R2 of a client, %",
        "R2 of training alone, %",
        "R2 on left-out samples, %",
        "R2, the coefficient of determination",
        ">RMSE<",
    ):
        assert text in page, text
    for name in set(ids):
        assert f">{name}<" in page, name
        page = page.replace(name, "")
    assert not re.search("accurac", page, re.IGNORECASE)
    assert "classes in training" not in page
    assert "Pooled models" not in page  # one model is selected, which the chosen settings name


def test_seeds_of_numbers_are_called_r2(tmp_path):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(120, 9))
    np.savez(tmp_path / "d.npz", x=x, y=x[:, 0], client=np.arange(120) % 3)
    words = [
        "run",
        str(tmp_path / "d.npz"),
        "-m",
        "afl",
        "--seeds",
        "2",
        "-s",
        "data.partition=given",
    ]
    words += ["-s", "data.task=regression", "-s", "data.output_range=[-9, 9]"]
    done = CliRunner().invoke(main, words)
    assert "R2 in %: mean ± standard deviation over seeds" in done.output
    assert "accuracy" not in done.output


def test_axes_of_figures_for_papers_are_called_r2(tmp_path):
    figure = pytest.importorskip("matplotlib.figure").Figure
    rng = np.random.default_rng(1)
    x = rng.normal(size=(240, 9))
    y = x[:, 0] + 0.2 * rng.normal(size=240)
    data = fg.Dataset(x, y, np.arange(240) % 3, task="regression", output_range=(-9, 9))
    results = fg.run(["local", "afl"], fg.federate(data))
    (comparison,) = comparisons([result.record for result in results])
    for name, draw in _drawings(comparison):
        made = figure()
        draw(made)
        labels = made.axes[0].get_ylabel() + made.axes[0].get_xlabel()
        assert "R2" in labels, name
        assert "accuracy" not in labels, name


def test_results_of_numbers_speak_of_r2():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(240, 9))
    y = x[:, 0] + 0.2 * rng.normal(size=240)
    data = fg.Dataset(x, y, np.arange(240) % 3, task="regression", output_range=(-9, 9))
    results = fg.run(["afl", "fedhip"], fg.federate(data), seeds=[0, 1])
    assert "afl, 2 seeds: R2 client mean" in repr(results)
    assert "<th>R2 client mean, %</th>" in results._repr_html_()
    assert results.plot().title == "R2 of 6 clients"
    assert ">R2 of a client, %<" in results.plot().svg
