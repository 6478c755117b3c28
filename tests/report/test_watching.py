"""A page that follows running runs."""

import signal
import subprocess
import sys

from click.testing import CliRunner
from report_support import write_run

from fedgram.cli import main
from fedgram.experiments.reader import read_runs
from fedgram.report.page import page
from fedgram.report.watching import follow


def test_a_page_is_written_at_every_change_and_at_no_other_time(tmp_path):
    runs, out = tmp_path / "runs", tmp_path / "report.html"
    runs.mkdir()
    waits = []

    def pause(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            write_run(runs / "afl", "afl", finished=False)
        if len(waits) == 5:
            write_run(runs / "local", "local")
        assert len(waits) < 10

    states = follow([runs], out, pause=pause)
    assert next(states) == "waiting for the first scored round"
    first = out.read_text(encoding="utf-8")
    assert "waiting for the first scored round" in first
    assert "data-again" in first
    assert next(states) == "0 of 1 runs have ended; afl after round 1"
    assert len(waits) == 3
    second = out.read_text(encoding="utf-8")
    assert "running, scored up to round 1" in second
    assert next(states) == "1 of 2 runs have ended; afl after round 1"
    assert len(waits) == 5
    assert min(waits) >= 2


def test_runs_of_a_study_are_found_in_its_folder(tmp_path):
    write_run(tmp_path / "study" / "runs" / "afl-1", "afl")
    write_run(tmp_path / "study" / "runs" / "local-2", "local")
    assert [run.method for run in read_runs([tmp_path / "study"])] == ["afl", "local"]


def test_a_run_whose_record_is_damaged_is_waited_for(tmp_path):
    folder, out = write_run(tmp_path / "afl", "afl"), tmp_path / "report.html"
    scores = (folder / "scores.jsonl").read_text(encoding="utf-8")
    (folder / "scores.jsonl").write_text("{\n", encoding="utf-8")

    def pause(_):
        (folder / "scores.jsonl").write_text(scores, encoding="utf-8")

    states = follow([folder], out, pause=pause)
    assert next(states) == "waiting for the first scored round"
    assert "afl" in out.read_text(encoding="utf-8")  # the cause is named
    assert next(states) == "1 of 1 runs have ended"


def test_after_the_end_the_page_is_the_usual_one(tmp_path):
    write_run(tmp_path / "runs" / "afl", "afl")
    out = tmp_path / "report.html"
    # In the background SIGINT may be ignored, and what is started there inherits that.
    start = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from fedgram.cli import main; main()"
    )
    command = [sys.executable, "-c", start, "report", str(tmp_path / "runs"), "--watch"]
    process = subprocess.Popen(
        [*command, "-o", str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        lines = [process.stdout.readline() for _ in range(2)]
        assert lines[0].startswith(out.as_uri())
        assert lines[1] == "1 of 1 runs have ended\n"
        assert "data-again" in out.read_text(encoding="utf-8")
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, errors) == (0, "")
    assert rest.endswith(" bytes\n")
    assert out.read_text(encoding="utf-8") == page(read_runs([tmp_path / "runs"]))


def test_a_page_that_is_not_watched_does_not_load_itself_again(tmp_path):
    content = page(read_runs([write_run(tmp_path / "afl", "afl")]))
    assert "data-again" not in content
    assert "refresh" not in content
    assert "<noscript>" in page(read_runs([tmp_path / "afl"]), watched="1 of 1")


def test_the_help_names_the_way_out():
    assert "Ctrl-C" in CliRunner().invoke(main, ["report", "--help"]).stdout
