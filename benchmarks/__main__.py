"""Run a benchmark by its name, or check all of them.

python -m benchmarks kernel|limit|clients|wide|bytes|papers|gradients|ray|flower [--json] [--quick]
python -m benchmarks check          small forms of those that take seconds; fails on a regression
                                    that three runs have
python -m benchmarks pages          write docs/speed.md, scale.md and the tables of lab pages

Every figure is a ratio within one run, of processor times that were taken in turns, or a count.
--json stores the result under benchmarks/results. Further measurements are modules of their own,
named in the pages that quote them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import measure

NAMES = ("kernel", "limit", "clients", "wide", "bytes", "papers", "gradients", "ray", "flower")
# Those whose small form takes seconds; papers and limit need data, flower an extra.
CHECKED = ("kernel", "clients", "wide", "bytes", "gradients", "ray")


TRIES = 3  # other programs slow single turns: what is really slower is so in every run


def repeated(run: Callable[[], list[str]]) -> list[str]:
    """Return the regressions of the last run, unless one run has none.

    >>> found = [["slower"], [], ["slower"]]
    >>> repeated(found.pop)
    []
    >>> repeated(lambda: ["slower"])
    ['slower']
    """
    for _ in range(TRIES):
        found = run()
        if not found:
            break
    return found


def main() -> None:
    name, *arguments = sys.argv[1:] or [""]
    if name == "pages":
        importlib.import_module("benchmarks.speed_page").main(arguments)
        importlib.import_module("benchmarks.lab_pages").write(*map(Path, arguments))
        return
    if name != "check" and name not in NAMES:
        expected = ", ".join((*NAMES, "check", "pages"))
        sys.exit(f"expected one of {expected}, got {name!r}\n{__doc__}")
    worse: list[str] = []
    for each in CHECKED if name == "check" else (name,):
        try:
            module = importlib.import_module(f"benchmarks.{each}")
        except ImportError as error:
            print(f"{each}: left out ({error})")
            continue
        print(f"# {each}")
        if name != "check":
            measure.run(each, module, arguments)
            continue
        worse += repeated(lambda each=each, module=module: measure.run(each, module, ["--quick"]))
    if name == "check" and worse:
        sys.exit("clearly slower or larger than expected:\n" + "\n".join(worse))


if __name__ == "__main__":
    main()
