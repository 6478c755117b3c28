"""What people see in a terminal: progress in plain words, lines that fit, colors that show."""

import re

import pytest
from terminal_support import drawn_lines, in_terminal, screen, styles

from fedgram.cli.method_line import MethodLine

FEDAVG = ("method.fedavg.rounds=20", "method.fedavg.rate=0.3", "metrics.global_test=false")
RUN = ("run", "-m", "fedavg", "-s", "data.clients=6", *(f"-s{setting}" for setting in FEDAVG))
# Bold, faint, their ends, and colors in the middle between light and dark. Black, yellow and white
# cannot be read on one of the two grounds.
COLORLESS = {0, 1, 2, 3, 4, 22, 23, 24}
READABLE = COLORLESS | {31, 32, 34, 35, 36, 39}
PROGRESS_BAR = {38, 5, 237, 197, 70, 106}  # rich's own, of the palette of 256 colors


@pytest.mark.parametrize(
    ("columns", "environment", "allowed"),
    [(60, {"NO_COLOR": "1"}, COLORLESS), (120, {}, READABLE | PROGRESS_BAR)],
    ids=["narrow, without colors", "wide"],
)
def test_progress_is_in_plain_words_and_gone_at_the_end(columns, environment, allowed):
    code, written = in_terminal(RUN, columns, **environment)
    assert code == 0, written
    progress = r"fedavg( \d+/20)?: [a-z ]+\S* +\d+/6 clients"
    if columns > 78:
        progress = r"fedavg: (round \d+ of 20, )?[a-z ]+ .*\d+ of 6 clients"
    lines = drawn_lines(written)
    assert [line for line in lines if re.match(progress, line)], lines
    assert max(map(len, lines)) <= columns
    left = screen(written)
    assert not [line for line in left if re.match(progress, line)]
    assert "accuracy in %, bytes per client" in left
    assert styles(written) <= allowed


@pytest.mark.parametrize("columns", [60, 120])
def test_what_a_method_chose_is_broken_between_words(columns):
    _, written = in_terminal(("run", "-m", "apfl", "-sdata.clients=6"), columns)
    left = screen(written)
    first = next(k for k, line in enumerate(left) if line.startswith("apfl chose"))
    assert max(map(len, left)) <= columns
    assert "accuracy on left-out samples:" in " ".join(map(str.strip, left[first:]))


@pytest.mark.parametrize("columns", [60, 120])
@pytest.mark.parametrize(
    "words", [("study", "--list"), ("methods",), ("methods", "apfl"), ("settings",)], ids=" ".join
)
def test_lists_are_broken_between_words(words, columns):
    code, written = in_terminal(words, columns)
    left = screen(written)
    assert code == 0
    assert max(map(len, left)) <= columns
    _, wide = in_terminal(words, 1000)
    assert " ".join(" ".join(left).split()) == " ".join(" ".join(screen(wide)).split())


def test_a_study_is_printed_as_wide_as_the_terminal_and_written_for_80_columns(tmp_path):
    table = tmp_path / "t.toml"
    table.write_text(
        "[table]\ntitle = 'A title that is long enough to be broken in a narrow terminal, twice'\n"
        "datasets = ['digits']\npartitions = ['iid', 'dirichlet 0.1', 'shards 2']\nclients = [4]\n"
        "seeds = 2\nmethods = ['local', 'afl']\nshow = ['client_mean', 'bytes_up']\n"
    )
    read = {}
    for columns in (60, 200):
        code, written = in_terminal(
            ("study", str(table), "-o", str(tmp_path / "out"), "-j1"), columns
        )
        assert code == 0, written
        read[columns] = screen(written)
    stored = (tmp_path / "out" / "table.txt").read_text("utf-8").splitlines()
    assert max(map(len, stored)) <= 80
    for columns, left in read.items():
        table = left[: left.index(next(line for line in left if line.startswith("table.txt")))]
        assert max(map(len, table)) <= columns
    assert max(map(len, read[200])) > 80
    assert any(line.count("±") == 6 for line in read[200])  # all columns side by side


def test_doctor_can_be_read_on_light_and_dark_grounds():
    _, written = in_terminal(("doctor",), 80)
    assert styles(written) <= READABLE


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def line(**settings):
    clock = Clock()
    return clock, MethodLine(name="fedavg", clock=clock, **settings)


def test_the_time_left_is_that_of_the_rounds_after_the_first():
    clock, drawn = line(rounds=10)
    clock.now = 100.0  # pilots, which are no measure of rounds
    drawn.round(1)
    assert drawn.reply("update", 1, 4) == (
        "fedavg: round 2 of 10, local training",
        "1 of 4 clients",
        "",
    )
    for number in (2, 3):
        clock.now += 10
        drawn.round(number)
    clock.now += 4
    assert drawn.reply("update", 2, 4)[2] == "1 min 6 s left"  # 7 rounds of 10 s, 4 s gone
    drawn.round(10)
    assert drawn.reply("deliver", 4, 4) == ("fedavg: delivery", "4 of 4 clients", "")


def test_a_long_step_of_a_method_with_one_round_has_a_time_left():
    clock, drawn = line(rounds=1)
    assert drawn.reply("statistics", 1, 100)[2] == ""
    clock.now = 10.0
    assert drawn.reply("statistics", 25, 100)[2] == "step: 30 s left"
    clock.now = 11.0
    assert drawn.reply("residuals", 1, 100)[2] == ""  # a step of its own


def test_a_narrow_terminal_gets_shorter_texts():
    clock, drawn = line(rounds=200, narrow=True)
    drawn.round(11)
    clock.now = 20.0
    drawn.round(12)
    texts = drawn.reply("update", 18, 20)
    assert texts == ("fedavg 13/200: local training", "18/20 clients", "1 h left")
    assert len(" ".join(texts)) <= 60
