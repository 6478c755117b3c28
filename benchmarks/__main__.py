"""Run a benchmark by its name: python -m benchmarks NAME [--json] [--quick].

--json stores the result under benchmarks/results; `page` writes docs/speed.md from what is stored.
"""

from __future__ import annotations

import importlib
import sys

# The module of each benchmark; it has a function `main(arguments)`.
BENCHMARKS = {
    "kernel": "benchmarks.kernel",
    "limit": "benchmarks.limit",
    "page": "benchmarks.speed_page",
}


def main() -> None:
    name, *arguments = sys.argv[1:] or [""]
    if name not in BENCHMARKS:
        sys.exit(f"expected one of {', '.join(BENCHMARKS)}, got {name!r}\n{__doc__}")
    importlib.import_module(BENCHMARKS[name]).main(arguments)


if __name__ == "__main__":
    main()
