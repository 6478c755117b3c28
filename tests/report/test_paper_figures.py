"""Figures for papers: the numbers of the records, as PDF and PNG."""

import builtins

import pytest
from click.testing import CliRunner
from report_support import write_run

from fedgram.cli import main
from fedgram.errors import ConfigError
from fedgram.experiments.reader import read_runs
from fedgram.report.groups import comparisons
from fedgram.report.paper_figures import COLUMN, RATIO, _drawings, _name, write_figures


@pytest.fixture
def runs(tmp_path):
    scored = [(r, 0.01 * r, 0.9) for r in range(1, 31)]
    for seed in (0, 1):
        write_run(tmp_path / f"local{seed}", "local", seed=seed, clients={"a": 0.5, "b": 0.75})
        write_run(tmp_path / f"fedavg{seed}", "fedavg", seed=seed, rounds=scored)
        write_run(tmp_path / f"afl{seed}", "afl", seed=seed, clients={"a": 0.75, "b": 0.5})
    return read_runs([tmp_path])


def test_there_is_a_figure_for_every_cost_for_clients_and_for_gains(runs):
    (comparison,) = comparisons(runs)
    assert [name for name, _ in _drawings(comparison)] == [
        "accuracy-rounds",
        "accuracy-seconds",
        "accuracy-flops",
        "accuracy-bytes",
        "clients",
        "gain-afl",
    ]


def test_a_figure_is_a_pdf_and_a_png_with_the_same_bytes_each_time(tmp_path):
    pytest.importorskip("matplotlib")
    runs = read_runs([write_run(tmp_path / "afl", "afl")])
    first, second = tmp_path / "first", tmp_path / "second"
    assert [path.name for path in write_figures(runs, first)] == ["clients"]
    write_figures(runs, second)
    for ending, begin in (("pdf", b"%PDF"), ("png", b"\x89PNG")):
        content = (first / f"clients.{ending}").read_bytes()
        assert content.startswith(begin)
        assert content == (second / f"clients.{ending}").read_bytes()


def test_a_figure_has_the_numbers_of_the_records(runs):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    (comparison,) = comparisons(runs)
    dict(_drawings(comparison))["accuracy-rounds"](figure)
    (axes,) = figure.axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert list(lines["fedavg"].get_xdata()) == list(range(1, 31))
    assert list(lines["fedavg"].get_ydata()) == pytest.approx([float(r) for r in range(1, 31)])
    assert list(lines["afl"].get_ydata()) == pytest.approx([62.5])
    assert axes.get_ylabel() == "client-mean accuracy (%)"


def test_without_matplotlib_the_extra_is_named_and_the_page_is_written(runs, tmp_path, monkeypatch):
    usual = builtins.__import__

    def without(name, *more, **named):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return usual(name, *more, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"pip install 'fedgram\[figures\]'"):
        write_figures(runs, tmp_path / "figures")
    out = tmp_path / "r.html"
    done = CliRunner().invoke(
        main, ["report", runs[0].folder, "-o", str(out), "--figures", str(tmp_path / "figures")]
    )
    assert done.exit_code == 2
    assert "fedgram[figures]" in done.stderr
    assert out.exists()


def test_names_of_series_are_above_the_plot_and_hide_no_curve(tmp_path, runs):
    pytest.importorskip("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    (comparison,) = comparisons(runs)
    for name, draw in _drawings(comparison):
        figure = Figure(figsize=(COLUMN, RATIO * COLUMN), layout="constrained")
        draw(figure)
        _name(figure)
        FigureCanvasAgg(figure).draw()
        (names,) = figure.legends
        (axes,) = figure.axes
        assert names.get_window_extent().y0 >= axes.get_window_extent().y1, name
        assert names.get_window_extent().x0 >= 0, name
        assert axes.get_window_extent().height > 100, name  # of 250 pixels across
