"""Write docs/speed.md and docs/scale.md from the stored results.

python -m benchmarks pages [FOLDER]
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import scale_page
from benchmarks.measure import RESULTS, shown

DOCS = Path(__file__).parent.parent / "docs"
HEAD = """# Speed

Made by `python -m benchmarks pages` from the files in `benchmarks/results`; no number here was
typed. Every figure is a ratio of processor times within one run, on one thread, in turns: the
median, with the smallest and largest ratio in brackets.

## Ways of exact products

Features of 8 bits are multiplied by int8 instructions where the machine has them. All ways give the
same integers ([exactness.md](exactness.md)), so the choice changes no byte. `fedgram info` shows
which ways a machine has and why others are not used; the environment variable `FEDGRAM_KERNEL`
forces one.
"""
RUNS = """CIFAR-100 features (1,280), 100 clients, Dirichlet 0.1. *lift and Gram*: all training
samples lifted to 4,096 features, and their statistics. *apfl*: fit, personalize and score with that
lift as primary stream. *auto*: one exchange, high effort (a lift to 4,096). *bare calls*: lift,
Gram, Cholesky, dual solves and scores of the same samples by the same products, as one script.
*blas*: the same version with `FEDGRAM_KERNEL=blas`. *before*: the version before int8 products.
*fedavg, 200 rounds*: our own, rate given, scaled from the difference of 10 and 20 rounds.
*torch loop, 200 rounds*: a model, an optimizer and a loader for each client, scaled from 2 rounds.

The goals for *auto* are 0.15 of *fedavg* and 0.03 of the *torch loop*. By a profile, about half of
its time are predictions of left-out samples by all candidates, most of all triangular solves with
the factor of the lifted total, in single precision at three quarters of the speed of products. Then
come personal models and scores of all clients, lifts and Gram matrices, the ridge of the lifted
total and the softmax steps. With half of the left-out samples the first goal would be met, but
accuracy on these data was a little lower in nearly all of nine runs, so they are all used. One
tridiagonalization for all ridges was tried instead of five factorizations: 0.9 of the time with
Haswell kernels and 1.3 with SkylakeX; the Lanczos method is used instead
([decision 0009](decisions/0009-float64-solves.md)).
"""
TEXTS = {
    "wide": """## Many features

*Words* is the peak of memory above the samples, in units of 8 d² bytes, of a sum and one solve; at
most 3 are aimed at. *In a file* is `DiskStatistics`, with memory for strips of a quarter of the
matrix ([scale-out.md](scale-out.md)). The bytes of the sums are equal.
""",
    "bytes": """## Bytes

Bytes of a client's statistics: packed integers, and others over these. *Compressing* is its
processor time over that of computing the statistics.
""",
    "gradients": """## Rounds of FedAvg

A linear head: time of a round of fedgram's loop over that of others, without the first round.
""",
    "ray": """## Ray

Time of a fit of `afl` on Ray workers over that in one process. *Processor* is the processor time of
all processes, *path* that of this process and of the busiest worker, *wall* the time that passed on
the cores of this machine, which other programs share.
""",
    "flower": """## Flower

*Words* is the peak of the server's memory above that after all imports, in units of 8 d² bytes.
""",
    "papers": """## Accuracy on the backbone of this page

Mean accuracy of clients in %, CIFAR-100 features, 100 clients. Not comparable with papers that use
another backbone; see [results.md](results.md) for other settings.
""",
}
GOALS = {
    "SkylakeX": {"vnni / ssyrk": 0.30, "Statistics.of / ssyrk": 0.40},
    "Haswell": {"vnni / ssyrk": 0.17, "Statistics.of / ssyrk": 0.25},
}
ALWAYS = {"vnni / float64 F.T @ F": 0.15}
GOAL_SHAPES = ("8192 x 4096", "8192 x 1281")
RUN_GOALS = {
    "lift and Gram, now / lift and Gram, before": 0.25,
    "apfl, now / apfl, before": 0.3333,
    "apfl, now / apfl, bare calls, now": 1.25,
    "auto, now / fedavg, 200 rounds": 0.15,
    "auto, now / torch loop, 200 rounds": 0.03,
}


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0]) if arguments else DOCS
    text = "\n".join(lines()).rstrip() + "\n"
    (folder / "speed.md").write_text(text, encoding="utf-8")
    text = scale_page.page(_stored("clients"), _stored("ray"), _stored("flower"))
    (folder / "scale.md").write_text(text, encoding="utf-8")


def _stored(name: str) -> Any:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text("utf-8")) if path.is_file() else None


def lines() -> Iterator[str]:
    yield HEAD
    for path in sorted(RESULTS.glob("kernel-*.json")):
        yield from kernel_lines(json.loads(path.read_text("utf-8")))
    yield "## Whole runs"
    yield ""
    yield RUNS
    for path in sorted(RESULTS.glob("limit-*.json")):
        yield from limit_lines(json.loads(path.read_text("utf-8")))
    for name, rows in SECTIONS.items():
        paths = [RESULTS / f"{name}.json", *sorted(RESULTS.glob(f"{name}-*.json"))]
        stored = [json.loads(path.read_text("utf-8")) for path in paths if path.is_file()]
        if stored:
            yield TEXTS[name]
        for found in stored:
            yield from _machine(found)
            yield from rows(found)
            yield ""


def wide_rows(found: dict[str, Any]) -> Iterator[str]:
    yield from _head(
        "features", "words", "sum in a file / in memory", "solve in a file / in memory"
    )
    for width, each in found["widths"].items():
        yield _row(f"{int(width):,}", f"{each['words']:.2f}", *map(shown, each["ratios"].values()))


def bytes_rows(found: dict[str, Any]) -> Iterator[str]:
    yield from _head("data", "samples", "features", "bytes", "float64", "zstd", "compressing")
    for row in found["rows"]:
        name = Path(row["data"]).stem
        ratios = (f"{row[key]:.2f}" for key in ("dense", "sent", "time"))
        yield _row(name, str(row["samples"]), f"{row['features']:,}", f"{row['bytes']:,}", *ratios)


def gradients_rows(found: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{Path(found['data']).stem}: {found['clients']} clients, {found['samples']:,} training "
        f"samples, {found['features']:,} features, {found['classes']} classes. A round counts "
        f"{found['operations']:.2f} of the operations of plain steps.\n"
    )
    yield from _head("a client's part", "time over time", "ratio")
    for local, each in found["rounds"].items():
        for name, one in each["ratios"].items():
            yield _row(local, name, shown(one))
    yield (
        "\nThe embedded digits with the label skew of `fedgram run`, 3 epochs and batches of 128. "
        "*One client after the other* is fedgram without stacks of clients.\n"
    )
    yield from _head("clients", "samples of a client", "time over time", "ratio")
    for clients, each in found["small"].items():
        for name, one in each["ratios"].items():
            yield _row(clients, f"{each['smallest']} to {each['largest']}", name, shown(one))


def ray_rows(found: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{found['samples']:,} samples of {found['features']:,} features, {found['clients']} "
        f"clients, {found['cores']} cores. One digest for all, and after a killed worker: "
        f"{'yes' if found['one_digest'] else 'no'}.\n"
    )
    yield from _head("workers", "processor", "path", "wall")
    for row in found["workers"]:
        cells = ((row[key], *row[f"{key}_spread"]) for key in ("processor", "path", "wall"))
        yield _row(str(row["workers"]), *(f"{a:.2f} ({b:.2f} to {c:.2f})" for a, b, c in cells))


def flower_rows(found: dict[str, Any]) -> Iterator[str]:
    yield from _head("server", "words")
    for row in found["server"]:
        yield _row(f"{row['sites']} sites behind a pipe", f"{row['words']:.1f}")
    one = found["serverapp"]
    yield _row(f"ServerApp of {one['sites']} real sites, above few features", f"{one['words']:.1f}")
    one = found["simulation"]
    yield ""
    yield (
        f"{found['features']:,} features. A Flower simulation of {one['sites']} sites takes "
        f"{one['ratio']:.1f} times as long as one process, its start included (time that passed)."
    )


def papers_rows(found: dict[str, Any]) -> Iterator[str]:
    names = list(found["rows"][0]["accuracy"])
    yield from _head("partition", *names)
    for row in found["rows"]:
        sizes = "equal sizes" if row["equal"] else "each class on its own"
        cells = (f"{one['mean']:.2f} ± {one['sd']:.2f}" for one in row["accuracy"].values())
        yield _row(f"Dirichlet {row['dirichlet']:g}, {sizes}", *cells)
    yield ""
    yield f"Seeds: {found['seeds']}."


SECTIONS = {
    "wide": wide_rows,
    "bytes": bytes_rows,
    "gradients": gradients_rows,
    "ray": ray_rows,
    "flower": flower_rows,
    "papers": papers_rows,
}


def _head(*cells: str) -> Iterator[str]:
    yield _row(*cells)
    yield "|---" * len(cells) + "|"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def kernel_lines(found: dict[str, Any]) -> Iterator[str]:
    yield from _machine(found)
    goals = {**GOALS.get(found["machine"]["BLAS kernels"], {}), **ALWAYS}
    names = list(next(iter(found["shapes"].values())))
    yield "| time over time | goal | " + " | ".join(found["shapes"]) + " |"
    yield "|---" * (2 + len(found["shapes"])) + "|"
    short = []
    for name in names:
        goal = goals.get(name)
        cells = [shown(each.get(name)) for each in found["shapes"].values()]
        yield f"| {name} | {'' if goal is None else f'{goal:g}'} | " + " | ".join(cells) + " |"
        short += [
            f"{name} at {shape} is {each[name]['median']:.2f}, the goal {goal:g}"
            for shape, each in found["shapes"].items()
            if goal is not None and shape in GOAL_SHAPES and each[name]["median"] > goal
        ]
    yield ""
    yield "Goals are for the first two shapes. " + _verdict(short)
    unused = [f"{name}: {reason}" for name, reason in found["reasons"].items() if reason]
    if unused:
        yield "Not used: " + "; ".join(unused) + "."
    yield ""


def limit_lines(found: dict[str, Any]) -> Iterator[str]:
    yield from _machine(found)
    yield "| time over time | goal | ratio |"
    yield "|---|---|---|"
    short = []
    for name, each in found["ratios"].items():
        goal = RUN_GOALS.get(name)
        yield f"| {name} | {'' if goal is None else f'{goal:.2f}'} | {shown(each)} |"
        if goal is not None and each["median"] > goal:
            short.append(f"{name} is {each['median']:.2f}, the goal {goal:.2f}")
    yield ""
    yield _verdict(short)
    yield ""


def _machine(found: dict[str, Any]) -> Iterator[str]:
    machine = found["machine"]
    yield (
        f"{machine['processor']}, OpenBLAS kernels {machine['BLAS kernels']}, products by "
        f"`{machine['way of products']}`:"
    )
    yield ""


def _verdict(short: list[str]) -> str:
    return f"Short of the goal: {'; '.join(short)}." if short else "All goals are met."
