"""The table of methods in docs/methods.md is made from the docstrings of the methods."""

import inspect
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedgram.cli import main
from fedgram.federation.method import find_method, names, summary

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"
BEGIN, END = "<!-- methods: begin -->\n", "<!-- methods: end -->\n"
RENEW = "FEDGRAM_RENEW_SNAPSHOTS"


def exchanges(kind):
    """Return the paragraph "Exchanges: ..." of a method's docstring, as one line."""
    found = re.search(r"^Exchanges: (.+?)(?=\n\n|\Z)", inspect.getdoc(kind), re.M | re.S)
    return " ".join(found.group(1).split()) if found else ""


def rendered(kinds):
    """Return the table of these methods, by name, in Markdown."""
    rows = [
        f"| `{name}` | {summary(kind)} | {exchanges(kind)} |\n".replace("``", "`")
        for name, kind in kinds.items()
    ]
    return "".join(["| name | what it is | exchanges |\n", "|---|---|---|\n", *rows])


def stored(page):
    """Return what is between the two markers of a page."""
    return page.split(BEGIN)[1].split(END)[0]


KINDS = {name: find_method(name) for name in names()}


def test_the_table_in_the_page_is_that_of_the_docstrings():
    page, table = PAGE.read_text(encoding="utf-8"), rendered(KINDS)
    if os.environ.get(RENEW):
        page = page.replace(BEGIN + stored(page) + END, BEGIN + table + END)
        PAGE.write_text(page, encoding="utf-8")
    assert stored(page) == table, (
        f"docs/methods.md differs from the docstrings; renew it: {RENEW}=1 pytest -n 0 "
        "tests/methods/test_table.py; git diff docs/methods.md"
    )


@pytest.mark.parametrize("name", names())
def test_each_method_describes_its_exchanges_in_one_sentence(name):
    text = exchanges(KINDS[name])
    assert text.endswith(".")
    assert "|" not in text + summary(KINDS[name])


def test_a_changed_docstring_changes_the_table():
    class Other:
        """Another method.

        Exchanges: one sum of
        counts.

        More.
        """

    table = rendered({"other": Other})
    assert table.endswith("| `other` | Another method. | one sum of counts. |\n")
    assert table != rendered({"other": KINDS["afl"]})


def test_the_list_of_methods_fits_80_columns():
    done = CliRunner().invoke(main, ["methods"], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    assert max(map(len, done.output.splitlines())) <= 80
