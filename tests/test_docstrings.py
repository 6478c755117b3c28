"""Docstrings of the library packages: a function of many parameters says what each of them is."""

import ast
from pathlib import Path

import pytest

import fedgram

ROOT = Path(fedgram.__file__).parent
PACKAGES = (
    *("core", "data", "features", "models", "selection", "softmax", "training", "layerwise"),
    *("checks",),
)
FILES = [path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py"))]
MOST_UNDOCUMENTED = 2  # parameters of a function without a section on them


def public_functions(body, in_class=False):
    """Yield public functions with the names of their parameters, without the one of the object."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public_functions(node.body, in_class=True)
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            arguments = node.args
            names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
            if in_class and names and names[0] in ("self", "cls"):
                names = names[1:]
            names += [a.arg for a in arguments.kwonlyargs]
            yield node, [name for name in names if not name.startswith("_")]


def undocumented(source):
    """Return the public functions of many parameters whose docstring does not list them."""
    return [
        node.name
        for node, names in public_functions(ast.parse(source).body)
        if len(names) > MOST_UNDOCUMENTED
        and "Parameters\n----------" not in (ast.get_docstring(node) or "")
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_of_three_and_more_parameters_document_them(path):
    assert not undocumented(path.read_text(encoding="utf-8"))


def test_a_function_without_the_section_is_found():
    source = 'def solve(gram, moment, ridge):\n    """Return the weights."""\n'
    assert undocumented(source) == ["solve"]
    assert undocumented(f"class _Inner:\n    {source.replace(chr(10), chr(10) + '    ')}") == []
