"""Build hooks: the C library of exact products, and links of the long description.

The library is compiled where a C compiler is at hand. It is optional: without it the package
installs and gives the same results, by slower ways. A wheel with the library is for one platform, a
wheel without it for all. The installer's output says which way was taken (`pip install -v`), and so
does `fedgram info`.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

FOLDER = Path(__file__).parent / "src" / "fedgram" / "core" / "kernels"
NAME = "libvnni.so.1"
FLAGS = ("-std=c11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden")


def compilers() -> list[list[str]]:
    """Return the commands to try: what ``CC`` names, or else Python's own compiler, cc, gcc."""
    if os.environ.get("CC"):
        return [shlex.split(os.environ["CC"])]
    built = shlex.split(sysconfig.get_config_var("CC") or "")[:1]
    return [command for command in (built, ["cc"], ["gcc"], ["clang"]) if command]


def compiled(library: Path) -> str:
    """Compile the library; return why not, or an empty text."""
    library.unlink(missing_ok=True)
    if platform.machine() not in ("x86_64", "AMD64") or platform.system() == "Windows":
        return f"no library for {platform.system()} on {platform.machine()}"
    tried = []
    for command in compilers():
        if not shutil.which(command[0]):
            continue
        tried.append(command[0])
        done = subprocess.run(
            [*command, *FLAGS, "-o", str(library), str(FOLDER / "vnni.c")],
            capture_output=True,
            check=False,
        )
        if done.returncode == 0 and library.is_file():
            return ""
        library.unlink(missing_ok=True)
    return f"{', '.join(tried)} could not compile it" if tried else "no C compiler was found"


# A link or an image whose target is a file of the sources, not an address or a part of the page.
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")


def long_description(text: str, source: str = "") -> str:
    """Return the README for a package index, where links to files of the sources lead nowhere.

    A link becomes its text, with the file where the text does not name it; an image is left out.
    With the address of the sources of this version, links lead there.
    """

    def replaced(found: re.Match[str]) -> str:
        image, label, target = found.groups()
        path = target.partition("#")[0]
        if image:
            return f"![{label}]({source}/{path})" if source else ""
        if source:
            return f"[{label}]({source}/{target})"
        return label if label == path else f"{label} (`{path}`)"

    return _LINK.sub(replaced, text)


class ReadmeHook(MetadataHookInterface):  # type: ignore[misc]
    """Set the long description from the README."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Set ``readme``, which pyproject.toml declares as dynamic."""
        source = metadata.get("urls", {}).get("Source", "")
        address = f"{source}/blob/v{metadata['version']}" if source else ""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        content = long_description(text, address)
        metadata["readme"] = {"content-type": "text/markdown", "text": content}


class KernelBuildHook(BuildHookInterface):  # type: ignore[misc]
    """Put the library into the wheel, and name the platform if it is inside."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the files are collected: beside the source only if it is installed so."""
        editable = version == "editable"
        self._room = tempfile.TemporaryDirectory()
        library = (FOLDER if editable else Path(self._room.name)) / NAME
        reason = compiled(library)
        if reason:
            self.app.display_warning(f"fedgram: exact products without the C library: {reason}")
            return
        self.app.display_info("fedgram: exact products with the C library (AVX-512 VNNI)")
        if not editable:
            platform_name = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform_name}"
            build_data["force_include"][str(library)] = f"fedgram/core/kernels/{NAME}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the compiled library when the wheel is written."""
        del version, build_data, artifact_path
        self._room.cleanup()
