"""Code snapshots: the same files give the same id, and only what belongs travels."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from mainspring.app.base.code import TREE_FILES_MAX, snapshot_code
from mainspring.domain.errors import InvalidInput
from mainspring.objects import ObjectStore, open_store


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(f"file://{tmp_path / 'objects'}")


def _git(folder: Path, *words: str) -> None:
    names = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(["git", *names, *words], cwd=folder, check=True, capture_output=True)


def _project(folder: Path) -> Path:
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "train.py").write_text("print(1)\n")
    (folder / ".gitignore").write_text("secret.txt\n")
    (folder / "secret.txt").write_text("token")
    _git(folder, "init", "-q")
    _git(folder, "add", "-A")
    _git(folder, "commit", "-qm", "first")
    return folder


def _names(store: ObjectStore, tree: str) -> list[str]:
    data = store.get(f"code/{tree.removeprefix('blake3:')}.tar.gz")
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return archive.getnames()


def test_snapshot_of_a_git_tree_holds_what_git_knows_from_any_folder_inside(tmp_path: Path, store: ObjectStore) -> None:
    project = _project(tmp_path / "project")
    code = snapshot_code(project / "src", store).code
    assert code.folder == "src"
    assert _names(store, code.tree) == [".gitignore", "src/train.py"]
    assert len(code.commit) == 40
    assert not code.dirty
    assert code.packages.startswith("blake3:")


def test_snapshot_of_a_changed_tree_is_dirty_and_has_another_id(tmp_path: Path, store: ObjectStore) -> None:
    project = _project(tmp_path / "project")
    before = snapshot_code(project, store).code
    (project / "new.py").write_text("x = 1\n")
    after = snapshot_code(project, store).code
    assert after.dirty
    assert after.commit == before.commit
    assert after.tree != before.tree
    assert "new.py" in _names(store, after.tree)


def test_snapshot_of_equal_files_elsewhere_has_the_same_id(tmp_path: Path, store: ObjectStore) -> None:
    first, second = _project(tmp_path / "one"), _project(tmp_path / "two")
    code = snapshot_code(first, store).code
    assert store.size(code.again_key) is None
    assert snapshot_code(second, store).code.tree == code.tree
    assert store.size(code.again_key), "what was stored long ago was submitted just now"


def test_snapshot_outside_git_takes_the_folder(tmp_path: Path, store: ObjectStore) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "run.sh").write_text("true\n")
    code = snapshot_code(folder, store).code
    assert _names(store, code.tree) == ["run.sh"]
    assert code.commit == ""


def test_snapshot_outside_git_leaves_out_what_is_hidden_or_looks_like_a_secret_and_says_so(
    tmp_path: Path, store: ObjectStore
) -> None:
    folder = tmp_path / "plain"
    for name in (
        "run.py",
        "src/a.py",
        "credentials.py",
        ".ssh/id_rsa",
        ".env",
        "prod.env",
        "src/Server.PEM",
        "src/.cache/x",
        "id_ed25519",
        "google-service-account.json",
        "token",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    taken = snapshot_code(folder, store)
    assert _names(store, taken.code.tree) == ["credentials.py", "run.py", "src/a.py"]
    assert taken.left_out == (
        *(".env", ".ssh/", "google-service-account.json", "id_ed25519", "prod.env", "src/.cache/", "src/Server.PEM"),
        "token",
    )
    assert str(taken).startswith(f"Code: 3 files of {folder}, 0.0 MB; left out: .env, .ssh/, google-")


@pytest.mark.slow
def test_snapshot_of_too_many_files_is_refused_with_a_next_step(tmp_path: Path, store: ObjectStore) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(TREE_FILES_MAX + 1):
        (folder / str(number)).touch()
    with pytest.raises(InvalidInput, match="--no-code"):
        snapshot_code(folder, store)


def test_snapshot_code_of_a_tree_with_a_name_that_is_not_utf8_takes_the_file_along(
    store: ObjectStore, tmp_path: Path
) -> None:
    folder = _project(tmp_path / "project")
    name = os.fsdecode(b"bad\xff.txt")
    (folder / name).write_text("x")
    assert name in _names(store, snapshot_code(folder, store).code.tree)
