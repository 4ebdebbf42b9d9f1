"""The house rules that no other tool checks."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from mainspring.domain.release import RELEASE

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "mainspring"
LINES_MAX = 500
FUNCTION_LINES_MAX = 70
ATTRIBUTES_MAX = 15
ARGUMENTS_MAX = 7
FILES_MAX = 12
ALIKE_MAX = 20  # Where all files of a package are of one kind.
ALIKE = {"data/readers", "data/readers/episodes"}  # Readers.
GROWING = {"control/store/migrations/versions"}  # One more for every change of tables, for good.


def _tracked(pattern: str) -> list[Path]:
    """Returns tracked and new files that match, so that a file is judged before it is committed."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [path for line in listed.stdout.splitlines() if (path := ROOT / line).is_file()]


@cache
def _modules() -> dict[Path, ast.Module]:
    """Returns the package's modules, by their paths below it."""
    return {path.relative_to(PACKAGE): ast.parse(path.read_text()) for path in _tracked("src/*.py")}


def _classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def test_files_of_python_stay_within_their_length() -> None:
    long = {str(path): count for path in _tracked("*.py") if (count := len(path.read_text().splitlines())) > LINES_MAX}
    assert not long


def test_functions_stay_within_their_length() -> None:
    long = []
    for path in _tracked("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                count = (node.end_lineno or node.lineno) - node.lineno + 1
                if count > FUNCTION_LINES_MAX:
                    long.append(f"{path}:{node.lineno} {node.name} has {count} lines")
    assert not long


def test_sources_hold_no_unfinished_marks() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
    found = [str(path) for path in _tracked("src/*.py") if marks.search(path.read_text())]
    assert not found


def test_tests_neither_mock_nor_sleep() -> None:
    marks = re.compile(r"unittest\.mock|MagicMock|monkeypatch\.setattr|time\.sleep\(")
    found = [str(path) for path in _tracked("tests/*.py") if path != Path(__file__) and marks.search(path.read_text())]
    assert not found


@pytest.mark.parametrize("room", sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()))
def test_rooms_each_have_a_readme_under_a_page(room: str) -> None:
    readme = PACKAGE / room / "README.md"
    assert readme.exists()
    assert 5 <= len(readme.read_text().splitlines()) <= 80


def test_repository_names_no_path_of_one_machine() -> None:
    home = re.compile(r"/(work|root|home/\w+)/\w")
    texts = [
        path for path in _tracked("*") if path.suffix in {".py", ".md", ".toml", ".txt"} and path != Path(__file__)
    ]
    assert not [str(path) for path in texts if home.search(path.read_text())]


def test_release_is_the_one_of_the_package_and_has_news() -> None:
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    news = re.findall(r"(?m)^## (\S+)$", (ROOT / "CHANGELOG.md").read_text())
    assert (RELEASE, news[0]) == (stated, stated)


def test_packages_hold_few_files() -> None:
    counts = Counter(str(path.parent) for path in _modules() if path.name != "__init__.py")
    counts = Counter({name: count for name, count in counts.items() if name not in GROWING})
    assert not {name: count for name, count in counts.items() if count > (ALIKE_MAX if name in ALIKE else FILES_MAX)}


def test_classes_that_are_no_values_stay_small() -> None:
    large = []
    for path, tree in _modules().items():
        for found in _classes(tree):
            if any(re.search(r"\b(dataclass|message)\b", ast.unparse(word)) for word in found.decorator_list):
                continue
            own = {name for node in ast.walk(found) if (name := _set_on_self(node))}
            made = [node.args for node in found.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
            arguments = sum(len([*each.posonlyargs, *each.args, *each.kwonlyargs]) - 1 for each in made)
            if len(own) > ATTRIBUTES_MAX or arguments > ARGUMENTS_MAX:
                large.append(f"{path} {found.name}: {len(own)} attributes, {arguments} arguments")
    assert not large


def _set_on_self(node: ast.AST) -> str:
    """Returns what is set on `self`, "" for anything else."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
        return node.attr if node.value.id == "self" else ""
    return ""


def test_public_class_names_mean_one_thing_where_they_are_met() -> None:
    """A name is unique in its room, is none of `domain`, and none of a class that its room imports."""
    rooms: dict[str, list[str]] = defaultdict(list)
    imported: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for path, tree in _modules().items():
        room = path.parts[0]
        rooms[room] += [
            each.name for each in tree.body if isinstance(each, ast.ClassDef) and not each.name.startswith("_")
        ]
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mainspring."):
                other = (node.module or "").split(".")[1]
                imported[room] |= {(other, alias.name) for alias in node.names if other != room}
    twice = [
        (room, name)
        for room, names in rooms.items()
        for name, count in Counter(names).items()
        if count > 1
        or (room != "domain" and name in rooms["domain"])
        or any(name == theirs and name in rooms[other] for other, theirs in imported[room])
    ]
    assert not twice
