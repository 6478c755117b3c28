"""The numbers of a study for other programs: CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fedgram.experiments.seeds import mean_and_std
from fedgram.experiments.study.curves import costs, sensitivities
from fedgram.experiments.study.summary import CellValue, Summary, Value
from fedgram.runtime.text import csv_cell

FORMAT = 1
_COLUMNS = (
    *("dataset", "clients", "partition", "method", "parameter", "value", "measure"),
    *("runs", "of", "mean", "deviation", "last_mean", "last_deviation"),
    *("chosen_round", "rounds", "rank", "published"),
)


def table_csv(summary: Summary) -> str:
    """Return a line per cell and measure."""
    out = io.StringIO()
    writer = csv.DictWriter(out, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for number in summary.numbers:
        plain = _plain(number, summary)
        writer.writerow({key: csv_cell(plain[key]) for key in _COLUMNS})
    return out.getvalue()


def table_json(summary: Summary) -> str:
    """Return all numbers, the runs behind them, and published numbers."""
    content = {
        "format": FORMAT,
        "title": summary.table.title,
        "complete": not summary.missing,
        "missing": [run.name for run in summary.missing],
        "failed": [
            {"run": run.name, "error": summary.failed[run.digest]}
            for run in summary.runs
            if run.digest in summary.failed
        ],
        "versions": summary.versions,
        "numbers": [
            {**_plain(number, summary), "seeds": _seeds(number, summary)}
            for number in summary.numbers
        ],
        "curves": [picture.to_dict() for picture in (*sensitivities(summary), *costs(summary))],
        "published": [
            {"source": paper.source, "backbone": paper.backbone, "remarks": list(paper.remarks)}
            for paper in summary.cited
        ],
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _plain(number: CellValue, summary: Summary) -> dict[str, Any]:
    finished = list(summary.finished(number.cell).values())
    return {
        **asdict(number.cell.place),
        "clients": number.cell.plan.clients,
        "measure": number.measure.name,
        "runs": len(finished),
        "of": len(number.cell.runs),
        **_mean_and_std("", number.chosen),
        **_mean_and_std("last_", number.last),
        "chosen_round": _mean([record.chosen.round for record in finished]),
        "rounds": _mean([record.last.round for record in finished]),
        "rank": number.rank,
        "published": number.published,
    }


def _mean_and_std(prefix: str, value: Value | None) -> dict[str, float | None]:
    return {
        f"{prefix}mean": value.mean if value else None,
        f"{prefix}deviation": value.deviation if value else None,
    }


def _mean(numbers: Sequence[int]) -> float | None:
    found = mean_and_std(float(number) for number in numbers)
    return found and found[0]


def _seeds(number: CellValue, summary: Summary) -> list[dict[str, Any]]:
    """Return the finished runs behind a number."""
    return [
        {
            "seed": seed,
            "run": record.folder,
            "chosen": number.chosen.by_seed.get(seed) if number.chosen else None,
            "chosen_round": record.chosen.round,
            "last": number.last.by_seed.get(seed) if number.last else None,
            "rounds": record.last.round,
            "seconds": record.summary.seconds,
            "shared_digest": record.summary.shared_digest,
            "model_digest": record.summary.model_digest,
        }
        for seed, record in summary.finished(number.cell).items()
    ]
