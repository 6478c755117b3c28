"""The report in a real browser: charts are there, nothing complains, nothing is asked for."""

import pytest
from browser import Browser, find_browser
from report_support import DATA, write_run

from fedgram.experiments.reader import read_runs
from fedgram.report.page import page

pytestmark = pytest.mark.skipif(
    find_browser() is None, reason="needs Chromium: apt-get install chromium"
)
HOSTILE = "<script>alert(1)</script><img src=http://x.invalid/a onerror=alert(2)>"
CLIENTS = {"c0": 0.5, "c1": 0.75, HOSTILE: 1.0}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Write a page about runs of every kind, with names that try to break out of it."""
    folder = tmp_path_factory.mktemp("report")
    for seed in (0, 1):
        options = {"seed": seed, "data": {**DATA, "source": HOSTILE}, "classes": (HOSTILE, "b")}
        alone = {"c0": 0.25, "c1": 0.75, HOSTILE: 0.5}
        write_run(folder / f"local{seed}", "local", clients=alone, **options)
        write_run(folder / f"afl{seed}", "afl", clients=CLIENTS, holdout={"z": 0.5}, **options)
    path = folder / "report.html"
    path.write_text(page(read_runs([folder])), encoding="utf-8")
    return path


def test_a_report_opens_from_disk_without_a_complaint_or_a_request(browser, report):
    browser.open(report.as_uri())
    assert browser.complaints() == []
    assert browser.requests() == [report.as_uri()]


def test_a_page_that_asks_and_complains_is_caught(browser, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text("<img src='http://x.invalid/a.png'><script>console.error('oh')</script>")
    browser.open(bad.as_uri())
    assert "http://x.invalid/a.png" in browser.requests()
    assert any(what.get("type") == "error" for what in browser.complaints())


def test_charts_and_tables_are_drawn(browser, report):
    browser.open(report.as_uri())
    heights = browser.run("[...document.querySelectorAll('svg')].map(s => s.clientHeight)")
    assert len(heights) >= 5
    assert min(heights) > 100
    marks = browser.run("document.querySelectorAll('svg .mark, svg .cloud').length")
    assert marks > 20
    assert browser.run("document.querySelector('table.headline').tBodies[0].rows.length") == 2


def test_names_are_shown_as_they_are_and_run_nothing(browser, report):
    browser.open(report.as_uri())
    assert browser.run("document.querySelectorAll('script').length") == 1
    assert browser.run("document.querySelectorAll('img').length") == 0
    assert HOSTILE in browser.run("document.body.textContent")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_the_paper(browser, report, scheme):
    browser.ask(
        "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
    )
    browser.open(report.as_uri())
    found = browser.run(
        """[...document.querySelectorAll('svg')].map(s => [
            getComputedStyle(s.querySelector('.paper')).fill,
            ...[...s.querySelectorAll('text')].map(t => getComputedStyle(t).fill)])"""
    )
    for paper, *inks in found:
        assert (luminance(paper) > 0.9) == (scheme == "light")
        assert all(contrast(paper, ink) >= 4.5 for ink in inks)


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_as_wide_as_the_screen(browser, report, width):
    browser.ask(
        "Emulation.setDeviceMetricsOverride",
        width=width,
        height=800,
        deviceScaleFactor=1,
        mobile=False,
    )
    browser.open(report.as_uri())
    assert browser.run("document.documentElement.scrollWidth") <= width


def test_a_click_on_a_header_sorts_a_table_and_another_turns_it_around(browser, report):
    browser.open(report.as_uri())
    first = "document.querySelector('table.headline').tBodies[0].rows[0].cells[0].textContent"
    click = "document.querySelector('table.headline th:nth-child(2) button').click()"
    browser.run(click)
    assert browser.run(first) == "afl"
    browser.run(click)
    assert browser.run(first) == "local"
    assert browser.complaints() == []


def luminance(color):
    channels = [int(part) / 255 for part in color.strip("rgb()").split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
