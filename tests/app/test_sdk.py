"""The package's own verbs: those of the lab in the default home folder."""

from __future__ import annotations

from pathlib import Path

import pytest

import mainspring as ms
import mainspring.objects


def test_package_verbs_speak_of_the_default_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MAINSPRING_HOME", str(tmp_path / "default"))
    with pytest.raises(ms.MainspringError, match=r"default.*ms up"):
        ms.ps()
    assert ms.Lab().data.datasets() == ()
    assert ms.down() is False


def test_package_without_such_a_name_says_so() -> None:
    with pytest.raises(AttributeError, match="no attribute 'launch'"):
        ms.launch


def test_package_has_every_verb_of_the_lab_and_rooms_stay_rooms(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MAINSPRING_HOME", str(tmp_path))
    for verb in ("again", "events", "goodput", "plan", "run", "set_team", "wait", "what_if", "why"):
        assert callable(getattr(ms, verb))
    for other in ("call", "client", "home", "clusters"):
        with pytest.raises(AttributeError):
            getattr(ms, other)
    assert ms.objects.__name__ == "mainspring.objects"
