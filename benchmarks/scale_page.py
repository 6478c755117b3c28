# ruff: noqa: E501  # the lines of the page are long
"""The page docs/scale.md, from the stored results of the benchmarks `clients`, `ray`, `flower`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import ceil, log
from typing import Any

from fedgram.experiments.record import MOST_LISTED

Stored = Mapping[str, Any]

LINK = 1e9 / 8  # bytes per second of the server's link that is assumed on the page
FAN_IN = 100  # children of a node of a tree of servers
MOST_BOUND = 127  # of 8-bit features
UNIT = 21  # integer of a feature of size one on the grid of 8 bits

HEAD = """\
# Scale

Made by `python -m benchmarks pages` from [clients.json](../benchmarks/results/clients.json); no number here was typed.

Measured on {cpu} with one thread of BLAS ({blas}). Times are those of the processor, medians of runs that
take turns. Compare ratios: seconds of another machine differ.
"""

ONE_PROCESS = """\
## One process: what a client costs

The same {samples:,} training samples of {features} features, partitioned over 10 to {most:,} clients, with `afl`. *Fit* is
the sum of all clients' statistics and one solve. *Run* is `fedgram.run`: with scores of every client, records and
digests. The shared digest is the same in all rows.
"""

HOW = """\
Clients are not computed one by one. Statistics of a union of samples are the sum of the statistics, to the bit. So a
step that is declared with `@statistics_step` (`federation/union_step.py`) is summed over batches of clients.
Bytes are those of each client's encoded contribution: column sums of squares give the integer type of its Gram matrix,
class sums that of its moment (`core/statistics_sizes.py`). Other exact sums, such as the residual sums of `logistic`
and `auto`, are declared with `@summed_step`. Clients that all have one model (`@for_all_clients`) are scored together.

What is not a sum over samples, such as predictions for left-out samples, is computed for clients with equally many
samples in stacks of arrays (`@stacked_step`, `federation/stacked_step.py`). Bits of a float product depend on its
shape. So each client has a product of its own shape, as alone, and a factorization of its own
([decision 0009](decisions/0009-float64-solves.md)): its results do not depend on the others of a stack.

A law compares all of it with the same clients one by one. A client that causes an error is searched for one by one, so
that the message names it.

Sums of features without a grid (`grid.bits = "off"`) depend on the order of additions. They are made one by one.

Of more than {most_listed:,} clients, the folder of a run holds the scores of all together, not a line, counts and a model for
each. The returned record has them in any case.
"""

METHODS = """\
Whole runs of {clients:,} clients with {samples:,} samples of {features} features in all, skewed by classes (Dirichlet 0.3), without
the test of each model on the test samples of all clients. *One by one* is the same without unions and stacks, in turns.
On average {load:.0f} programs wanted the machine's {cores} processors, which makes each slower: compare the two columns.
"""

PAPER = """\
## Scale on paper

What follows is arithmetic with the constants below: bytes of one encoded contribution, and the seconds of one core to
make it at the client, and to decode, check and add it at the server.
"""

PAPER_CASES = """\
Three cases. The server has one core and a link of 1 Gbit/s. A tree of servers has {fan_in} children for each node; each node
adds what its children send and passes on one sum, so the root gets at most {fan_in} contributions.
"""

LIMITS = """\
- **What breaks first** is in the last column. A check costs about as much as a solve (`Statistics.validate`). Any node of a
  tree can make it, or several cores. Additions take little: one core adds {adds}.
- **Exactness** does not break: 64-bit sums of 8-bit features are exact up to {most_samples:.1e} samples.
- **Sums are associative to the bit.** So nodes of a tree, batches and restarts change no digest.
- **Memory** of the server is one total ({total} for `hospital`), whatever the number of clients.
- **Privacy** breaks before anything else for phones: the Gram matrix of one sample *is* the sample. Secure sums
  ([security.md](security.md)) need messages between clients of a cohort. Their cost grows with the square of the
  cohort, so a million phones are many cohorts (`python -m benchmarks.secure`).
- **Flower's SuperLink and Ray**: {elsewhere}
"""


def page(stored: Stored, ray: Stored | None, flower: Stored | None) -> str:
    """Return the page, with what Ray and Flower carry where that was measured."""
    elsewhere = _elsewhere(ray, flower)
    return "\n".join(_lines({**stored, "elsewhere": elsewhere})).rstrip() + "\n"


def _lines(stored: Stored) -> Iterator[str]:
    about, rows = stored["about"], stored["clients"]
    yield HEAD.format(cpu=stored["machine"]["processor"], blas=", ".join(about["blas"]))
    yield ONE_PROCESS.format(
        samples=stored["samples"], features=stored["features"], most=rows[-1]["clients"]
    )
    yield from _table(
        ["clients", "fit, s", "fit against 10 clients", "more per client, µs", "run, s",
         "run per client, µs", "beyond 10 clients, µs"],
        map(_client_cells, rows),
    )  # fmt: skip
    yield from _goals(stored)
    yield HOW.format(most_listed=MOST_LISTED)
    yield "### Other methods\n"
    yield METHODS.format(**stored["methods"])
    yield from _table(
        ["method", "µs per client", "one by one, µs"],
        (
            [f"`{one['method']}`", f"{one['microseconds']:,.0f}", f"{one['one_by_one']:,.0f}"]
            for one in stored["methods"]["rows"]
        ),
    )
    yield PAPER
    yield from _table(
        ["contribution", "features", "classes", "samples", "bytes", "make, s", "decode, s",
         "check, s", "add, s"],
        (_constant_cells(*item) for item in stored["constants"].items()),
    )  # fmt: skip
    yield from _on_paper(stored)


def _client_cells(row: Stored) -> list[str]:
    return [
        f"{row['clients']:,}",
        f"{row['fit']['median']:.3f} ({row['fit']['least']:.3f} to {row['fit']['most']:.3f})",
        f"{row['fit_ratio']:.2f}",
        f"{row['fit_microseconds']:.2f}",
        f"{row['run']['median']:.3f} ({row['run']['least']:.3f} to {row['run']['most']:.3f})",
        f"{row['run_microseconds']:,.1f}",
        f"{max(0.0, row['run_beyond']):.1f}",
    ]


def _goals(stored: Stored) -> Iterator[str]:
    """Compare with what was aimed at."""
    rows = stored["clients"]
    fits = [r["clients"] for r in rows if r["fit_ratio"] > 2 and r["fit_microseconds"] > 2]
    runs = [r["clients"] for r in rows if r["run_beyond"] > 20]
    slow, many, kept = stored["one_by_one"], stored["million"], stored["memory"]
    worst = max(kept["bytes_per_client"].values())
    listed = ", ".join(f"{key} {value:.0f}" for key, value in kept["bytes_per_client"].items())
    yield (
        "Aimed at: fit within twice the time of 10 clients, or 2 µs per client: "
        f"{_met(fits)}. At most 20 µs per client beyond 10 clients for the whole run: {_met(runs)}, between the fastest runs of each: other programs make runs slower, never faster. "
        f"At most 200 bytes per client beyond the samples: {_met([worst] if worst > 200 else [])} "
        f"({listed}, with {kept['clients']:,} clients).\n"
    )
    yield (
        f"One by one, {slow['clients']:,} clients take {slow['ratio']:.0f} times as long. "
        f"{many['clients']:,} clients of one training sample, {many['features']} features: partitioned in "
        f"{many['partition_seconds']:.1f} s ({many['partition_microseconds']:.1f} µs per client more than for 10 clients), run in "
        f"{many['run_seconds']:.1f} s ({many['run_microseconds']:.1f} µs per client).\n"
    )


def _met(missed: list[float]) -> str:
    return f"**missed** ({', '.join(f'{one:,.0f}' for one in missed)})" if missed else "met"


def _constant_cells(name: str, one: Stored) -> list[str]:
    times = (f"{one[key]:.2g}" for key in ("make", "decode", "validate", "add"))
    return [
        name, str(one["width"]), str(one["classes"]), f"{one['samples']:,}", f"{one['bytes']:,}",
        *times,
    ]  # fmt: skip


def _on_paper(stored: Stored) -> Iterator[str]:
    known = stored["constants"]
    yield PAPER_CASES.format(fan_in=FAN_IN)
    cases = [
        ("a million phones", 10**6, "phone", 50),
        ("a thousand hospitals", 10**3, "hospital", 10_000),
        ("10^10 samples, at 1,000 sites", 10**3, "hospital", 10**7),
    ]
    yield from _table(
        ["case", "sent by each client", "received in all", "1 Gbit/s link, s", "one core: decode and add, s",
         "one core: check, s", "tree of servers", "breaks first at one server"],
        (_case(*case, known) for case in cases if case[2] in known),
    )  # fmt: skip
    total = known["hospital"] if "hospital" in known else known["phone"]
    width = total["width"]
    yield LIMITS.format(
        adds=" and ".join(
            f"{1 / one['add']:,.0f} contributions of a {name} per second"
            for name, one in known.items()
            if name != "wide"
        ),
        most_samples=(2**63 - 1) // MOST_BOUND**2,
        total=_bytes(8 * (width * (width + 1) / 2 + width * total["classes"])),
        elsewhere=stored["elsewhere"],
    )


def _case(name: str, clients: int, shape: str, samples: int, known: Stored) -> list[str]:
    one = known[shape]
    size = _size(one, samples)
    link = clients * size / LINK
    adding = clients * (one["decode"] + one["add"])
    checking = clients * one["validate"]
    slowest = max((link, "the link"), (checking, "the check"), (adding, "decoding"))
    levels = ceil(log(clients) / log(FAN_IN))
    return [
        name, _bytes(size), _bytes(clients * size), f"{link:,.0f}", f"{adding:,.0f}",
        f"{checking:,.0f}", f"{levels} levels", f"{slowest[1]} ({_duration(slowest[0])})",
    ]  # fmt: skip


def _size(one: Stored, samples: int) -> float:
    """Return the bytes with another number of samples: the Gram matrix may need wider integers."""
    entries = one["width"] * (one["width"] + 1) / 2
    return float(one["bytes"] + entries * (_entry(samples) - _entry(one["samples"])))


def _entry(samples: int) -> int:
    """Return the bytes of an entry, if the largest is a feature of twice the unit mean square."""
    largest = 2 * samples * UNIT**2
    return 2 if largest < 2**15 else 4 if largest < 2**31 else 8


def _elsewhere(ray: Stored | None, flower: Stored | None) -> str:
    """Return what a SuperLink and Ray carry, and how long that takes for a million clients."""
    texts = []
    if flower:
        rates = flower["messages"]
        short = next(iter(rates.values()))
        listed = " and ".join(f"{rate:,.0f} messages of {name}" for name, rate in rates.items())
        texts.append(
            f"one server with Flower's message store and engine carries {listed} per second (a simulation, requests and "
            f"answers counted). One exchange with a million phones is two million messages: at least "
            f"{_duration(2e6 / short)} before any content, so it needs several servers. A thousand hospitals take {_duration(2e3 / short)}"
        )
    if ray:
        rate = ray["tasks_per_second"]
        texts.append(
            f"Ray carries out {rate:,.0f} empty tasks per second on this machine. fedgram sends one task for each worker and sum, "
            "not for each client, so Ray limits no number of clients"
        )
    return (
        ". ".join(text[0].upper() + text[1:] for text in texts) + "." if texts else "not measured."
    )


def _table(head: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def _bytes(number: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} B"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
