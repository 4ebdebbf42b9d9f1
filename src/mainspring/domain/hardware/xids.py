"""Xids: the numbers under which NVIDIA's driver writes to the kernel's log what went wrong, and what each asks for.

Source: "Analyzing Xid Errors with the Xid Catalog" (docs.nvidia.com/deploy/xid-errors), for Ampere and newer: the
immediate action of every code that such a chip can give and that has one. Where that is a workflow, the first step of
it. Words are ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from mainspring.domain.hardware.health import Repair


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """What one code means.

    Args:
        words: For people.
        action: NVIDIA's word for what to do at once, "" where its catalogue has none.
        repair: What that is here.
        fatal: Whether the device is of no use until that is done.
    """

    code: int
    words: str
    action: str
    repair: Repair
    fatal: bool


# What NVIDIA's words ask for here, and whether the device is of no use until then.
_ACTIONS: Mapping[str, tuple[Repair, bool]] = {
    "IGNORE": (Repair.NONE, False),
    "RESTART_APP": (Repair.RESTART_RANKS, False),
    "RESET_GPU": (Repair.RESET_DEVICE, True),
    "RESTART_BM": (Repair.RESTART_NODE, True),
    "RESTART_VM": (Repair.RESTART_NODE, True),
    "CHECK_MECHANICALS": (Repair.CALL_PEOPLE, True),
    "UPDATE_SWFW": (Repair.CALL_PEOPLE, False),
    "CHECK_UVM": (Repair.CALL_PEOPLE, False),
    "CONTACT_SUPPORT": (Repair.CALL_PEOPLE, False),
    "WORKFLOW_XID_45": (Repair.NONE, False),  # It follows another; alone, a program was ended.
    "WORKFLOW_XID_48": (Repair.RESET_DEVICE, True),
    "WORKFLOW_NVLINK_ERR": (Repair.RESET_DEVICE, True),
    "WORKFLOW_NVLINK5_ERR": (Repair.CALL_PEOPLE, False),  # Its fields tell whether it is fatal; alone it does not.
    "XID_154": (Repair.NONE, False),  # It repeats what another asks for.
    "": (Repair.NONE, False),
}
_CODES: tuple[tuple[str, str, Iterable[int]], ...] = (
    ("IGNORE", "made up by a program, for tests", (14, 106, 107)),
    ("IGNORE", "error of the driver's firmware", (37, 38)),
    ("IGNORE", "a program's own fault ended it", (43,)),
    ("IGNORE", "fault while contexts were switched", (44,)),
    ("IGNORE", "a row of memory is remapped", (63,)),
    ("IGNORE", "illegal access by the driver", (66, 67)),
    ("IGNORE", "many single-bit errors", (92,)),
    ("IGNORE", "more writes to the information ROM than are provided for", (93,)),
    ("IGNORE", "illegal access over NVLink", (108, 137)),
    ("IGNORE", "corrected errors on the link to the processor", (121,)),
    ("IGNORE", "error of CUDA's fast path", (141,)),
    ("IGNORE", "nothing is left to put in place of what failed", (157,)),
    ("IGNORE", "a channel is retired", (160, 161)),
    ("RESTART_APP", "a program made it stop", (8,)),
    ("RESTART_APP", "invalid stream of commands", (11, 25, 32)),
    ("RESTART_APP", "exception of the compute engine", (13, 69)),
    ("RESTART_APP", "page fault of its memory", (31,)),
    ("RESTART_APP", "exception of a copy engine", (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136))),
    ("RESTART_APP", "exception of a video engine", (60, 68, 82, 83, 84, 86, 88, 89, *range(96, 106), 139)),
    ("RESTART_APP", "corrupted data came to it", (80,)),
    ("RESTART_APP", "memory error that one program alone has", (94,)),
    ("WORKFLOW_XID_45", "a program was removed, after another error", (45,)),
    ("WORKFLOW_XID_48", "uncorrectable memory error", (48,)),
    ("RESET_GPU", "it stopped", (46, 158)),
    ("RESET_GPU", "its power controller stopped", (62,)),
    ("RESET_GPU", "a row of memory could not be remapped", (64,)),
    ("RESET_GPU", "memory error that several programs may have", (95,)),
    ("RESET_GPU", "contexts could not be switched", (109,)),
    ("RESET_GPU", "security fault", (110,)),
    ("RESET_GPU", "its system processor does not answer", (119,)),
    ("RESET_GPU", "error of its system processor", (120,)),
    ("RESET_GPU", "its links could not be trained", (136,)),
    ("RESET_GPU", "uncorrectable memory error that could not be kept in bounds", (140,)),
    ("RESET_GPU", "it could not be initialized", (143,)),
    ("RESET_GPU", "NVLink is down", (155,)),
    ("RESET_GPU", "something of it is retired", (156,)),
    ("CHECK_MECHANICALS", "its power is not connected", (54,)),
    ("WORKFLOW_NVLINK_ERR", "error of NVLink", (74,)),
    ("UPDATE_SWFW", "a virtual one could not be started", (78,)),
    ("RESTART_BM", "it has fallen off the bus", (79,)),
    ("CONTACT_SUPPORT", "exception of a video engine", (142,)),
    ("WORKFLOW_NVLINK5_ERR", "error of NVLink", range(144, 151)),
    ("RESTART_VM", "keys could not be changed", (151,)),
    ("XID_154", "what would recover it has changed", (154,)),
    ("CHECK_UVM", "error of the coherent link", (159,)),
    ("", "power smoothing has changed, or wears out", range(162, 166)),
    ("", "error of confidential computing", (166, 170)),
    ("", "timeout on the bus", (167,)),
    ("", "less memory than it should have", (168,)),
    ("", "its security processor stopped", (169,)),
    ("", "where an uncorrectable error was: in memory, or in a cache", (171, 172)),
)


def _listed() -> Iterator[Xid]:
    for action, words, codes in _CODES:
        repair, fatal = _ACTIONS[action]
        yield from (Xid(code=code, words=words, action=action, repair=repair, fatal=fatal) for code in codes)


XIDS: Mapping[int, Xid] = {one.code: one for one in _listed()}


def xid_of(code: int) -> Xid:
    """Returns what a code means; one that the catalogue does not list asks for people, and is not fatal."""
    known = XIDS.get(code)
    if known is not None:
        return known
    repair, fatal = _ACTIONS["CONTACT_SUPPORT"]
    return Xid(code=code, words="not known here", action="CONTACT_SUPPORT", repair=repair, fatal=fatal)
