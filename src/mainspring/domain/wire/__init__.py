"""Every message between the processes of a run, and every kind of event.

Rank <-> agent over a Unix socket (`rank`), agent <-> lead and agent <-> agent over TCP (`node`), agent and lead <->
controller over HTTP (`controller`); what people's tools and the controller say to each other is in `answers`. Streams
carry frames (`codec.frame`). What may come in at each end is a union at the foot of its file, and whoever reads there
matches all of it: a new message is its class with its place in a union, who sends it, and the `match` that mypy names.
A field may be added with a default; a release may add messages, kinds of event and outcomes of attempts, of which the
release before it makes `Unknown`. Anything else is a new version. Times are seconds since the Unix epoch unless a name
says otherwise.
"""

from typing import TYPE_CHECKING

from mainspring.lazy import names_of

if TYPE_CHECKING:
    from mainspring.domain.wire.controller import *
    from mainspring.domain.wire.facts import *
    from mainspring.domain.wire.node import *
    from mainspring.domain.wire.rank import *
else:
    __getattr__, __dir__ = names_of(__name__)
