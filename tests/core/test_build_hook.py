"""The C library is optional: without a compiler the build goes on, and says so."""

import importlib.util
import shutil
import sys
import types
from pathlib import Path

import pytest

HOOK = Path(__file__).parents[2] / "hatch_build.py"


@pytest.fixture
def hook(monkeypatch):
    """The build hook, with a stand-in for the build backend, which tests do not install."""
    plugins = {
        "hatchling.builders.hooks.plugin.interface": "BuildHookInterface",
        "hatchling.metadata.plugin.interface": "MetadataHookInterface",
    }
    for path, name in plugins.items():
        parts = path.split(".")
        for end in range(1, len(parts)):
            above = ".".join(parts[:end])
            monkeypatch.setitem(sys.modules, above, types.ModuleType(above))
        plugin = types.ModuleType(path)
        setattr(plugin, name, object)
        monkeypatch.setitem(sys.modules, path, plugin)
    spec = importlib.util.spec_from_file_location("hatch_build", HOOK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def built(hook, version):
    lines = []
    made = hook.KernelBuildHook()
    made.app = types.SimpleNamespace(display_info=lines.append, display_warning=lines.append)
    data = {"force_include": {}, "artifacts": []}
    made.initialize(version, data)
    made.finalize(version, data, "")
    return data, " ".join(lines)


def test_without_a_compiler_the_wheel_is_pure_and_the_installer_says_so(hook, monkeypatch):
    monkeypatch.setenv("CC", "false")
    data, said = built(hook, "standard")
    assert data == {"force_include": {}, "artifacts": []}
    assert "without the C library" in said


def test_other_processors_are_left_out(hook, monkeypatch, tmp_path):
    monkeypatch.setattr(hook.platform, "machine", lambda: "aarch64")
    assert "aarch64" in hook.compiled(tmp_path / "library")


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_with_a_compiler_the_wheel_has_the_library_and_its_platform(hook, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    if hook.platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("the library is for x86_64")
    data, said = built(hook, "standard")
    assert list(data["force_include"].values()) == ["fedgram/core/kernels/libvnni.so.1"]
    assert data["pure_python"] is False
    assert data["tag"].startswith("py3-none-")
    assert "with the C library" in said


# The long description


def test_links_to_files_of_the_sources_become_text(hook):
    text = (
        "[choosing](docs/choosing.md), [docs/a.md](docs/a.md), [part](docs/b.md#c), "
        "[paper](https://x.org/a), [below](#here), ![a picture](docs/flow.svg)"
    )
    assert hook.long_description(text) == (
        "choosing (`docs/choosing.md`), docs/a.md, part (`docs/b.md`), "
        "[paper](https://x.org/a), [below](#here), "
    )


def test_with_an_address_of_the_sources_links_lead_there(hook):
    made = hook.ReadmeHook()
    made.root = str(HOOK.parent)
    metadata = {"version": "1.2.0", "urls": {"Source": "https://x.org/fedgram"}}
    made.update(metadata)
    text = metadata["readme"]["text"]
    assert "](https://x.org/fedgram/blob/v1.2.0/docs/choosing.md)" in text
    assert "](docs/" not in text
