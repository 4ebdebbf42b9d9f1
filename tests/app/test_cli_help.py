"""What `ms --help` shows."""

from __future__ import annotations

from mainspring.app.cli.main import GROUPS, PANELS, VERBS


def test_every_verb_and_group_of_them_is_shown_in_one_panel() -> None:
    shown = [name for names in PANELS.values() for name in names]
    assert sorted(shown) == sorted([*VERBS, *GROUPS])
