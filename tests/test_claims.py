"""Verdicts on the papers' claims follow from the measured numbers, and say what is missing."""

import copy
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # benchmarks are no part of the package
try:
    from benchmarks import paper_studies
    from benchmarks.claims import __main__ as page
    from benchmarks.claims import apfl, fedhip, layers, theorems
    from benchmarks.claims.records import Records, ranged, rises_then_falls
finally:
    sys.path.remove(str(ROOT))

STATED = page.tomllib.loads((Path(page.__file__).parent / "claims.toml").read_text("utf-8"))
CLAIMS = STATED["claims"]
HEADLINES = (  # of the abstracts and of the sections on efficiency
    *("5.79 to 20.97", "80 %", "95 %", "1.10 to 15.45", "83 to 99 %", "4 to 8 points"),
    *("93.00 %", "59.27 %", "99.30 %", "95.93 %", "1.00 %", "6.00 %", "7.83", "21.73"),
    *("Theorem 1", "Theorem 2", "Theorem 3", "Theorem 4", "efficiency"),
)
POINTS = st.floats(-50, 50, allow_nan=False)


@pytest.fixture(scope="module")
def stored():
    return Records()


@pytest.fixture
def records(stored):
    return copy.deepcopy(stored)


def found(name, records):
    return page.finding(name, records, CLAIMS[name], STATED)


def change(records, study, method, measure, factor):
    """Multiply the numbers of a row."""
    rows = records.studies[study]["rows"]
    changed = [row for row in rows if (row["method"], row["measure"]) == (method, measure)]
    assert changed
    for row in changed:
        row["mean"] *= factor


def test_every_claim_is_judged_and_every_headline_number_is_a_claim():
    assert set(page.FINDINGS) == set(CLAIMS)
    texts = " ".join(claim["text"] for claim in CLAIMS.values())
    assert [number for number in HEADLINES if number not in texts] == []


def test_no_claim_is_open(stored):
    assert [name for name in CLAIMS if found(name, stored).verdict == "open"] == []


@given(st.lists(POINTS, min_size=1), POINTS, POINTS)
def test_counts_in_a_range_add_up(numbers, least, most):
    least, most = sorted((least, most))
    verdict = ranged(numbers, least, most)
    within = sum(least <= number <= most for number in numbers)
    assert verdict.startswith("contradicted") == (within == 0)
    assert (verdict == "reproduced") == (within == len(numbers))
    if verdict != "reproduced":
        counts = [int(word) for word in verdict.split() if word.isdigit()]
        assert counts == [
            within,
            len(numbers),
            sum(number > most for number in numbers),
            sum(number < least for number in numbers),
        ]


@given(st.lists(POINTS, min_size=1, unique=True), st.lists(POINTS, min_size=1, unique=True))
def test_a_rise_and_then_a_fall_is_found(first, second):
    top = max(first + second) + 1
    numbers = [*sorted(first), top, *sorted(second, reverse=True)]
    assert rises_then_falls(dict(enumerate(numbers)))
    assert not rises_then_falls(dict(enumerate(sorted(numbers))))
    assert not rises_then_falls(dict(enumerate([*numbers, top - 0.5, top - 0.25])))


def test_the_verdicts_on_costs_change_with_the_costs(records):
    assert found("fedhip-communication", records).verdict == "reproduced"
    change(records, fedhip.COSTS, "fedhip", "bytes", 10)
    assert found("fedhip-communication", records).verdict == "contradicted"
    assert found("apfl-communication-20", records).verdict == "reproduced"
    change(records, apfl.COSTS, "apfl", "bytes", 3)
    assert found("apfl-communication-20", records).verdict == "contradicted"


def test_the_papers_form_is_judged_and_not_ours(records):
    """Linear streams cost less than the paper's; what they save is not what the paper claims."""
    before = found("apfl-computation-20", records)
    change(records, apfl.COSTS, "apfl-linear", "flops", 1e-3)
    after = found("apfl-computation-20", records)
    assert after.measured != before.measured
    assert after.verdict == before.verdict


def test_points_are_against_the_best_trained_row(records):
    words = found("apfl-costs", records).measured
    best = max(
        records.value(apfl.COSTS, row)
        for row in records.methods(apfl.COSTS)
        if row.startswith(("fedavg", "fedpcl"))
    )
    assert f"{records.value(apfl.COSTS, 'apfl') - best:+.1f} points" in words


def test_an_insensitive_parameter_changes_less_than_a_point(records):
    assert found("apfl-activations", records).verdict == "reproduced"
    rows = records.studies["activation-sensitivity"]["rows"]
    row = next(row for row in rows if row["value"] == "tanh")
    row["mean"] -= 2
    assert found("apfl-activations", records).verdict == "partly reproduced"


def test_each_setting_counts_once(records):
    keys = [setting.key() for setting in layers.recorded(records)]
    assert len(keys) == len(set(keys))
    again = copy.deepcopy(records.all_studies["fedacnnl-convex"])
    records.all_studies["fedacnnl-gain-convex"] = again
    assert len(list(layers.recorded(records))) < len(keys)  # the other partitions are gone


def test_a_study_that_lacks_runs_is_named(records):
    records.all_studies["lambda-ablation"]["missing"] = 2
    del records.studies["lambda-ablation"]
    lacking = found("apfl-balance", records)
    assert lacking.verdict == "open"
    assert "2 of its runs were not made" in lacking.command
    records.all_studies["fedacnnl-mlp"]["missing"] = 1
    assert "1 of its runs were not made" in found("fedacnnl-gain", records).command
    rows = records.all_studies["fedhip-alpha"]["rows"]
    rows[:] = [{**row, "method": "afl"} for row in rows]
    assert "(without rows `fedhip`)" in records.command("fedhip-alpha")


def test_rows_and_partitions_that_were_left_out_are_named(stored):
    study = copy.deepcopy(stored.all_studies["lambda-ablation"])
    assert paper_studies.left_out(study) == []
    study["rows"] = [
        row
        for row in study["rows"]
        if row["method"] != "dual" and row["partition"] != "dirichlet 0.5"
    ]
    assert paper_studies.left_out(study) == ["rows `dual`", "partitions dirichlet 0.5"]


def test_the_measured_theorems_are_those_that_are_stored():
    known = json.loads((ROOT / "docs/results/theorems.json").read_text("utf-8"))
    assert theorems.efficiency() == known["efficiency"]
    assert theorems.joiners() == known["joiners"]
    assert theorems.invariance("fedhip") == known["invariance"]["fedhip"] == 1
