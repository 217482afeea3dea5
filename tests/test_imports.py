"""The import rules: one direction, through doors, and each heavy engine behind one importer.

schemas <- bus, environments <- producers, consumers (never each other) <- headrace.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAY_IMPORT = {
    "schemas": set(),
    "bus": {"schemas"},
    "environments": {"schemas"},
    "producers": {"bus", "schemas", "environments"},
    "consumers": {"bus", "schemas", "environments"},
    "headrace": {"bus", "schemas", "environments", "producers", "consumers"},
}
IMPORTERS = {
    "vllm": ["producers/generator/vllm_engine.py", "producers/generator/vllm_worker.py"],
    "torchtitan": ["consumers/trainer/titan/"],
    "nats": ["bus/"],
}
HEAVY = ["torch", "torchtitan", "transformers", "vllm"]
FOLDERS = sorted(MAY_IMPORT)


@cache
def modules() -> dict[str, ast.Module]:
    """Every source file of the six folders, by path from the root."""
    return {
        str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


def imported(path: str, tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Absolute names of all that a file imports, inside functions as well, with line numbers."""
    package = Path(path).parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            yield ".".join([*above, *([node.module] if node.module else [])]), node.lineno


def doors() -> set[str]:
    return {".".join(Path(path).parent.parts) for path in modules() if path.endswith("__init__.py")}


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_point_one_way(folder: str) -> None:
    forbidden = set(FOLDERS) - MAY_IMPORT[folder] - {folder}
    wrong = [
        f"{path}:{line} imports {name}"
        for path, tree in modules().items()
        if path.startswith(f"{folder}/")
        for name, line in imported(path, tree)
        if name.split(".")[0] in forbidden
    ]
    assert wrong == []


def test_other_folders_use_the_door() -> None:
    """Or a settings module: those are data, and a door may not be loaded yet where they are read."""
    wrong = [
        f"{path}:{line} imports {name}"
        for path, tree in modules().items()
        for name, line in imported(path, tree)
        if name.split(".")[0] in FOLDERS
        and name.split(".")[0] != path.split("/")[0]
        and name not in doors()
        and not name.endswith(".settings")
    ]
    assert wrong == []


@pytest.mark.parametrize("library", sorted(IMPORTERS))
def test_engine_has_one_importer(library: str) -> None:
    found = {
        path for path, tree in modules().items() for name, _ in imported(path, tree) if name.split(".")[0] == library
    }
    assert found
    assert [path for path in sorted(found) if not path.startswith(tuple(IMPORTERS[library]))] == []


def test_doors_load_no_heavy_engine() -> None:
    program = (
        f"import importlib, json, sys; [importlib.import_module(name) for name in {sorted(doors())!r}]; "
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    )
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) == []


def test_no_source_file_is_ignored_by_git() -> None:
    """An ignored ``models/`` once kept the package headrace.models out of every clone."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    sources = [f"{folder}/*.py" for folder in FOLDERS]
    ignored = subprocess.run(
        ["git", "ls-files", "--others", "--ignored", "--exclude-standard", "--", *sources],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ignored.stdout.split() == []


def door_names(tree: ast.Module) -> tuple[list[str], set[str]]:
    """What a door says it exports, and what it makes visible: imported names, at once or when first asked for."""
    said: list[str] = []
    visible: set[str] = set()
    nodes = list(tree.body)
    for node in nodes:
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                nodes.extend(node.body)
            case ast.ImportFrom(level=level) if level:
                visible |= {alias.asname or alias.name for alias in node.names}
            case ast.Assign(targets=[ast.Name(id="__all__")]):
                said = ast.literal_eval(node.value)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                visible.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                visible.add(name)
    return said, {name for name in visible if not name.startswith("_")}


@pytest.mark.parametrize("path", sorted(path for path in modules() if path.endswith("__init__.py")))
def test_door_names_are_sorted_and_all_that_is_visible(path: str) -> None:
    said, visible = door_names(modules()[path])
    assert set(said) == visible
    # Constants, then classes, then functions, each by name: the order that ruff's RUF022 keeps.
    assert said == sorted(said, key=lambda name: (0 if name.isupper() else 1 if name[0].isupper() else 2, name))
