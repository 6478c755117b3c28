"""What a network costs that is solved layer by layer, beside one that is trained.

python -m benchmarks.layer_costs measure docs/results/layer-costs.json
python -m benchmarks.layer_costs render docs/results/layer-costs.json docs/benchmarks/deep.md

On the embedded digits, with one hidden layer, which needs no torch. Operations and bytes are those
of the record, and do not depend on the machine. Seconds are CPU seconds of one process, the median
of a few runs that take turns; rates are given, so there are no pilots.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from fedgram import PartitionPlan, create_method, federate, load_dataset, run

BEGIN, END = "<!-- costs: begin -->\n", "<!-- costs: end -->\n"
WIDTH, ROUNDS, CLIENTS = 128, 20, 20
TURNS = 3
SOLVED = {"layers": f"dense {WIDTH}"}
TRAINED = {"hidden": WIDTH, "rounds": ROUNDS, "rate": 0.1}
METHODS: dict[str, dict[str, Any]] = {
    "fedacnnl": SOLVED,
    "pfedacnnl": SOLVED,
    "fedavg": TRAINED,
    "pfedme": {**TRAINED, "rate": 0.03},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("measure", "render"))
    parser.add_argument("stored", type=Path)
    parser.add_argument("page", type=Path, nargs="?")
    given = parser.parse_args()
    if given.part == "measure":
        given.stored.parent.mkdir(parents=True, exist_ok=True)
        given.stored.write_text(json.dumps(measured(), indent=2) + "\n", encoding="utf-8")
        return
    text = given.page.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    table = rendered(json.loads(given.stored.read_text(encoding="utf-8")))
    given.page.write_text(before + BEGIN + table + END + rest.split(END)[1], encoding="utf-8")


def measured() -> dict[str, Any]:
    """Return operations, bytes and seconds of each method, over all clients."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in METHODS}
    for _ in range(TURNS):
        for name, settings in METHODS.items():
            found[name].append(once(name, settings))
    samples = sum(len(site.train) for site in everybody().members)
    rows = {
        name: {**turns[0], "seconds": statistics.median(turn["seconds"] for turn in turns)}
        for name, turns in found.items()
    }
    return {"clients": CLIENTS, "samples": samples, "width": WIDTH, "rounds": ROUNDS, "rows": rows}


def everybody() -> Any:
    return federate(load_dataset("digits"), PartitionPlan(clients=CLIENTS))


def once(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    federation = everybody()
    begun = time.process_time()
    result = run(create_method(name, settings), federation)
    asks = [ask for ask in result.record.exchanges if ask.phase != "score"]
    return {
        "operations": sum(ask.flops for ask in asks),
        "up": sum(ask.bytes_up for ask in asks),
        "down": sum(ask.bytes_down for ask in asks),
        "exchanges": sum(ask.phase == "train" for ask in asks),
        "seconds": round(time.process_time() - begun, 3),
        "client_mean": result.accuracy["client_mean"],
    }


def rendered(stored: dict[str, Any]) -> str:
    """Return the table in Markdown."""
    rows = stored["rows"]
    intro = (
        f"{stored['samples']:,} digits at {stored['clients']} clients, one hidden layer of "
        f"{stored['width']}, {stored['rounds']} rounds of those that are trained, with given rates "
        "(`python -m benchmarks.layer_costs`). Seconds are CPU seconds with the scoring.\n\n"
    )
    columns = ("exchanges", "10^6 operations at clients", "kB up", "kB down", "seconds")
    head = f"| method | {' | '.join(columns)} | client mean, % |\n"
    lines = [
        f"| `{name}` | {row['exchanges']} | {row['operations'] / 1e6:,.0f} "
        f"| {row['up'] / 1e3:,.0f} | {row['down'] / 1e3:,.0f} "
        f"| {row['seconds']:.2f} | {100 * row['client_mean']:.1f} |\n"
        for name, row in rows.items()
    ]
    return intro + head + "|---" * 7 + "|\n" + "".join(lines)


if __name__ == "__main__":
    main()
