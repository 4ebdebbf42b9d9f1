"""The controller: one store, one loop that observes, plans, commits and acts, and the API that everybody calls.

`Control` is the whole offer behind one class; `create_app` puts it on HTTP; a `Server` on a socket from `listen` runs
both until told to stop.
"""

from typing import TYPE_CHECKING

from mainspring.lazy import names_of

if TYPE_CHECKING:
    from mainspring.control.api import create_app
    from mainspring.control.connections import Tls, listen
    from mainspring.control.control import Control
    from mainspring.control.loop.loop import Loop, Step
    from mainspring.control.server import Server
    from mainspring.control.store.settings import AgentAccess, Settings
    from mainspring.control.store.store import Store, open_store
    from mainspring.control.store.tokens import LAB_ITSELF, Caller
else:
    __getattr__, __dir__ = names_of(__name__)
