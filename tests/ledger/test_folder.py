"""The ledgers of a server: secure sums apart from others, and no changes while a run uses them."""

import pytest
from ledger_support import CLASSES, contents, rows, summed

from fedgram.errors import LedgerError
from fedgram.ledger.folder import LOCK, Ledgers, unused
from fedgram.ledger.history import COHORT
from fedgram.ledger.ledger import Ledger, cohort
from fedgram.runtime import files

WIDTH = 9


def of(number, *names):
    return summed([(number + k, name) for k, name in enumerate(names)], CLASSES, WIDTH)


def test_secure_sums_have_ledgers_of_their_own(tmp_path):
    with Ledgers(tmp_path) as ledgers:
        ledgers.of("a" * 64).join("north", of(1, "ant"))
        ledgers.of("a" * 64, cohort=True).join(COHORT, of(2, "bee"), tag="south\nwest")
        assert [each.members for each in ledgers.cohorts(there=True)] == [[COHORT]]
        assert [each.members for each in ledgers.cohorts(there=False)] == [["north"]]
        ledgers.of("a" * 64).leave("north")
        ledgers.of("a" * 64, cohort=True).forget("west", within=COHORT)
        assert ledgers.shut_out().keys() == {"north", "west"}


def test_a_folder_in_use_is_refused(tmp_path):
    with unused(tmp_path):  # no run has ever been here
        pass
    (tmp_path / LOCK).touch()
    refused = pytest.raises(LedgerError, match="a run is using this folder")
    with unused(tmp_path), refused, unused(tmp_path):
        pass
    with (tmp_path / LOCK).open("a") as file:
        assert files.locked(file)


@pytest.mark.parametrize("keep", [False, True])
def test_a_client_of_an_earlier_secure_sum_is_forgotten_and_the_total_stays(tmp_path, keep):
    path = tmp_path / "ledger"
    with Ledger.create(path) as ledger:
        ledger.replace(COHORT, of(1, "ant", "bee"), tag="north\nsouth\nwest", run="0a")
        ledger.publish(shared_digest="a" * 64, model="a.safetensors")
        ledger.replace(COHORT, of(20, "cat"), tag="north\nsouth", keep=keep, run="0b")
        assert (ledger.runs, ledger.summed_clients) == (["0b"], {"north", "south", "west"})
        earlier = of(1, "ant", "bee").digest().encode()
        assert (earlier in contents(path)) == keep
        certificate = ledger.forget("west")
        assert certificate.members == ["north", "south"]
        assert certificate.total_digest == of(20, "cat").digest() == ledger.total.digest()
        assert [model["model"] for model in certificate.published_with] == ["a.safetensors"]
        assert earlier not in contents(path)
        assert ("a" * 64).encode() not in contents(path)
        assert rows(path, "SELECT count(*) FROM contributions") == [(1,)]
        assert cohort(ledger) == ["north", "south"]
        assert ledger.shut_out().keys() == {"west"}
        ledger.verify(certificate)
        with pytest.raises(LedgerError, match="no contributions of this client"):
            ledger.forget("west")


def test_runs_that_use_the_same_sum_are_named_once(tmp_path):
    with Ledger.create(tmp_path / "ledger") as ledger:
        ledger.replace(COHORT, of(1, "ant"), tag="north", run="0a")
        for run in ("0b", "0a", "0b"):
            ledger.add_run(run)
        assert ledger.runs == ["0a", "0b"]
        rows(tmp_path / "ledger", "UPDATE meta SET value = '[1]' WHERE key = 'runs'")
        with pytest.raises(LedgerError, match="not a list of names"):
            _ = ledger.runs
