"""The house rules that no other tool checks."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "mainspring"
LINES_MAX = 500
FUNCTION_LINES_MAX = 70


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
