"""The site of the documentation: built without a warning, with links and names that exist."""

import doctest
import html.parser
import inspect
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from browser import Browser, find_browser

import fedgram
import fedgram.checks

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


@pytest.fixture(scope="module")
def site_pages():
    """Import the module that makes parts of pages, which lies beside the pages."""
    sys.path.insert(0, str(DOCS))
    try:
        import site_pages
    finally:
        sys.path.remove(str(DOCS))
    return site_pages


def test_every_part_is_on_a_page(site_pages):
    named = [
        name
        for page in PAGES
        for name in re.findall(r"^<!-- generated: (\w+)", page.read_text("utf-8"), re.M)
    ]
    assert sorted(named) == sorted(site_pages.PARTS)


def test_every_public_name_is_in_the_reference(site_pages):
    text = site_pages.api()
    public = {f"fedgram.{name}" for name in fedgram.__all__ if name != "__version__"}
    public |= {f"fedgram.checks.{name}" for name in fedgram.checks.__all__}
    named = re.findall(r"^\.\. auto\w+:: (\S+)$", text, re.MULTILINE)
    assert sorted(named) == sorted(public)


def test_the_examples_of_what_makes_pages_are_right(site_pages):
    for module in (site_pages, site_pages.notebook_cells):
        tried = doctest.testmod(module, verbose=False)
        assert tried.attempted
        assert not tried.failed


def test_a_page_of_a_notebook_shows_what_its_cells_show(site_pages, tmp_path):
    script = tmp_path / "two.py"
    script.write_text("# %% [markdown]\n# # Two\n\n# %%\nprint(1 + 1)\n\n# %%\nx = 1\n", "utf-8")
    assert site_pages.notebook(script).split("\n\n") == [
        "# Two",
        "```python\nprint(1 + 1)\n```",
        "```{code-block} text\n:class: output\n2\n```",
        "```python\nx = 1\n```",
    ]
    script.write_text("# %%\nraise ValueError('a mistake')\n", "utf-8")
    with pytest.raises(RuntimeError, match="a mistake"):
        site_pages.notebook(script)


def test_a_group_has_a_heading(site_pages):
    """A package with public names gets a line in docs/site_pages.py."""
    assert {group for group, _ in site_pages.public_names()} <= set(site_pages.GROUPS)


def test_links_lead_to_pages_of_the_site_or_name_the_file(site_pages):
    text = "[a](../../README.md#x) [b](../terms.md) [c](../../pyproject.toml) [d](https://e.org)"
    assert site_pages.linked(text, DOCS / "reference", "reference/python") == (
        "[a](../project/readme.md#x) [b](../terms.md) c (`pyproject.toml` of the sources) "
        "[d](https://e.org)"
    )
    named = "[terms.md](../terms.md#words) [`run`](../python.md)"  # a title instead of a file
    assert site_pages.linked(named, DOCS / "reference", "reference/python") == (
        "[](../terms.md#words) [`run`](../python.md)"
    )


def test_the_first_page_has_contents_of_its_tables(site_pages):
    made = site_pages.with_toctrees("# A\n\n## B\n\n| [x](x.md) | [y](y.md) |\n\n## C\n\nText\n")
    assert "```{toctree}\n:hidden:\n:caption: B\n\nx\n```" in made
    assert made.count("toctree") == 1


def code_that_runs():
    """Return the Python code of the pages, which tests run, and of the notebooks."""
    found = [path.read_text("utf-8") for path in sorted((DOCS / "notebooks").glob("*.py"))]
    for page in [ROOT / "README.md", *PAGES]:
        for block in re.findall(
            r"^```(?:python|bash).*?\n(.*?)^```", page.read_text("utf-8"), re.M | re.S
        ):
            found.append(block)
    return "\n".join(found)


def public():
    """Yield the module and the name of everything public."""
    for module in (fedgram, fedgram.checks):
        for name in module.__all__:
            yield module, name


def without_example(names, code):
    """Return the names that neither their docstring nor the code of a page shows in use."""
    return [
        name
        for module, name in names
        if ">>>" not in (inspect.getdoc(getattr(module, name)) or "")
        and not re.search(rf"\bfg\.{name}\b|import [^\n]*\b{name}\b", code)
    ]


def test_every_public_name_has_an_example():
    assert without_example(public(), code_that_runs()) == []


def test_a_public_name_without_an_example_is_found():
    assert without_example([(fedgram, "__version__")], "fg.__versions__") == ["__version__"]


class Links(html.parser.HTMLParser):
    """Collects the addresses of a page and the places that can be linked to."""

    def __init__(self):
        super().__init__()
        self.targets, self.places = set(), set()

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.places |= {found[key] for key in ("id", "name") if found.get(key)}
        self.targets |= {found[key] for key in ("href", "src") if found.get(key)}


def broken_links(folder):
    """Return links of the pages of a folder that lead nowhere, and scripts and styles of others."""
    pages = {}
    for path in folder.rglob("*.html"):
        pages[path.resolve()] = links = Links()
        links.feed(path.read_text("utf-8"))
    broken = []
    for path, links in pages.items():
        for target in links.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc or target == "#":
                continue
            place = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            wrong_anchor = anchor and place in pages and anchor not in pages[place].places
            if not place.is_file() or wrong_anchor:
                broken.append(f"{path.relative_to(folder)}: {target}")
    return broken


def test_a_broken_link_is_found(tmp_path):
    page = '<a href="b.html#here">b</a> <a href="#top">t</a> <a href="c.html">c</a><p id="top">'
    (tmp_path / "a.html").write_text(page)
    (tmp_path / "b.html").write_text('<p id="there">')
    assert sorted(broken_links(tmp_path)) == ["a.html: b.html#here", "a.html: c.html"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site; a warning is an error."""
    pytest.importorskip("sphinx", reason="needs the extra [docs]")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", str(DOCS), str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.docs
def test_the_site_is_built_without_warnings_and_no_link_is_broken(site):
    assert not broken_links(site)
    assert len(list(site.rglob("*.html"))) > len(PAGES)


@pytest.mark.docs
def test_the_site_needs_no_network(site):
    for path in site.rglob("*.html"):
        text = path.read_text("utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*src=\"(https?:[^\"]*)", text)
        styles = re.findall(r"<link[^>]*rel=\"stylesheet\"[^>]*href=\"(https?:[^\"]*)", text)
        assert not loaded + styles, path.name


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if find_browser() is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    browser = Browser(tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()


SIZES = (
    390,
    800,
    1280,
    1400,
)  # a telephone; a tablet; a list of pages beside the page; contents too
# What sticks out of the page, pictures that are not there, and whether the list shows this page.
LOOK = """(() => {
  const list = document.querySelector('.sidebar-scroll')?.getBoundingClientRect();
  const here = document.querySelector('.sidebar-tree .current-page > a')?.getBoundingClientRect();
  return [document.documentElement.scrollWidth > WIDTH,
    [...document.images].filter(image => !image.naturalWidth).map(image => image.src),
    !here || (here.top >= list.top && here.bottom <= list.bottom)];
})()"""


def faults(browser, page, width):
    """Return what is wrong with a page on a screen of a width."""
    browser.at_width(width)
    browser.open(page.as_uri())
    wider, missing, listed = browser.run(LOOK.replace("WIDTH", str(width)))
    found = ["it is wider than the screen"] if wider else []
    found += [] if listed else ["the list of pages does not show it"]
    return found + missing + browser.complaints()


@pytest.mark.docs
def test_every_page_fits_the_screen(site, browser):
    pages = sorted(path for path in site.rglob("*.html") if "_static" not in path.parts)
    found = {
        f"{page.relative_to(site)} at {width}": wrong
        for page in pages
        for width in SIZES
        if (wrong := faults(browser, page, width))
    }
    assert not found


@pytest.mark.docs
def test_a_page_that_does_not_fit_is_found(browser, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<!doctype html><div style='width: 500px'>wide</div><img src='missing.png'>")
    assert faults(browser, page, 390)[:2] == [
        "it is wider than the screen",
        (tmp_path / "missing.png").as_uri(),
    ]


@pytest.mark.docs
def test_notebooks_are_shown_with_tables_and_figures(site):
    page = (site / "notebooks" / "digits.html").read_text("utf-8")
    assert page.count('<div class="output"><table>') == 1
    assert page.count('<div class="output"><svg') == 1
    assert "FederatedDataset(digits: 20 clients" in page


@pytest.mark.docs
def test_every_public_name_has_a_place_in_the_reference(site):
    page = (site / "reference" / "python.html").read_text("utf-8")
    for name in fedgram.__all__:
        assert name == "__version__" or f'id="fedgram.{name}"' in page, name
    for name in fedgram.checks.__all__:
        assert f'id="fedgram.checks.{name}"' in page, name


# What newcomers ask first, and where the answer is.
ANSWERS = {
    "How do I use my own data?": "tutorial.html#images-in-folders",
    "Which method?": "choosing.html",
    "What leaves my site?": "faq.html#what-leaves-my-site",
    "How do I delete a patient?": "forgetting.html",
    "How do I cite?": "cite.html",
    "How do we upgrade, over years?": "operations.html#a-new-version-of-fedgram",
    "What if a site is off?": "operations.html#a-site-is-away",
    "When do certificates end?": "operations.html#certificates-and-keys-that-end",
    "What do we show an auditor?": "operations.html#what-to-show-an-auditor",
    "How do we back up the ledger?": "operations.html#back-up-and-restore",
}


@pytest.mark.docs
@pytest.mark.parametrize("question", ANSWERS)
def test_an_answer_is_two_clicks_from_the_first_page(site, question):
    def linked(page):
        links = Links()
        links.feed((site / page).read_text("utf-8"))
        inside = {f"{page}{one}" if one.startswith("#") else one for one in links.targets}
        return {one for one in inside if ".html" in one and "/" not in one}

    first = linked("index.html")
    second = {one for page in first for one in linked(page.partition("#")[0])}
    assert ANSWERS[question] in first | second
