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
SHOWN = "[...document.querySelectorAll('svg.fg')].filter(s => s.getClientRects().length)"
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
    heights = browser.run(f"{SHOWN}.map(s => s.clientHeight)")
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
        """[...document.querySelectorAll('svg.fg')].map(s => [
            getComputedStyle(s.querySelector('.paper')).fill,
            ...[...s.querySelectorAll('text')].map(t => getComputedStyle(t).fill)])"""
    )
    for paper, *inks in found:
        assert (luminance(paper) > 0.9) == (scheme == "light")
        assert all(contrast(paper, ink) >= 4.5 for ink in inks)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_texts_of_the_page_stand_out_from_what_is_behind_them(browser, report, scheme):
    browser.ask(
        "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
    )
    browser.open(report.as_uri())
    found = browser.run(
        """[...document.querySelectorAll('body :not(svg, svg *, script, style, noscript)')]
            .filter(e => e.checkVisibility() && [...e.childNodes].some(
                n => n.nodeType === 3 && n.textContent.trim()))
            .map(e => {
                let behind = e;
                while (getComputedStyle(behind).backgroundColor === 'rgba(0, 0, 0, 0)') {
                    behind = behind.parentElement;
                }
                const ground = getComputedStyle(behind).backgroundColor;
                const needed = e.closest('[aria-hidden]') ? 3 : 4.5;  // squares are no texts
                return [ground, getComputedStyle(e).color, needed, e.textContent];
            })"""
    )
    assert len(found) > 50
    assert [one for one in found if contrast(*one[:2]) < one[2]] == []


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_as_wide_as_the_screen(browser, report, width):
    browser.at_width(width)
    browser.open(report.as_uri())
    assert browser.run("document.documentElement.scrollWidth") <= width


def test_no_table_is_cut_on_a_usual_screen(browser, report):
    browser.at_width(1280)
    browser.open(report.as_uri())
    browser.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    cut = browser.run(
        """[...document.querySelectorAll('.wide')].filter(w => w.scrollWidth > w.clientWidth)
            .map(w => w.textContent.slice(0, 60))"""
    )
    assert cut == []


def test_no_table_and_no_figure_is_cut_on_paper(browser, report):
    browser.at_width(717)  # A4 without the margins of the browser
    browser.ask("Emulation.setEmulatedMedia", media="print")
    browser.open(report.as_uri())
    wide = browser.run(
        """[...document.querySelectorAll('table, figure svg')]
            .filter(one => one.getBoundingClientRect().right > innerWidth + 1)
            .map(one => one.textContent.slice(0, 60))"""
    )
    browser.ask("Emulation.setEmulatedMedia", media="")
    assert wide == []


@pytest.mark.parametrize("width", [390, 1280])
def test_words_in_charts_are_large_enough_and_do_not_touch(browser, report, width):
    browser.at_width(width, mobile=width == 390)
    browser.open(report.as_uri())
    small, touching = browser.run(
        f"""(() => {{
            const small = [], touching = [];
            for (const svg of {SHOWN}.filter(s => !s.closest('.wide'))) {{
                const scale = svg.getScreenCTM().a;
                for (const text of svg.querySelectorAll('text')) {{
                    const size = scale * parseFloat(getComputedStyle(text).fontSize);
                    if (size < 10.5) small.push([size, text.textContent]);
                }}
                const ticks = [...svg.querySelectorAll('.xticks text')].map(
                    t => t.getBoundingClientRect());
                ticks.forEach((tick, k) => {{
                    if (k && tick.left < ticks[k - 1].right + 2) touching.push(k);
                }});
            }}
            return [small, touching];
        }})()"""
    )
    assert small == []
    assert touching == []


def test_names_of_charts_stay_within_them_on_a_telephone(browser, report):
    browser.at_width(390, mobile=True)
    browser.open(report.as_uri())
    outside = browser.run(
        f"""{SHOWN}.flatMap(svg => {{
            const box = svg.getBoundingClientRect();
            return [...svg.querySelectorAll('text')].filter(t => {{
                const text = t.getBoundingClientRect();
                return text.left < box.left - 1 || text.right > box.right + 1;
            }}).map(t => t.textContent);
        }})"""
    )
    assert outside == []


def test_a_click_on_a_header_sorts_a_table_and_another_turns_it_around(browser, report):
    browser.open(report.as_uri())
    first = "document.querySelector('table.headline').tBodies[0].rows[0].cells[0].textContent"
    sort = "document.querySelector('table.headline th:nth-child(2)')"
    browser.run(f"{sort}.querySelector('button').click()")
    assert browser.run(first) == "afl"
    assert browser.run(f"{sort}.getAttribute('aria-sort')") == "descending"
    browser.run(f"{sort}.querySelector('button').click()")
    assert browser.run(first) == "local"
    assert browser.run(f"{sort}.getAttribute('aria-sort')") == "ascending"
    assert browser.complaints() == []


def key(browser, name, code):
    for kind in ("keyDown", "keyUp"):
        text = {"text": "\r"} if name == "Enter" and kind == "keyDown" else {}
        browser.ask(
            "Input.dispatchKeyEvent", type=kind, key=name, windowsVirtualKeyCode=code, **text
        )


def test_every_control_is_reached_and_used_with_the_keyboard_alone(browser, report):
    browser.at_width(1280)
    browser.open(report.as_uri())
    wanted = browser.run("document.querySelectorAll('button, input, summary, a[href]').length")
    reached = set()
    for _ in range(4 * wanted):
        key(browser, "Tab", 9)
        place = browser.run(
            """[...document.querySelectorAll('button, input, summary, a[href]')]
                .indexOf(document.activeElement)"""
        )
        if place in reached and place >= 0:
            break
        reached.add(place)
        if browser.run("document.activeElement.textContent") == "client mean":
            key(browser, "Enter", 13)
            sorted_ = "document.activeElement.closest('th').getAttribute('aria-sort')"
            assert browser.run(sorted_) == "descending"
    hidden = browser.run(
        """[...document.querySelectorAll('button, input, summary, a[href]')]
            .filter(one => !one.checkVisibility()).length"""
    )  # of tables that are folded
    assert len(reached - {-1}) == wanted - hidden


def test_a_box_hides_a_method_in_tables_and_charts(browser, report):
    browser.open(report.as_uri())
    shown = """[...document.querySelectorAll('[data-row="1"]')].filter(
        one => getComputedStyle(one).display !== 'none').length"""
    before = browser.run(shown)
    assert before > 5
    browser.run("document.querySelectorAll('.filter input')[1].click()")
    assert browser.run(shown) == 0
    others = """[...document.querySelectorAll('table.headline tbody tr')].map(
        row => getComputedStyle(row).display)"""
    assert browser.run(others) == ["table-row", "none"]
    browser.run("document.querySelectorAll('.filter input')[1].click()")
    assert browser.run(shown) == before
    assert browser.complaints() == []


ZOOMED = "[...document.querySelectorAll('figure')].find(f => f.querySelector('.zoom'))"
TICKS = f"[...{ZOOMED}.querySelectorAll('.at-wide .yticks text')].map(t => +t.textContent)"


def test_a_plot_is_zoomed_and_shown_as_it_was_drawn(browser, report):
    browser.at_width(1280)
    browser.open(report.as_uri())
    before = browser.run(TICKS)
    for press in (0, 0):
        browser.run(f"{ZOOMED}.querySelectorAll('.zoom button')[{press}].click()")
    near = browser.run(TICKS)
    assert max(near) - min(near) < (max(before) - min(before)) / 2
    assert min(before) <= min(near) < max(near) <= max(before)
    browser.run(f"{ZOOMED}.querySelectorAll('.zoom button')[2].click()")
    assert browser.run(TICKS) == before
    assert browser.complaints() == []


def test_a_mark_lies_at_its_value_when_zoomed(browser, report):
    """The tick of a value and the mark of that value keep the same height."""
    browser.at_width(1280)
    browser.open(report.as_uri())
    script = f"""(() => {{
        const figure = {ZOOMED}, svg = figure.querySelector('.at-wide svg');
        const told = [...svg.querySelectorAll('.plot g > title')].map(t => t.parentNode);
        const [low, high] = svg.dataset.y.split(' ').map(Number);
        figure.querySelectorAll('.zoom button')[0].click();
        const ticks = [...svg.querySelectorAll('.yticks text')].map(
            t => [+t.textContent, +t.getAttribute('y') - 4]);
        return told.map(g => {{
            const shape = g.firstChild, at = shape.dataset.at;
            const value = +g.querySelector('title').textContent.split(' ')[1];
            const y = at ? +at.split(' ')[1] : +shape.getAttribute('cy');
            const moved = shape.transform.baseVal.consolidate().matrix.f;
            const [[a, ya], [b, yb]] = [ticks[0], ticks.at(-1)];
            return [y + moved, ya + (value - a) / (b - a) * (yb - ya)];
        }});
    }})()"""
    places = browser.run(script)
    assert places
    for drawn, wanted in places:
        assert drawn == pytest.approx(wanted, abs=0.2)


def test_a_pointer_selects_a_part_of_a_plot(browser, report):
    browser.at_width(1280)
    browser.open(report.as_uri())
    browser.run(f"{ZOOMED}.scrollIntoView({{block: 'center'}})")
    x, y, width, height = browser.run(
        f"""(() => {{ const r = {ZOOMED}.querySelector('.at-wide .plot').getBoundingClientRect();
            return [r.x, r.y, r.width, r.height]; }})()"""
    )
    before = browser.run(TICKS)
    for kind, share in (("mousePressed", 0.3), ("mouseMoved", 0.6), ("mouseReleased", 0.6)):
        place = {"x": x + share * width, "y": y + share * height}
        browser.ask("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)
    near = browser.run(TICKS)
    assert max(near) - min(near) < max(before) - min(before)
    assert browser.complaints() == []


def test_a_watched_page_is_loaded_again_as_it_was_left(browser, report, tmp_path):
    path = tmp_path / "watched.html"
    runs = read_runs([report.parent])
    capture = "window.setInterval = (what) => { window.again = what; }"  # no test waits
    added = browser.ask("Page.addScriptToEvaluateOnNewDocument", source=capture)["identifier"]
    path.write_text(page(runs, watched="1 of 4 runs"), encoding="utf-8")
    browser.open(path.as_uri())
    browser.run("document.querySelectorAll('.filter input')[1].click()")
    browser.run("document.querySelector('details').open = true")
    path.write_text(page(runs, watched="2 of 4 runs"), encoding="utf-8")
    browser.events.clear()
    browser.run("setTimeout(again, 50)")
    browser.wait_for_load()
    browser.ask("Page.removeScriptToEvaluateOnNewDocument", identifier=added)
    text = "document.querySelector('.watched').textContent"
    assert browser.run(text) == "2 of 4 runs"
    assert browser.run("document.querySelectorAll('.filter input')[1].checked") is False
    assert browser.run("document.querySelector('details').open") is True
    assert browser.complaints() == []


def luminance(color):
    channels = [int(part) / 255 for part in color.strip("rgb()").split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
