"""Tables: settings, the runs they need, marks, files, estimates."""

import csv
import io
import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.data.sources import load_dataset as load_data
from fedgram.errors import ConfigError, MemoryLimitError
from fedgram.experiments.measures import ACCURACIES, COSTS, SCORES, measure
from fedgram.experiments.run_record import RoundRecord, RunRecord, ScoreSummary
from fedgram.experiments.study import published, writers
from fedgram.experiments.study.cells import LONGEST_SLUG, Source, cells, needed, slug
from fedgram.experiments.study.curves import costs, sensitivities
from fedgram.experiments.study.settings import load, merged, preset, read
from fedgram.experiments.study.summary import ranks, summarize
from fedgram.experiments.study.time_estimate import Estimate, rounds_in_all, side_by_side, trial

DIGITS = Source.of(load_data("digits"))
SOURCES = {"digits": DIGITS}
HERE = Path(published.__file__).parent
PAPER = tomllib.loads((HERE / "published" / "apfl-table1.toml").read_text(encoding="utf-8"))


def table(**settings):
    axes = settings.pop("table", {})
    return read({"table": {"methods": ["local", "afl"], "seeds": 2, **axes}, **settings})


def test_data_sets_are_named_after_their_file_and_synthetic_ones_after_all_their_numbers():
    sources = ["digits", "data/cifar100.npz", "synthetic:0.5,0.25"]
    found = read({"table": {"methods": ["local"], "datasets": sources}})
    assert [one.name for one in found.datasets] == ["digits", "cifar100", "synthetic:0.5,0.25"]


def runs_of(found):
    return needed(cells(found, SOURCES))


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tabel": {}}, "tabel is not a setting; did you mean 'table'?"),
        ({"table": {"seed": 1}}, "table.seed is not a setting; did you mean 'seeds'?"),
        ({"table": {"seeds": []}}, "table.seeds"),
        ({"table": {"seeds": -1}}, "table.seeds"),
        ({"table": {"clients": ["many"]}}, "table.clients"),
        ({"table": {"datasets": []}}, "table.datasets: expected at least one value"),
        ({"table": {"datasets": [{"name": "x"}]}}, "expected a source"),
        ({"table": {"datasets": [{"source": "digits", "splt": 1}]}}, "did you mean 'split'?"),
        ({"table": {"datasets": ["digits", "a/digits.npz"]}}, "'digits' appears twice"),
        ({"table": {"partitions": ["dirichlt 0.1"]}}, "did you mean 'dirichlet'?"),
        ({"table": {"partitions": ["iid 3"]}}, "iid takes no number"),
        ({"table": {"partitions": ["dirichlet x"]}}, "'x' is not a number"),
        ({"table": {"partitions": [{"seed": 1}]}}, "table.partitions.seed is not a setting"),
        ({"table": {"methods": ["alf"]}}, "no method alf (did you mean 'afl'?)"),
        ({"table": {"methods": [{"ridge": 1.0}]}}, "has no method"),
        ({"table": {"methods": ["afl", "afl"]}}, "'afl' appears twice"),
        ({"table": {"show": "secnds"}}, "did you mean 'seconds'?"),
        ({"table": {"show": "client_mean/afl"}}, "unknown measure 'client_mean/afl'"),
        ({"table": {"show": "seconds/fedavg"}}, "no row is named 'fedavg'"),
        ({"table": {"curves": "round"}}, "did you mean 'rounds'?"),
        ({"table": {"keep_models": 1}}, "true or false"),
        ({"table": {"title": "two\nlines"}}, "a text of one line"),
        ({"every": 3}, "expected a table"),
        ({"data": {"seed": 1}}, "table.seeds"),
        ({"engine": {"seed": 1}}, "table.seeds"),
        ({"data": {"source": "x"}, "table": {"datasets": "y"}}, "leave one out"),
        ({"data": {"clients": 3}, "table": {"clients": 4}}, "leave one out"),
        (
            {"every": {"rigde": 1.0}},
            "every.rigde: no method has this parameter; did you mean 'ridge'?",
        ),
        ({"method": {"afll": {}}}, "did you mean 'afl'?"),
        ({"method": {"apfl": {"rigde": 1.0}}}, "did you mean 'ridge'?"),
        (
            {"sweep": {"parameter": "rigde", "values": [1]}},
            "no method has this parameter; did you mean 'ridge'?",
        ),
        ({"sweep": {"parameter": "ridge"}}, "a parameter and its values"),
        ({"sweep": {"parameter": "ridge", "values": []}}, "at least one"),
        ({"sweep": {"parameter": "ridge", "values": [{}]}}, "numbers or texts"),
        ({"sweep": {"parameter": "data.seed", "values": [1]}}, "table.seeds"),
    ],
)
def test_wrong_settings_are_refused_by_name(settings, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        table(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": {"split": "x"}}, "data.split"),
        ({"grid": {"bit": 8}}, "did you mean 'bits'?"),
        ({"table": {"methods": [{"method": "afl", "rigde": 1.0}]}}, "did you mean 'ridge'?"),
        ({"sweep": {"parameter": "lift.wdth", "values": [4]}}, "did you mean 'width'?"),
    ],
)
def test_what_only_a_run_can_judge_is_refused_before_any_is_begun(settings, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        cells(table(**settings), SOURCES)


def test_bad_toml_is_named(tmp_path):
    (tmp_path / "bad.toml").write_text("[table\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"bad\.toml: not valid TOML"):
        load(str(tmp_path / "bad.toml"))
    with pytest.raises(ConfigError, match="cannot be read"):
        load(str(tmp_path / "absent.toml"))


def test_later_settings_win_all_data_set_sweep_row():
    found = table(
        table={
            "datasets": [{"source": "digits", "method": {"afl": {"ridge": 3.0}}}],
            "methods": ["local", "afl", "fedhip", {"name": "mine", "method": "afl", "ridge": 5.0}],
            "seeds": 1,
        },
        every={"ridge": 1.0, "alpha": 7.0},
        method={"fedhip": {"ridge": 2.0}},
    )
    ridges = {cell.place.method: cell.runs[0].made.ridge for cell in cells(found, SOURCES)}
    assert ridges == {"local": 1.0, "afl": 3.0, "fedhip": 2.0, "mine": 5.0}
    alphas = [run.made.alpha for run in runs_of(found) if run.method == "fedhip"]
    assert alphas == [7.0]
    swept = merged_with_sweep(found)
    assert swept == {"local": {9.0}, "afl": {9.0}, "fedhip": {9.0}, "mine": {5.0}}


def merged_with_sweep(found):
    settings = {
        "table": {
            "datasets": [{"source": "digits", "method": {"afl": {"ridge": 3.0}}}],
            "methods": ["local", "afl", "fedhip", {"name": "mine", "method": "afl", "ridge": 5.0}],
        },
        "every": found.every,
        "sweep": {"parameter": "ridge", "values": [9.0]},
    }
    ridges: dict[str, set[float]] = {}
    for cell in cells(read(settings), SOURCES):
        ridges.setdefault(cell.place.method, set()).update(r.made.ridge for r in cell.runs.values())
    return ridges


def test_the_command_line_changes_a_table(tmp_path):
    file = tmp_path / "t.toml"
    file.write_text(
        '[table]\nmethods = ["afl", { name = "mine", method = "afl", ridge = 2.0 }]\n'
        '[data]\nsource = "absent.npz"\n',
        encoding="utf-8",
    )
    found = load(
        str(file), ["table.seeds=1", "every.ridge=4"], sources=["D=digits"], methods=["mine"]
    )
    (cell,) = cells(found, SOURCES)
    assert (cell.place.dataset, cell.place.method) == ("D", "mine")
    assert cell.runs[0].made.ridge == 2.0
    added = load(str(file), sources=["digits"], methods=["apfl"])
    assert [entry.method for entry in added.methods] == ["apfl"]


def test_a_method_that_is_missing_here_is_told_with_a_remedy():
    with pytest.raises(ConfigError, match=r"no method nosuch, another .*choose methods with -m"):
        table(table={"methods": ["nosuch", "afl", "another"]})


@given(
    st.dictionaries(
        st.sampled_from("abc"),
        st.integers() | st.dictionaries(st.sampled_from("xy"), st.integers()),
    )
)
def test_merging_with_itself_or_nothing_changes_nothing(settings):
    assert merged(settings, settings) == merged(settings, {}) == merged({}, settings) == settings


# Presets


def test_the_main_preset_is_the_papers_table():
    settings = tomllib.loads(preset("apfl-table1"))
    *rows, linear = settings["table"]["methods"]
    assert rows == [row["method"] for row in PAPER["rows"]]
    assert linear == "apfl-linear"
    assert settings["every"] == {"rounds": 200, "epochs": 3, "batch": 128, "rate": "auto"}
    assert settings["data"]["valid_fraction"] == 0.1
    assert settings["data"]["reserve_valid"] is True


def test_published_gains_are_those_the_paper_prints():
    *others, apfl = [row["values"] for row in PAPER["rows"]]
    best = [max(column) for column in zip(*others, strict=True)]
    gains = [round(ours - theirs, 2) for ours, theirs in zip(apfl, best, strict=True)]
    assert gains == [7.83, 9.09, 4.75, 6.45, 6.12, 3.22, 15.09, 3.99, 1.10, 15.45, 2.74, 1.59]


def test_tables_in_the_documentation_are_read(tmp_path):
    text = (Path(__file__).parents[3] / "docs" / "tables-of-results.md").read_text(encoding="utf-8")
    mine, paper = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    found = read(tomllib.loads(mine))
    assert len(cells(found, SOURCES)) == 2 * 4 * 2 * 4
    ridges = {run.slug: run.made.ridge for run in runs_of(found)}
    assert set(ridges.values()) == {1.0, 30.0}
    (tmp_path / "paper.toml").write_text(paper, encoding="utf-8")
    assert len(published.load(str(tmp_path / "paper.toml")).numbers) == 1


# Runs and their names


def test_names_of_rows_and_columns_do_not_make_a_new_run():
    plain = table(table={"partitions": ["dirichlet 0.1"]})
    named = table(
        table={
            "title": "another",
            "datasets": [{"name": "other", "source": "digits"}],
            "partitions": [{"name": "strong", "dirichlet": 0.1}],
            "methods": [{"name": "alone", "method": "local"}, {"name": "b", "method": "afl"}],
        },
        engine={"workers": 2},
    )
    assert [r.digest for r in runs_of(plain)] == [r.digest for r in runs_of(named)]
    assert not {r.name for r in runs_of(plain)} & {r.name for r in runs_of(named)}


CHANGES = [
    {"data": {"clients": 7}},
    {"data": {"dirichlet": 0.2}},
    {"data": {"partition": "iid"}},
    {"data": {"equal_sizes": True}},
    {"data": {"shards": 3}},
    {"data": {"split": "within-client"}},
    {"data": {"test_fraction": 0.3}},
    {"data": {"holdout_clients": 1}},
    {"grid": {"bits": 7}},
    {"grid": {"clip": 5.0}},
    {"engine": {"private": True}},
    {"engine": {"secure": True}},
    {"metrics": {"auroc": True}},
    {"metrics": {"global_test": True}},
    {"scoring": {"every": 2}},
    {"data": {"valid_fraction": 0.1}},
    {"method": {"afl": {"ridge": 1.0}}},
    {"method": {"afl": {"lift": {"width": 8}}}},
    {"table": {"methods": ["local"]}},
    {"table": {"methods": ["afl"], "seeds": [1]}},
]


def test_whatever_determines_a_run_is_in_its_digest():
    base = {"table": {"methods": ["afl"], "seeds": [0]}}
    digests = [runs_of(read(merged(base, change)))[0].digest for change in ({}, *CHANGES)]
    assert len(set(digests)) == len(digests)
    (run,) = runs_of(read(base))
    other = Source.of(load_data("digits"))
    assert other == DIGITS
    changed = {"digits": Source(**{**vars(other), "digest": "0" * 64})}
    assert needed(cells(read(base), changed))[0].digest != run.digest


def test_runs_of_apfl_linear_go_by_the_name_they_had_first():
    """A study of an earlier version, whose `apfl` had no lifts, does not run them again."""
    (linear,) = runs_of(read({"table": {"methods": ["apfl-linear"], "seeds": [0]}}))
    (lifted,) = runs_of(read({"table": {"methods": ["apfl"], "seeds": [0]}}))
    assert linear.digest == "150fadb1578c1373" != lifted.digest


def test_data_are_known_by_their_bytes_not_by_their_file(tmp_path, clusters):
    data = clusters()
    for name, x in (
        ("a", data.x),
        ("b", data.x),
        ("c", data.x + (np.arange(data.x.size) == 3).reshape(data.x.shape)),
    ):
        np.savez(tmp_path / f"{name}.npz", x=x, y=data.y)
    a, b, c = (Source.of(load_data(str(tmp_path / f"{name}.npz"))) for name in "abc")
    assert a == b
    assert a.digest != c.digest


def test_a_method_file_is_known_by_what_is_in_it(tmp_path):
    from fedgram.methods import afl

    file = tmp_path / "mine.py"
    text = Path(afl.__file__).read_text(encoding="utf-8")
    digests = []
    for extra in ("", "", "# changed\n"):
        file.write_text(text + extra, encoding="utf-8")
        digests.append(runs_of(table(table={"methods": [str(file)], "seeds": 1}))[0].digest)
    assert digests[0] == digests[1] != digests[2]


def test_rows_that_a_parameter_does_not_move_are_run_once():
    found = table(
        table={"methods": ["local", {"name": "primary", "method": "apfl", "balance": 0.0}, "apfl"]},
        sweep={"parameter": "balance", "values": [0.1, 0.5, 0.9]},
    )
    every = cells(found, SOURCES)
    assert len(every) == 9
    assert len(needed(every)) == 2 * (1 + 1 + 3)
    assert {cell.place.method for cell in every if not cell.moved} == {"local", "primary"}


def test_runs_of_the_first_seed_come_first():
    found = table(table={"partitions": ["iid", "shards 2"], "seeds": [5, 3]})
    seeds = [run.settings.engine.seed for run in runs_of(found)]
    assert seeds == [5, 5, 5, 5, 3, 3, 3, 3]
    assert all(run.settings.data.seed == run.settings.engine.seed for run in runs_of(found))


@given(st.text())
def test_slugs_are_safe_file_names_and_stay_themselves(text):
    found = slug(text)
    assert re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", found)
    assert len(found) <= LONGEST_SLUG
    assert slug(found) == found


# Marks


@given(
    st.lists(st.integers(0, 30).map(lambda n: n / 10), min_size=2, max_size=8),
    st.booleans(),
)
def test_ranks_are_those_of_the_two_best_different_values(means, higher):
    shown = [f"{mean:.1f}" for mean in means]
    found = ranks(means, shown, higher=higher)
    best, *rest = sorted(set(means), reverse=higher)
    for mean, rank in zip(means, found, strict=True):
        assert rank == (1 if mean == best else 2 if rest and mean == rest[0] else None)


# Files, from known numbers


def outcome(
    accuracy, *, last=None, rounds=1, chosen=1, seconds=1.0, sizes=(1000, 2000), version="1"
):
    def scored(number, share):
        summary = ScoreSummary(
            accuracy=dict.fromkeys(ACCURACIES, share),
            valid=float(number == chosen),
            clients=5,
            seconds=seconds,
            flops=5_000_000_000,
            bytes={"up": sizes[0], "down": sizes[1]},
            shared_digest="s",
            model_digest="m",
        )
        return RoundRecord(round=number, summary=summary)

    at_last = scored(rounds, accuracy if last is None else last)
    return record([scored(chosen, accuracy), at_last][chosen == rounds :], version=version)


def record(rounds, *, version="1"):
    return RunRecord(
        folder="runs/x",
        method="afl",
        parameters={},
        config={},
        versions={"fedgram": version},
        rounds=tuple(rounds),
    )


def summary_of(found, results, *, failed=(), papers=()):
    """Return the summary of a table; `results` are outcomes by row, then in the cells' order."""
    every = cells(found, SOURCES)
    outcomes = {}
    for row, given_ in results.items():
        runs = needed([cell for cell in every if cell.place.method == row])
        outcomes.update({run.digest: o for run, o in zip(runs, given_, strict=False) if o})
    return summarize(found, every, outcomes, [published.load(p) for p in papers], dict(failed))


@pytest.fixture(scope="module")
def small():
    found = table(
        table={
            "title": "50 % & more_of {it}",
            "methods": ["local", {"name": "afl_1", "method": "afl"}, "apfl", "fedhip"],
        },
        data={"clients": 4},
    )
    results = {
        "local": [outcome(0.5), outcome(0.5)],
        "afl_1": [outcome(0.70004), outcome(0.8), None],
        "apfl": [outcome(0.75), outcome(0.75)],
        "fedhip": [
            outcome(0.6, last=0.55, rounds=9, chosen=4),
            outcome(0.61, last=0.55, rounds=9, chosen=6),
        ],
    }
    return summary_of(found, results)


def test_text_marks_best_and_second_and_ties_share_the_mark(small):
    body = writers.text(small)
    assert body.splitlines()[0] == "50 % & more_of {it}"
    assert "digits, 4 clients, dirichlet 0.1" in body
    assert re.search(r"^local +50\.00 ± 0\.00$", body, re.MULTILINE)
    assert re.search(r"^afl_1 +75\.00 ± 7\.07\*\*$", body, re.MULTILINE)
    assert re.search(r"^apfl +75\.00 ± 0\.00\*\*$", body, re.MULTILINE)
    assert re.search(r"^fedhip +60\.50 ± 0\.71 \*$", body, re.MULTILINE)
    assert re.search(r"^  last round +55\.00 ± 0\.00$", body, re.MULTILINE)
    assert "mean ± standard deviation over 2 seeds" in body
    assert "incomplete" not in body


def test_latex_is_escaped_and_marked(small):
    body = writers.latex(small)
    assert r"\caption{50 \% \& more\_of \{it\}, digits, 4 clients, dirichlet 0.1}" in body
    assert r"afl\_1 & \textbf{75.00 $\pm$ 7.07} \\" in body
    assert r"fedhip & \underline{60.50 $\pm$ 0.71} \\" in body
    assert r"\quad last round & 55.00 $\pm$ 0.00 \\" in body
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert {line.count(" & ") + line.startswith("& ") for line in rows} == {1}
    assert body.count("{") == body.count("}")


@given(st.text(alphabet=st.characters(codec="ascii", min_codepoint=32), max_size=20))
def test_nothing_special_is_left_after_escaping_for_latex(text):
    escaped = writers.tex(text)
    bare = re.sub(r"\\[&%$#_{}]|\\text[a-z]+\{\}|\{[][*]\}", "", escaped)
    assert not set(bare) & set("\\&%$#_{}~^[]*")


def test_hostile_names_stay_names_in_every_file():
    name = "=cmd()|`a`[b](c)"
    settings = table(table={"methods": [{"name": name, "method": "afl"}], "seeds": 2})
    found = summary_of(settings, {name: [outcome(0.5), outcome(0.6)]})
    failed = replace(found, failed={run.digest: "no\x1b[2J" for run in found.runs})
    for file in ("table.txt", "table.md", "table.tex"):
        assert writers.WRITERS[file](failed).replace("\n", "").isprintable(), file
    files = {file: render(found) for file, render in writers.WRITERS.items()}
    rows = list(csv.DictReader(io.StringIO(files["table.csv"])))
    assert {row["method"][:2] for row in rows} == {"'="}
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in files["table.md"].splitlines()} == {
        0,
        3,
    }
    assert r"{[}b{]}" in files["table.tex"]


def test_markdown_is_marked_and_its_rows_are_even(small):
    body = writers.markdown(small)
    assert "| afl\\_1 | **75.00 ± 7.07** |" in body
    assert "| fedhip | <u>60.50 ± 0.71</u> |" in body
    rows = [line for line in body.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {3}


def test_csv_and_json_have_both_rounds_and_everything_by_seed(small):
    rows = list(csv.DictReader(io.StringIO(writers.WRITERS["table.csv"](small))))
    fedhip = next(row for row in rows if row["method"] == "fedhip")
    assert float(fedhip["mean"]) == pytest.approx(60.5)
    assert float(fedhip["last_mean"]) == pytest.approx(55)
    assert (float(fedhip["chosen_round"]), float(fedhip["rounds"])) == (5, 9)
    assert [row["rank"] for row in rows] == ["", "1", "1", "2"]
    content = json.loads(writers.WRITERS["table.json"](small))
    assert content["complete"] is True
    number = next(n for n in content["numbers"] if n["method"] == "fedhip")
    assert [(s["seed"], s["chosen_round"], s["last"]) for s in number["seeds"]] == [
        (0, 4, pytest.approx(55)),
        (1, 6, pytest.approx(55)),
    ]


def test_a_partial_table_says_what_is_missing():
    found = table(table={"seeds": 3})
    runs = runs_of(found)
    broken = next(run for run in runs if run.method == "afl")
    results = {"local": [outcome(0.5, version="1"), outcome(0.7, version="2")]}
    partial = summary_of(found, results, failed={broken.digest: "client c1: no"})
    for render in (writers.text, writers.markdown, writers.latex):
        body = render(partial)
        assert "60.00" in body
        assert "(2 of 3)" in body
        assert "4 of 6 runs are missing (local 1, afl 3)" in body
        assert "client c1: no" in body
        assert "several versions of fedgram (1, 2)" in body
    content = json.loads(writers.WRITERS["table.json"](partial))
    assert (content["complete"], len(content["missing"])) == (False, 4)
    assert content["failed"] == [{"run": broken.name, "error": "client c1: no"}]
    nothing = summary_of(found, {})
    assert {render(nothing).count("NaN") for render in writers.WRITERS.values()} == {0}


def test_published_numbers_stand_below_ours_where_they_belong():
    found = table(
        table={
            "datasets": [{"name": "cifar100 of mine", "source": "digits"}],
            "clients": [50, 100],
            "partitions": ["dirichlet 0.1", "dirichlet 0.3"],
            "methods": ["local", "afl", "apfl"],
            "seeds": 1,
        }
    )
    summary = summary_of(found, {"afl": [outcome(0.5)] * 4}, papers=["apfl-table1"])
    numbers = {
        (n.cell.place.method, n.cell.place.clients, n.cell.place.partition): n.published
        for n in summary.numbers
        if n.published is not None
    }
    assert numbers == {
        ("afl", 50, "dirichlet 0.1"): 58.99,
        ("afl", 100, "dirichlet 0.1"): 56.96,
        ("apfl", 50, "dirichlet 0.1"): 80.72,
        ("apfl", 100, "dirichlet 0.1"): 77.08,
    }
    for render in (writers.text, writers.markdown, writers.latex):
        body = render(summary)
        assert "58.99" in body
        assert "another backbone (ViT-MAE-Base)" in " ".join(body.split())
    elsewhere = summary_of(table(table={"clients": 50}), {}, papers=["apfl-table1"])
    assert not elsewhere.cited


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sorce": "x"}, "did you mean 'source'?"),
        ({"source": 3}, "source = 3"),
        ({"measure": "acc"}, "unknown measure 'acc'"),
        ({"rows": [{"method": "afl", "values": [1, 2]}]}, "expected one number for each column"),
        ({"rows": [{"method": "afl", "values": ["x"]}]}, "expected one number for each column"),
        ({"rows": [{"metod": "afl", "values": [1]}]}, "did you mean 'method'?"),
        ({"remarks": [1]}, "a text of one line"),
    ],
)
def test_wrong_files_of_published_numbers_are_refused(tmp_path, change, message):
    content = {"source": "s", "backbone": "b", "rows": [{"method": "afl", "values": [1]}]} | change
    file = tmp_path / "paper.toml"
    file.write_text("\n".join(f"{k} = {toml(v)}" for k, v in content.items()), encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(message)):
        published.load(str(file))


def toml(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def test_lambda_numbers_stand_beside_their_value():
    settings = tomllib.loads(preset("lambda-ablation"))
    settings["table"]["datasets"] = [{"name": "ImageNet-R", "source": "digits"}]
    summary = summary_of(read(settings), {}, papers=["apfl-table2"])
    found = {
        (n.cell.place.method, n.cell.place.partition, n.cell.place.value): n.published
        for n in summary.numbers
    }
    assert found["dual", "dirichlet 0.5", 0.3] == 36.21
    assert found["primary", "dirichlet 1.0", 0.9] == 32.94
    assert None not in found.values()


def test_sweeps_rank_values_within_a_row_and_become_curves():
    found = table(
        table={"methods": [{"name": "fixed", "method": "afl", "ridge": 1.0}, "afl"]},
        sweep={"parameter": "ridge", "values": [1, 10, 100], "name": "beta"},
    )
    results = {
        "fixed": [outcome(0.5), outcome(0.5)],
        "afl": [outcome(a) for a in (0.5, 0.8, 0.7, 0.5, 0.9, 0.7)],
    }
    summary = summary_of(found, results)
    afl = {n.cell.place.value: n.rank for n in summary.numbers if n.cell.place.method == "afl"}
    assert afl == {1: None, 10: 1, 100: 2}
    assert all(n.rank is None for n in summary.numbers if n.cell.place.method == "fixed")
    (picture,) = sensitivities(summary)
    assert picture.axis == "beta"
    assert [x for x, _, _ in picture.lines["afl"]] == [1.0, 10.0, 100.0]
    assert picture.lines["afl"][1][1:] == pytest.approx((0.85, 0.05 * 2**0.5))
    assert picture.lines["fixed"][2][1] == pytest.approx(0.5)


def test_costs_rank_the_other_way_and_shares_are_of_the_same_seed():
    found = table(
        table={"methods": ["local", "afl"], "show": ["seconds", "bytes", "seconds/afl"]},
    )
    results = {
        "local": [outcome(0.5, seconds=1.0), outcome(0.5, seconds=3.0)],
        "afl": [outcome(0.5, seconds=4.0, sizes=(1, 1)), outcome(0.5, seconds=6.0, sizes=(1, 1))],
    }
    summary = summary_of(found, results)
    numbers = {(n.cell.place.method, n.measure.name): n for n in summary.numbers}
    assert numbers["local", "seconds"].rank == 1
    assert numbers["local", "bytes"].rank == 2
    assert numbers["local", "seconds/afl"].chosen.by_seed == {0: 25.0, 1: 50.0}
    assert numbers["afl", "seconds/afl"].chosen.mean == 100.0
    assert "3.00 ± 0.00 kB" in writers.text(summary)


def test_rounds_become_curves_as_far_as_every_seed_came():
    found = table(table={"curves": ["rounds", "seconds", "bytes"], "methods": ["afl"]})
    every = [
        RoundRecord(
            round=r,
            summary=ScoreSummary(
                accuracy={"client_mean": 0.1 * r},
                valid=float(r == 2),
                clients=5,
                seconds=2.0 * r,
                bytes={"up": r, "down": r},
            ),
        )
        for r in (1, 2, 3)
    ]
    results = {"afl": [record(every), record(every[:2])]}
    rounds, seconds, sizes = costs(summary_of(found, results))
    assert rounds.lines["afl"] == ((1, pytest.approx(0.1), 0.0), (2, pytest.approx(0.2), 0.0))
    assert [x for x, _, _ in seconds.lines["afl"]] == [2.0, 4.0]
    assert [x for x, _, _ in sizes.lines["afl"]] == [2.0, 4.0]
    assert rounds.chosen == {"afl": 2.0}
    assert seconds.chosen == {"afl": 4.0}


@pytest.mark.parametrize("name", [*SCORES, *COSTS])
def test_every_measure_is_read_from_a_summary(name):
    run = outcome(0.5)
    assert measure(name).of(run, run.last) == {
        "auroc": None,
        "seconds": 1.0,
        "flops": 5e9,
        "bytes": 3000.0,
        "bytes_up": 1000.0,
        "bytes_down": 2000.0,
    }.get(name, 50.0)


def test_large_numbers_are_written_with_a_unit():
    sizes = [measure("bytes").shown(10.0**n) for n in range(0, 14, 3)]
    assert sizes == ["1 B", "1.00 kB", "1.00 MB", "1.00 GB", "1.00 TB"]
    assert measure("flops").shown(2.5e12, 1e11) == "2.50 ± 0.10 T"
    assert [measure("seconds").shown(s, 1.0) for s in (0.123, 250.4)] == ["0.12 ± 1.00", "250 ± 1"]


def test_wide_tables_are_cut_to_80_columns():
    found = table(
        table={
            "clients": [5, 50, 500],
            "partitions": ["iid", "dirichlet 0.1", "dirichlet 0.5", "shards 2"],
        }
    )
    every = [outcome(0.001 * n) for n in range(24)]
    body = writers.text(summary_of(found, {"local": every, "afl": every}))
    assert max(map(len, body.splitlines())) <= 80
    shown = re.findall(r"^(?:local|afl) .*$", body, re.MULTILINE)
    assert sum(line.count("±") for line in shown) == 24


# Estimates


def test_time_left_is_the_sum_of_the_likeliest_shared_among_processes():
    found = table(table={"partitions": ["iid", "shards 2"], "methods": ["local", "afl", "apfl"]})
    runs = runs_of(found)
    first = {run.method: run for run in reversed(runs)}
    estimate = Estimate(runs=runs, measured={first["local"].digest: 1.0, first["afl"].digest: 3.0})
    others = [run for run in runs if run.digest not in estimate.measured]
    assert {run.method for run in estimate.unknown(others)} == {"apfl"}
    # 3 of local and of afl, and 4 of apfl, which is taken to be like the mean of those
    assert estimate.left(others, 2) == pytest.approx((3 * 1 + 3 * 3 + 4 * 2) / 2)
    assert Estimate(runs=runs, measured={}).left(runs, 2) is None
    assert estimate.left([], 2) == 0


def test_a_try_of_a_long_run_is_short_and_chooses_no_rate():
    found = table(
        table={"methods": ["fedavg", "afl"], "seeds": 1},
        method={"fedavg": {"rounds": 200, "pilot": 5, "epochs": 2}},
        scoring={"every": 3},
    )
    fedavg, afl = runs_of(found)
    assert trial(fedavg)["scoring"]["every"] == 2
    assert trial(fedavg)["method"]["fedavg"] == {
        "rounds": 4,
        "rate": 0.1,
        "pilot": 5,
        "epochs": 2,
    }
    assert rounds_in_all(fedavg) == 200 + 4 * 5
    assert trial(afl) == afl.settings.to_dict()
    assert rounds_in_all(afl) == 1


def test_no_more_processes_than_fit_into_memory(monkeypatch):
    runs = runs_of(table())
    free = 2**40
    monkeypatch.setattr("fedgram.runtime.memory.available", lambda: free)
    assert side_by_side(runs, 4) == 4
    assert side_by_side(runs[:1], 8) == 1
    while side_by_side(runs, 4) == 4:
        free //= 2
    assert side_by_side(runs, 4) in (2, 3)
    free //= 8
    with pytest.raises(MemoryLimitError, match="one run of the table needs"):
        side_by_side(runs, 4)
