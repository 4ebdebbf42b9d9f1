"""Calls about releases of policies, and about whose keys they are trusted by."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from typing import Annotated

from mainspring.domain import answers
from mainspring.domain.answers.policies.releases import PIECE_BYTES_MAX
from mainspring.domain.codec import WHOLE_MAX
from mainspring.domain.routes.nodes import Limit, Named
from mainspring.domain.routes.routing import Query, route
from mainspring.domain.team import Right


class ReleaseCalls:
    """What people ask and say of releases. RELEASE is "NAME", the newest, or "NAME@VERSION"; see `LabCalls`."""

    @route("GET", "/releases", may=Right.READ_RELEASES, handler="releases.ls", operation="list_releases")
    def releases(
        self, *, name: Named = None, state: answers.ReleaseState | None = None, limit: Limit = 50
    ) -> tuple[answers.ReleaseView, ...]:
        """Lists releases, newest first, without what is signed.

        Args:
            name: Only those of this name.
            state: Only those in this state.
            limit: At most so many.
        """

    @route("POST", "/releases", may=Right.MAKE_RELEASES, handler="releases.create", operation="create_release")
    def create_release(self, body: answers.NewPolicyRelease) -> answers.ReleaseView:
        """Numbers a release whose files are in the object store; it waits for signatures, unless it is automatic."""

    @route("GET", "/releases/{release}", may=Right.READ_RELEASES, handler="releases.show", operation="show_release")
    def release(self, release: str) -> answers.ReleaseView:
        """Shows one release, and what is signed of it."""

    @route("POST", "/releases/{release}/revoke", may=Right.MAKE_RELEASES, handler="releases.revoke", repeats=True)
    def revoke_release(self, release: str, body: answers.Revocation) -> answers.ReleaseView:
        """Lets a release be rolled out no more; robots are told once people have signed targets without it."""

    @route("GET", "/trust", may=Right.READ_RELEASES, handler="releases.trust", operation="show_trust")
    def trust(self) -> answers.TrustView:
        """Tells by whose keys releases are trusted, and what waits for signatures."""

    @route("PUT", "/trust/root", may=Right.SET_TRUST, handler="releases.put_root", operation="set_root")
    def set_root(self, body: answers.SignedText) -> answers.TrustView:
        """Takes a root of trust, signed by as many as it and the one before it ask for."""

    @route("PUT", "/trust/targets", may=Right.MAKE_RELEASES, handler="releases.put_targets", operation="set_targets")
    def set_targets(self, body: answers.SignedText) -> answers.TrustView:
        """Takes signed targets: once enough have signed them, what they hold is published."""

    @route("GET", "/trust/metadata/{file}", may=Right.READ_RELEASES, handler="releases.metadata")
    def trust_metadata(self, file: str) -> bytes:
        """Returns metadata as clients of TUF ask for it, such as `timestamp.json` and `2.targets.json`."""

    @route("GET", "/trust/targets/{folder}/{name}", may=Right.READ_RELEASES, handler="releases.piece")
    def trust_target(
        self,
        folder: str,
        name: str,
        *,
        offset: Annotated[int, Query(ge=0, le=WHOLE_MAX)] = 0,
        limit: Annotated[int, Query(ge=1, le=PIECE_BYTES_MAX)] = PIECE_BYTES_MAX,
    ) -> bytes:
        """Returns a piece of a published target: empty past its end.

        Args:
            folder: Of the target.
            name: Of the target, perhaps with its hash before it.
            offset: Where it begins.
            limit: At most so many bytes.
        """
