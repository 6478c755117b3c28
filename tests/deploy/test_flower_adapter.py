"""What fedgram assumes about Flower, one test for each assumption, on the pinned version."""

import logging
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from fedgram.deploy.flower import adapter, state
from fedgram.deploy.flower.gate import Gate

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Flower's dependencies
needs_flower = pytest.mark.skipif(find_spec("flwr") is None, reason="needs the extra [flower]")


def test_flowers_programs_send_no_usage_data_and_write_to_their_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", "/elsewhere")
    found = adapter.environment(tmp_path)
    assert found["FLWR_HOME"] == str(tmp_path)
    assert found["FLWR_TELEMETRY_ENABLED"] == found["RAY_USAGE_STATS_ENABLED"] == "0"
    assert found["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert found["PATH"].split(os.pathsep)[0] == os.path.dirname(sys.executable)


def test_a_missing_program_names_what_to_install():
    with pytest.raises(adapter.ConfigError, match=r"pip install 'fedgram\[flower\]'"):
        adapter.program("flower-that-is-not-there")


def test_paths_that_flower_does_not_accept_are_refused(tmp_path):
    assert adapter.quoted(tmp_path / "a b") == f"'{tmp_path}/a b'"
    with pytest.raises(adapter.ConfigError, match="rename the folder"):
        adapter.quoted(tmp_path / "it's")


def test_an_answer_without_json_is_an_error():
    with pytest.raises(ValueError, match="substring"):
        adapter.read_answer("no connection")


def test_a_run_without_a_status_counts_as_ended_and_failed():
    for answer in ({}, {"runs": []}, {"runs": [{}]}):
        status = adapter.run_status(answer)
        assert adapter.is_finished(status)
        assert status != adapter.COMPLETED


@needs_flower
def test_the_pinned_version_is_installed():
    from importlib.metadata import version

    constraints = (Path(__file__).parents[2] / "constraints.txt").read_text(encoding="utf-8")
    assert f"flwr=={version('flwr')} " in constraints


@needs_flower
def test_variables_of_the_environment_are_those_that_flower_reads():
    from flwr.common import constant
    from flwr.supercore import constant as supercore
    from flwr.supercore import telemetry

    names = set(adapter.environment(Path("home")))
    assert {
        constant.FLWR_HOME,
        constant.FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION,
        supercore.FLWR_DISABLE_UPDATE_CHECK,
    } <= names
    assert '"FLWR_TELEMETRY_ENABLED"' in Path(telemetry.__file__).read_text(encoding="utf-8")


@needs_flower
@pytest.mark.parametrize("root", [None, Path("/certificates/ca.crt")])
def test_flower_reads_the_configuration(tmp_path, monkeypatch, root):
    from flwr.cli.flower_config import read_superlink_connection

    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    (tmp_path / "config.toml").write_text(adapter.configuration("127.0.0.1:8000", root))
    found = read_superlink_connection(adapter.SERVER)
    assert found.address == "127.0.0.1:8000"
    assert bool(found.insecure) == (root is None)
    assert found.root_certificates == (root and str(root))


@needs_flower
@pytest.mark.parametrize("folder", [None, Path("server")])
def test_the_superlink_has_these_options(folder):
    from flwr.superlink.cli import flower_superlink as module

    parser = sys.modules[module.__module__]._parse_args_run_superlink()
    options = adapter.superlink_options(
        host="127.0.0.1", port=8000, certificates=folder, database=folder and folder / "state.db"
    )
    found = parser.parse_args(options)
    assert (found.host, int(found.port)) == ("127.0.0.1", 8000)
    assert (found.insecure, found.simulation) == (folder is None, folder is None)
    assert found.enable_supernode_auth == (folder is not None)
    if folder:
        assert (found.ssl_certfile, found.ssl_keyfile, found.ssl_ca_certfile, found.database) == (
            *("server/server.pem", "server/server.key", "server/ca.crt", "server/state.db"),
        )


@needs_flower
def test_the_supernode_has_these_options():
    from flwr.common.config import parse_config_args
    from flwr.supernode.cli import flower_supernode as module

    parser = sys.modules[module.__module__]._parse_args_run_supernode()
    options = adapter.supernode_options(
        server="fl.example.org:8000",
        root=Path("ca.crt"),
        key=Path("node"),
        port=9000,
        settings=Path("/a b/site.toml"),
    )
    found = parser.parse_args(options)
    assert found.superlink == "fl.example.org:8000"
    assert (str(found.root_certificates), str(found.auth_supernode_private_key)) == (
        *("ca.crt", "node"),
    )
    assert int(found.port) == 9000
    assert parse_config_args([found.node_config]) == {"site": "/a b/site.toml"}


@needs_flower
@pytest.mark.parametrize(
    ("command", "options"),
    [
        (["run"], ["--federation-config", "--run-config", "--format"]),
        (["list"], ["--run-id", "--format"]),
        (["log"], ["--stream"]),
        (["stop"], ["--format"]),
        (["supernode", "register"], ["--name", "--format"]),
        (["supernode", "unregister"], ["--format"]),
    ],
)
def test_the_command_line_has_these_commands_and_options(command, options):
    from flwr.cli.app import app
    from typer.main import get_command

    found = get_command(app)
    for name in command:
        found = found.commands[name]
    known = {option for parameter in found.params for option in parameter.opts}
    assert set(options) <= known


@needs_flower
def test_an_error_is_printed_as_json_with_these_keys(capsys):
    from flwr.common.constant import PUBLIC_KEY_ALREADY_IN_USE_MESSAGE
    from flwr.supercore.logger import print_json_error

    sys.stdout.write("a warning\n")
    print_json_error(f"The command failed:\n{PUBLIC_KEY_ALREADY_IN_USE_MESSAGE}", ValueError("x"))
    answer = adapter.read_answer(capsys.readouterr().out)
    assert answer["success"] is False
    message = adapter.error_message(answer)
    assert message == f"The command failed: {PUBLIC_KEY_ALREADY_IN_USE_MESSAGE} x"
    assert adapter.is_registered_already(answer)
    assert not adapter.is_registered_already({"error-message": "the server does not answer"})


@needs_flower
def test_the_answer_to_a_known_key_is_recognized():
    from flwr.supercore.error.catalog import API_ERROR_MAP, ApiErrorCode

    text = API_ERROR_MAP[ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE].public_message
    assert adapter.is_registered_already({"error-message": text})


@needs_flower
def test_a_status_has_these_words():
    from flwr.common.constant import Status, SubStatus

    assert f"{Status.FINISHED}:{SubStatus.COMPLETED}" == adapter.COMPLETED
    for word in (Status.PENDING, Status.STARTING, Status.RUNNING):
        assert not adapter.is_finished(word)
    for word in (SubStatus.COMPLETED, SubStatus.FAILED, SubStatus.STOPPED):
        assert adapter.is_finished(f"{Status.FINISHED}:{word}")


@needs_flower
def test_the_http_api_has_these_paths():
    from flwr.supercore.routers import health
    from flwr.superlink.routers.fleet.router import router as fleet

    assert adapter.HEALTH in [route.path for route in health.router.routes]
    assert fleet.routes
    assert all(route.path.startswith(adapter.FLEET) for route in fleet.routes)


@needs_flower
def test_the_superlink_serves_its_app_by_uvicorn_run(tmp_path, monkeypatch):
    import uvicorn

    served = []
    monkeypatch.setattr(uvicorn, "run", lambda **settings: served.append(settings))
    options = adapter.superlink_options(host="127.0.0.1", port=8000)
    monkeypatch.setattr(sys, "argv", ["flower-superlink", *options])
    for name, value in adapter.environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    adapter.run_superlink(Gate)
    (settings,) = served
    assert isinstance(settings["app"], Gate)
    assert (settings["host"], settings["port"]) == ("127.0.0.1", 8000)


@needs_flower
def test_a_line_of_flowers_log_gives_the_reason():
    from flwr.supercore.logger import console_handler

    record = logging.LogRecord("flwr", logging.ERROR, "", 0, "cannot connect", (), None)
    line = re.sub(r"\x1b\[[0-9;]*m", "", console_handler.format(record))
    assert adapter.ERROR_LINE.search(line)["why"] == "cannot connect"


@needs_flower
def test_every_table_of_flower_with_content_is_cleaned_or_holds_no_message():
    from flwr.supercore.state.schema import corestate_tables, linkstate_tables, objectstore_tables
    from sqlalchemy import LargeBinary

    harmless = {"node", "fab", "automation", "series_context"}  # keys, programs, requests to run
    made = [
        corestate_tables.create_corestate_metadata(),
        linkstate_tables.create_linkstate_metadata(),
        objectstore_tables.create_objectstore_metadata(),
    ]
    tables = {name: table for each in made for name, table in each.tables.items()}
    content = {
        name
        for name, table in tables.items()
        if any(isinstance(column.type, LargeBinary) for column in table.columns)
    }
    assert content <= {*state.MESSAGES} | harmless
    assert {*state.MESSAGES} <= {*tables}
    for name in state.MESSAGES:  # those that refer to others come first
        targets = {key.column.table.name for key in tables[name].foreign_keys}
        later = state.MESSAGES[: state.MESSAGES.index(name)]
        assert not targets & {*later}


@needs_flower
def test_a_database_that_a_superlink_has_open_is_left_alone_and_cleaned_afterwards(tmp_path):
    from flwr.supercore.object_store.sql_object_store import SqlObjectStore
    from flwr.supercore.state.schema.objectstore_models import StoredObject
    from sqlalchemy import delete, insert

    path, message = tmp_path / state.DATABASE, os.urandom(100_000)

    def there():
        return any(message[5000:5100] in file.read_bytes() for file in tmp_path.iterdir())

    store = SqlObjectStore(str(path))
    store.initialize()
    with store._engine.begin() as connection:
        connection.execute(insert(StoredObject).values(object_id="a", content=message))
    with store._engine.begin() as connection:
        connection.execute(delete(StoredObject))  # as at the end of a run
    assert there()
    assert not state.clean(path)
    store._engine.dispose()
    assert state.clean(path)
    assert not there()
    again = SqlObjectStore(str(path))  # Flower still reads it
    again.initialize()
    again._engine.dispose()
