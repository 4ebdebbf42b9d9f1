from __future__ import annotations

from tests.node.conftest import make_rig as make_rig
