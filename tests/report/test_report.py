"""The report: what it says of recorded runs, with numbers that are known."""

import json
import re
import tomllib
from dataclasses import replace
from html.parser import HTMLParser
from statistics import stdev

import pytest
from click.testing import CliRunner
from report_support import DATA, summary, write_lines, write_run

from fedgram.cli import main
from fedgram.errors import DataError
from fedgram.experiments.config import read as read_config
from fedgram.experiments.reader import read_runs
from fedgram.experiments.run_record import TunedSettings
from fedgram.experiments.seeds import chosen_at, mean_and_std, mean_curve
from fedgram.report.groups import comparisons
from fedgram.report.page import page
from fedgram.report.reproduce import recipes

HOSTILE = "</script><script>alert('x')</script><img src=x onerror=alert(1)>\"'&"


class Reader(HTMLParser):
    """Collects tables, elements and text."""

    def __init__(self):
        super().__init__()
        self.tables, self.elements, self.attributes, self.text = [], [], [], []
        self._cell = None

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes += attrs
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("th", "td"):
            self._cell = []

    def handle_endtag(self, tag):
        if tag in ("th", "td"):
            self.tables[-1][-1].append("".join(self._cell))
            self._cell = None

    def handle_data(self, data):
        self.text.append(data)
        if self._cell is not None:
            self._cell.append(data)


def opened(content):
    reader = Reader()
    reader.feed(content)
    return reader


def table(content, place=0):
    """Return a table as a list of rows by column."""
    head, *body = opened(content).tables[place]
    return [dict(zip(head, row, strict=True)) for row in body]


def cli(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)), env={"COLUMNS": "80"})


# Which runs belong together


def test_runs_that_differ_in_seed_alone_are_one_row_with_mean_and_deviation(tmp_path):
    reached = [0.5, 0.6, 0.8]
    for seed, accuracy in enumerate(reached):
        clients = dict.fromkeys(["a", "b"], accuracy)
        write_run(tmp_path / f"{seed}", "afl", seed=seed, clients=clients)
    (comparison,) = comparisons(read_runs([tmp_path]))
    (row,) = comparison.rows
    assert row.label == "afl"
    assert row.score("client_mean") == pytest.approx((sum(reached) / 3, stdev(reached)))
    (shown,) = table(page(read_runs([tmp_path])))
    assert shown["client mean"] == "63.3 ± 15.3"


def test_seeds_that_agree_have_a_deviation_of_nothing(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / str(seed), seed=seed, clients={"a": 0.5})
    (shown,) = table(page(read_runs([tmp_path])))
    assert shown["client mean"] == "50.0 ± 0.0"


def test_a_single_run_has_no_deviation(tmp_path):
    write_run(tmp_path / "one", clients={"a": 0.25, "b": 0.5})
    (shown,) = table(page(read_runs([tmp_path])))
    assert shown["client mean"] == "37.5"
    assert "±" not in page(read_runs([tmp_path]))


def test_runs_on_other_data_or_dealt_in_another_way_get_a_section_of_their_own(tmp_path):
    write_run(tmp_path / "a", data={**DATA, "dirichlet": 0.1})
    write_run(tmp_path / "b", data={**DATA, "dirichlet": 1.0})
    found = comparisons(read_runs([tmp_path]))
    assert [comparison.data["dirichlet"] for comparison in found] == [0.1, 1.0]
    content = page(read_runs([tmp_path]))
    assert content.count("<section") == 2
    assert "toy, 2 clients, dirichlet 1.0" in content


def test_runs_with_other_parameters_are_rows_that_say_which(tmp_path):
    write_run(tmp_path / "a", "afl", parameters={"ridge": 1.0, "width": 8})
    write_run(tmp_path / "b", "afl", parameters={"ridge": 2.0, "width": 8})
    write_run(tmp_path / "c", "local", parameters={"ridge": 3.0})
    (comparison,) = comparisons(read_runs([tmp_path]))
    assert [row.label for row in comparison.rows] == ["afl (ridge 1.0)", "afl (ridge 2.0)", "local"]


def test_a_run_given_twice_counts_once_and_one_with_the_same_seeds_is_left_out(tmp_path):
    write_run(tmp_path / "a", clients={"a": 0.5})
    write_run(tmp_path / "b", clients={"a": 0.7})
    assert len(read_runs([tmp_path, tmp_path / "a", tmp_path / "." / "a"])) == 2
    (comparison,) = comparisons(read_runs([tmp_path]))
    assert comparison.repeats == 1
    assert comparison.rows[0].score("client_mean") == (0.5, None)
    assert "1 runs with the same seeds as another run are left out" in page(read_runs([tmp_path]))


def test_rows_come_in_the_order_the_methods_were_run_in(tmp_path):
    methods = ["local", "central", "afl"]
    for name in methods:
        write_run(tmp_path / name, name, methods=methods)
    (comparison,) = comparisons(read_runs([tmp_path]))
    assert [row.label for row in comparison.rows] == methods


# The tables


def test_the_best_and_the_second_best_are_marked_as_far_as_they_can_be_seen(tmp_path):
    for name, accuracy in {"a": 0.80, "b": 0.9, "c": 0.9001, "d": 0.5}.items():
        write_run(tmp_path / name, name, clients={"x": accuracy}, rounds=[(1, accuracy, None)])
    marks = re.findall(
        r'<th scope="row"[^>]*>(\w)</th><td[^>]*><span( class="\w+")?', page(read_runs([tmp_path]))
    )
    headline = dict(marks[:4])
    assert headline == {"a": ' class="second"', "b": ' class="best"', "c": ' class="best"', "d": ""}


def test_who_gains_over_training_alone_is_counted_on_the_same_samples(tmp_path):
    for seed in (0, 1):
        alone = {"a": 0.5, "b": 0.5, "c": 0.5, "d": 0.5}
        write_run(tmp_path / f"local{seed}", "local", seed=seed, clients=alone)
    write_run(tmp_path / "afl0", "afl", seed=0, clients={"a": 0.9, "b": 0.9, "c": 0.5, "d": 0.1})
    write_run(tmp_path / "afl1", "afl", seed=1, clients={"a": 0.9, "b": 0.5, "c": 0.5, "d": 0.5})
    rows = {row["method"]: row for row in table(page(read_runs([tmp_path])))}
    assert rows["afl"]["better / worse"] == "38 / 12"
    assert rows["local"]["better / worse"] == "-"
    (comparison,) = comparisons(read_runs([tmp_path]))
    named = [pair.client for pair in comparison.pairs(comparison.rows[0])]
    assert named[0] == "a, seed 0"


def test_every_client_is_listed_with_its_samples_and_its_accuracies(tmp_path):
    write_run(tmp_path / "l", "local", clients={"a": 0.5, "b": 0.75}, holdout={"z": 0.25})
    write_run(tmp_path / "m", "afl", clients={"a": 1.0, "b": 0.5}, holdout={"z": 0.5})
    (listed,) = [t for t in opened(page(read_runs([tmp_path]))).tables if t[0][0] == "client"]
    assert listed[0] == ["client", "train", "classes", "test", "local", "afl"]
    assert listed[1:] == [
        ["a", "10", "2", "20", "50.0", "100.0"],
        ["b", "11", "2", "20", "75.0", "50.0"],
        ["z held out", "12", "2", "20", "25.0", "50.0"],
    ]


def test_held_out_clients_have_a_table_of_their_own(tmp_path):
    write_run(tmp_path / "a", holdout={"y": 0.25, "z": 0.75})
    content = page(read_runs([tmp_path]))
    assert "Clients held out of training" in content
    row = next(t for t in opened(content).tables if t[0][1] == "clients")[1]
    assert row[:3] == ["afl", "2", "50.0"]


def test_costs_digests_versions_and_exchanges_are_told(tmp_path):
    write_run(tmp_path / "a")
    content = page(read_runs([tmp_path]))
    (row,) = table(content)
    assert (row["bytes up"], row["FLOPs"], row["time"]) == ("1 kB", "1 M", "500 ms")
    assert "5" * 64 in content
    assert "7" * 64 in content
    assert "numpy 2.0" in content
    last = opened(content).tables[-1]
    assert last[1] == ["afl", "sums of statistics", "train", "1", "2", "6 kB", "0 B"]


def test_an_interrupted_run_is_told_of(tmp_path):
    write_run(tmp_path / "a", finished=False)
    assert "a: interrupted after round 1" in page(read_runs([tmp_path]))


def test_accuracy_within_classes_is_shown_where_it_was_asked_for(tmp_path):
    folder = write_run(tmp_path / "a")
    path = folder / "scores.jsonl"
    shares = '"class_accuracy": {"cat": 0.25, "dog": null}'
    path.write_text(path.read_text().replace('"class_accuracy": null', shares))
    content = page(read_runs([folder]))
    assert [["class", "afl"], ["cat", "25.0"], ["dog", "-"]] in opened(content).tables


def test_clients_without_test_samples_are_no_zeros(tmp_path):
    folder = write_run(tmp_path / "a", clients={"a": 0.5})
    path = folder / "scores.jsonl"
    rows, total = path.read_text().splitlines()
    none = json.loads(rows) | {"client": "b", "samples": 0, "correct": 0}
    path.write_text("\n".join([rows, json.dumps(none), total, ""]))
    (run,) = read_runs([folder])
    assert [score.accuracy for score in run.chosen.clients] == [0.5, None]
    assert "<section" in page([run])


def test_runs_without_any_test_sample_are_reported_all_the_same(tmp_path):
    folder = write_run(tmp_path / "a", rounds=[(1, None, None)], private=True)
    assert "No client has test samples" in page(read_runs([folder]))


# Rounds


@pytest.fixture
def rounds(tmp_path):
    """Record two seeds of a method of 50 rounds, every fifth scored, best at round 30."""
    write_run(tmp_path / "local", "local", clients={"a": 0.5})
    for seed in (0, 1):
        scored = [
            (r, 0.01 * r + 0.1 * seed, 0.9 - abs(r - 30) / 100 if seed == 0 else 0.01 * r)
            for r in range(5, 51, 5)
        ]
        write_run(tmp_path / f"s{seed}", "fedavg", seed=seed, rounds=scored, clients={"a": 0.5})
    return read_runs([tmp_path / name for name in ("local", "s0", "s1")])


def test_the_chosen_round_stands_in_the_table_beside_the_last(rounds):
    rows = {row["method"]: row for row in table(page(rounds))}
    assert rows["fedavg"]["round"] == "30-50 of 50"
    assert rows["fedavg"]["client mean"] == "45.0 ± 21.2"
    assert rows["fedavg"]["last round"] == "55.0 ± 7.1"
    assert (rows["local"]["round"], rows["local"]["last round"]) == ("1", "-")


def test_curves_are_means_over_seeds_of_what_rounds_cost(rounds):
    (comparison,) = comparisons(rounds)
    _, row = comparison.rows
    assert row.repeated
    assert mean_curve(row.runs, "rounds")[1] == pytest.approx((10, 0.15, stdev([0.1, 0.2])))
    assert mean_curve(row.runs, "seconds")[1][0] == 5.0
    assert mean_curve(row.runs, "bytes")[1][0] == 15_000
    assert len(mean_curve(row.runs, "flops")) == 10
    assert chosen_at(row.runs, "rounds") == 40.0


def test_seeds_that_stopped_at_different_rounds_are_compared_as_far_as_both_came(tmp_path):
    for seed, last in ((0, 10), (1, 25)):
        scored = [(r, 0.5, None) for r in range(5, last + 1, 5)]
        write_run(tmp_path / str(seed), seed=seed, rounds=scored)
    (row,) = comparisons(read_runs([tmp_path]))[0].rows
    assert [x for x, _, _ in mean_curve(row.runs, "rounds")] == [5, 10]


def test_clients_are_those_of_the_chosen_round(tmp_path):
    folder = write_run(tmp_path / "a", rounds=[(1, 0.5, 0.9), (2, 0.5, 0.1)], clients={"a": 0.5})
    path = folder / "scores.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["round"] == 2 and "client" in line:
            line["correct"] = 0
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run,) = read_runs([folder])
    assert run.chosen.round == 1
    assert [score.accuracy for score in run.chosen.clients] == [0.5]


def test_all_four_costs_are_drawn_where_there_are_rounds_and_none_in_vain(rounds, tmp_path):
    drawn = re.findall(r'aria-label="(Accuracy against \w+)', page(rounds))
    assert list(dict.fromkeys(drawn)) == [  # each in two sizes
        f"Accuracy against {x}" for x in ["rounds", "time", "computation", "communication"]
    ]
    write_run(tmp_path / "solved" / "afl")
    drawn = re.findall(
        r'aria-label="(Accuracy against \w+)', page(read_runs([tmp_path / "solved"]))
    )
    assert "Accuracy against rounds" not in drawn


def with_scorings(folder, asked):
    """Write exchanges as a run does: this many before each scored round, and the scoring."""
    one = {"clients": 2, "bytes_up": 1, "bytes_down": 1, "seconds": 0.1}
    steps = []
    for number in asked:
        steps += [{"step": "update", "phase": "train", **one}] * number
        steps.append({"step": "ScoreTask", "phase": "score", **one})
    steps.append({"step": "deliver", "phase": "deliver", **one})
    write_lines(folder / "exchanges.jsonl", steps)


def test_exchanges_are_counted_up_to_each_scored_round(tmp_path):
    scored = [(1, 0.2, None), (2, 0.6, None), (5, 0.9, None)]
    folder = write_run(tmp_path / "fedavg", "fedavg", rounds=scored)
    with_scorings(folder, [7, 1, 3])
    with_scorings(write_run(tmp_path / "afl", "afl"), [1])
    content = page(read_runs([tmp_path]))
    rows = {row["method"]: row for row in table(content)}
    assert (rows["fedavg"]["exchanges"], rows["afl"]["exchanges"]) == ("11", "1")
    runs = [run for run in read_runs([tmp_path]) if run.method == "fedavg"]
    assert [(x, y) for x, y, _ in mean_curve(runs, "exchanges")] == [(7, 0.2), (8, 0.6), (11, 0.9)]
    assert "Accuracy against exchanges" in content


def test_exchanges_that_cannot_be_told_apart_by_round_are_not_guessed(tmp_path):
    folder = write_run(tmp_path / "fedavg", "fedavg", rounds=[(1, 0.2, None), (2, 0.6, None)])
    with_scorings(folder, [7])
    assert mean_curve(read_runs([tmp_path]), "exchanges") == []
    assert "Accuracy against exchanges" not in page(read_runs([tmp_path]))


def test_notes_name_the_seeds_and_the_accuracy_that_is_drawn(tmp_path):
    for seed in (3, 5):
        write_run(tmp_path / f"l{seed}", "local", seed=seed)
        write_run(tmp_path / f"a{seed}", "afl", seed=seed, parameters={"lift": {"seed": 1}})
    notes = " ".join(opened(page(read_runs([tmp_path]))).text)
    assert "over 2 runs with different seeds (data.seed and engine.seed 3, 5)" in notes
    assert "Drawn: mean over clients of the accuracy on their own test samples" in notes
    alone = " ".join(opened(page(read_runs([tmp_path / "a3"]))).text)
    assert "One run for each method (data.seed 3)" in alone


def test_what_was_pooled_is_shown_with_its_weight_in_every_run(tmp_path):
    pools = ({"softmax head": 1.25, "class prior": 0.5}, {"LDA": 3.0, "class prior": 0.25})
    for seed, pool in enumerate(pools):
        folder = write_run(tmp_path / str(seed), "auto", seed=seed)
        tuned = {
            "settings": {},
            "description": "a pool",
            "left_out_accuracy": {"LDA alone": 0.75},
            "notes": {"pool": pool},
        }
        path = folder / "scores.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        lines[-1]["summary"]["tuned"] = tuned
        write_lines(path, lines)
    content = page(read_runs([tmp_path]))
    assert [
        ["auto pooled", "weight, seed 0", "weight, seed 1"],
        ["softmax head", "1.25", "-"],
        ["class prior", "0.5", "0.25"],
        ["LDA", "-", "3 (75.0)"],
    ] in opened(content).tables


def test_records_before_names_of_parts_have_their_family_and_settings():
    tuned = TunedSettings(
        settings={"parts": [{"family": "lda", "shrinkage": 0.03, "weight": 2.0}], "prior": 0.5},
        description="",
        left_out_accuracy={},
        notes={},
    )
    assert tuned.pool == {"lda (shrinkage 0.03)": 2.0, "class prior": 0.5}
    assert replace(tuned, settings={"alpha": 3.0}).pool == {}
    assert replace(tuned, settings={"parts": [3, {"weight": "x"}]}).pool == {}


def test_a_record_without_what_came_later_is_reported(tmp_path):
    folder = write_run(tmp_path / "old")
    path = folder / "scores.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        for key in ("valid", "flops", "bytes"):
            line.get("summary", {}).pop(key, None)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "partition.json").unlink()
    content = page(read_runs([folder]))
    assert "Not recorded" in content
    assert "FLOPs" not in content


# What must not get out, and what must not get in


def test_a_private_run_shows_no_client_and_no_class(tmp_path):
    clients = {"north clinic": 0.5, "south clinic": 0.9}
    write_run(tmp_path / "a", clients=clients, private=True, classes=("flu", "cold"))
    content = page(read_runs([tmp_path]))
    assert not {"clinic", "flu", "cold"} & set(re.findall(r"\w+", content))
    assert "Not recorded: the runs are private" in content


def test_names_are_text_wherever_they_stand(tmp_path):
    write_run(
        tmp_path / "alone", "local", clients={HOSTILE: 0.5, "b": 1.0}, data={"source": HOSTILE}
    )
    write_run(
        tmp_path / "ours",
        HOSTILE,
        clients={HOSTILE: 0.75, "b": 0.5},
        holdout={HOSTILE + "z": 0.5},
        parameters={HOSTILE: HOSTILE},
        data={"source": HOSTILE},
        classes=(HOSTILE, "other"),
    )
    content = page(read_runs([tmp_path]), title=HOSTILE)
    reader = opened(content)
    assert reader.elements.count("script") == 1
    assert "img" not in reader.elements
    assert not [name for name, _ in reader.attributes if name.startswith("on")]
    assert HOSTILE in "".join(reader.text)


def test_the_page_refers_to_nothing_outside_itself(rounds):
    content = page(rounds)
    links = [value for name, value in opened(content).attributes if name in ("src", "href")]
    assert all(link.startswith("#") for link in links)
    assert set(re.findall(r"https?://[\w./]+", content)) == {"http://www.w3.org/2000/svg"}
    assert "url(" not in content
    assert "default-src 'none'" in content.replace("&#x27;", "'")


def test_the_same_records_give_the_same_bytes(tmp_path):
    for name in ("local", "afl"):
        write_run(tmp_path / name, name)
    assert cli("report", tmp_path, "-o", tmp_path / "1.html").exit_code == 0
    assert cli("report", tmp_path, "-o", tmp_path / "2.html").exit_code == 0
    assert (tmp_path / "1.html").read_bytes() == (tmp_path / "2.html").read_bytes()


# Running again


def test_the_settings_given_are_complete_and_lead_to_the_same_digests(tmp_path):
    run = (
        "run",
        "-m",
        "afl",
        "-m",
        "apfl-linear",
        "-s",
        "data.clients=4",
        "-s",
        "method.afl.ridge=3",
    )
    for seed in (0, 7):
        done = cli(*run, "-s", f"data.seed={seed}", "--out", tmp_path / f"first{seed}")
        assert done.exit_code == 0
    runs = read_runs([tmp_path / "first0", tmp_path / "first7"])
    (recipe,) = recipes(runs)
    assert read_config(tomllib.loads(recipe.toml)).methods == ("afl", "apfl-linear")
    assert len(recipe.commands) == 2
    (tmp_path / recipe.name).write_text(recipe.toml, encoding="utf-8")
    for command in recipe.commands:
        name, *arguments = command.replace("runs/", f"{tmp_path}/again/").split()
        arguments[1] = tmp_path / recipe.name
        assert (name, cli(*arguments).exit_code) == ("fedgram", 0)
    again = read_runs(sorted((tmp_path / "again").iterdir()))
    digests = [(r.method, r.summary.shared_digest, r.summary.model_digest) for r in runs]
    assert digests == [(r.method, r.summary.shared_digest, r.summary.model_digest) for r in again]


def test_runs_that_cannot_share_a_file_get_one_each(tmp_path):
    write_run(tmp_path / "a", "afl", parameters={"ridge": 1.0})
    write_run(tmp_path / "b", "afl", parameters={"ridge": 2.0})
    write_run(tmp_path / "c", "local", parameters={"ridge": 5.0})
    first, second = recipes(read_runs([tmp_path]))
    assert first.settings["method"] == {"afl": {"ridge": 1.0}, "local": {"ridge": 5.0}}
    assert second.settings["method"] == {"afl": {"ridge": 2.0}}
    assert second.commands == ["fedgram run settings-2.toml --out runs/settings-2"]


# Damage


def test_nothing_to_report_is_an_error():
    with pytest.raises(DataError, match="no runs to report"):
        page([])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("partition.json", "{}"),
        ("partition.json", "["),
        ("run.json", '{"format": 2, "method": "afl", "config": 3}'),
        ("run.json", '{"format": 2, "method": "afl", "parameters": []}'),
    ],
)
def test_a_damaged_record_is_refused_by_name(tmp_path, name, content):
    folder = write_run(tmp_path / "broken")
    (folder / name).write_text(content, encoding="utf-8")
    done = cli("report", folder, "-o", tmp_path / "r.html")
    assert done.exit_code == 3
    assert "broken" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "r.html").exists()


def test_a_page_that_cannot_be_written_is_an_error(tmp_path):
    write_run(tmp_path / "a")
    (tmp_path / "file").write_text("x")
    done = cli("report", tmp_path / "a", "-o", tmp_path / "file" / "r.html")
    assert (done.exit_code, done.stderr.count("\n")) == (3, 1)


def test_the_mean_of_nothing_is_nothing():
    assert mean_and_std([]) is None


# fedgram partition


def test_a_partition_is_shown_and_drawn_without_a_run(tmp_path):
    path = tmp_path / "plot.svg"
    done = cli(
        "partition", "digits", "-s", "data.partition=shards", "-s", "data.clients=5", "-o", path
    )
    assert done.exit_code == 0
    assert done.stdout.startswith("digits, 5 clients, shards 2, 10 classes")
    assert re.search(r"total +1347 +0 +450", done.stdout)
    assert path.read_text(encoding="utf-8").startswith("<svg")
    assert [line.split()[0] for line in done.stdout.splitlines() if line.startswith(" c")][1:] == [
        f"c{k}" for k in range(5)
    ]


def test_a_partition_as_json_counts_every_sample():
    content = json.loads(cli("partition", "-s", "data.holdout_clients=2", "--json").stdout)
    assert sum(sum(client["train"]) for client in content["clients"]) == 1347
    assert sum(client["holdout"] for client in content["clients"]) == 2
    assert content["summary"]["train"]["total"] == 1347


def test_many_clients_are_one_line(tmp_path):
    done = cli("partition", "-s", "data.clients=100")
    assert "too many clients for one line each" in done.stdout
    assert len(done.stdout.splitlines()) < 15


def test_a_partition_reads_the_settings_of_a_run(tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text("[data]\nclients = 3\npartition = 'iid'\n", encoding="utf-8")
    assert cli("partition", path).stdout.startswith("digits, 3 clients, iid")
    assert cli("partition", path, "-s", "data.clients=4").stdout.startswith("digits, 4 clients")


def test_a_partition_of_what_is_not_there_is_an_error():
    done = cli("partition", "missing.npz")
    assert (done.exit_code, done.stdout) == (3, "")
    assert "missing.npz" in done.stderr


# Size


@pytest.mark.wide
def test_a_thousand_clients_and_ten_methods_are_less_than_three_megabytes(tmp_path):
    names = [f"c{k:03}" for k in range(1000)]
    for place in range(10):
        clients = {name: ((k * 37 + place * 11) % 21) / 20 for k, name in enumerate(names)}
        method = "local" if place == 0 else f"method{place}"
        folder = write_run(tmp_path / method, method, clients=clients, classes=tuple("0123456789"))
        if place >= 7:  # and two hundred rounds
            last = [json.loads(s) for s in (folder / "scores.jsonl").read_text().splitlines()]
            rounds = [
                {
                    "round": r,
                    "set": "members",
                    "summary": summary(1 - 0.9**r, round_=r, clients=1000),
                }
                for r in range(1, 201)
            ]
            write_lines(
                folder / "scores.jsonl", [*rounds, *({**one, "round": 200} for one in last)]
            )
    content = page(read_runs([tmp_path]))
    assert len(content.encode()) < 3_000_000
    assert content.count('<tr><th scope="row"') > 1000
