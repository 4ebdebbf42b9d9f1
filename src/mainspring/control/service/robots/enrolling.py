"""What people say of robots: who is enrolled, in which group, what one installs; and how a robot is let in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, final

import sqlalchemy as sa
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from mainspring.control.service.releases.keeping import PolicyReleases
from mainspring.control.service.robots.membership import known_rollouts, ring_of
from mainspring.control.service.robots.news import tell_rollout
from mainspring.control.store.audit import note
from mainspring.control.store.records import tenants, text_of
from mainspring.control.store.robots import records
from mainspring.control.store.robots.records import RobotRecord, RobotTokenRecord, secret_hash
from mainspring.control.store.robots.tables import robots
from mainspring.control.store.store import Store
from mainspring.control.store.tokens import LAB_ITSELF, Caller, draw_secret
from mainspring.domain.answers import (
    ActionState,
    Enrolled,
    NewInstallation,
    NewRobot,
    ReleaseState,
    ReleaseView,
    RobotActionView,
    RobotClaim,
    RobotLabels,
    RobotState,
    RobotToken,
    RobotView,
)
from mainspring.domain.answers.policies.robots import claim_words
from mainspring.domain.errors import Conflict, InvalidInput, LimitReached, NotAllowed, NotFound, nearest
from mainspring.domain.job import LAB
from mainspring.domain.ports import Clock, Dice
from mainspring.domain.team import Right, TeamRole

ROBOTS_MAX = 100_000
_GATEWAY = ""  # The robot of the token that gateways enter by.


@final
class Robots:
    """The robots of one controller. Used by many threads.

    Args:
        poll_s: How often they are to call.
    """

    def __init__(self, store: Store, clock: Clock, dice: Dice, releases: PolicyReleases, *, poll_s: float) -> None:
        self._store = store
        self._clock = clock
        self._poll_s = poll_s
        self._dice = dice
        self._releases = releases
        self._known = known_rollouts(store)

    # ---------------------------------------------------------------- people

    def ls(
        self,
        caller: Caller = LAB_ITSELF,
        *,
        group: str | None = None,
        label: str | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> tuple[RobotView, ...]:
        """Returns robots in order of name.

        Args:
            group: Only those of this group, unless None.
            label: Only those that have it, as "NAME=VALUE" or "NAME", unless None.
            after: The last one seen, None to begin.
        """
        query = records.ROBOT_ROWS.select.order_by(robots.c.name)
        for wanted in (
            robots.c.group == group if group is not None else None,
            robots.c.name > after if after is not None else None,
        ):
            query = query if wanted is None else query.where(wanted)
        if label is not None:  # Kept as JSON without spaces: a first sieve, which the one below makes exact.
            query = query.where(robots.c.labels.contains(text_of(label.partition("=")[0]), autoescape=True))
        with self._store.read() as connection:
            found = records.ROBOT_ROWS.read(connection, query if label is not None else query.limit(limit))
            chosen = [robot for robot in found if has_label(robot.labels, label)][:limit]
            rings = self._known.rings(connection)
            return tuple(self._view(connection, robot, rings) for robot in chosen)

    def show(self, robot: str, caller: Caller = LAB_ITSELF) -> RobotView:
        """Returns one robot.

        Raises:
            NotFound: There is none of that name.
        """
        with self._store.read() as connection:
            return self._view(connection, records.robot_of(connection, robot), self._known.rings(connection))

    def _view(self, connection: sa.Connection, robot: RobotRecord, rings: Mapping[int, Mapping[str, str]]) -> RobotView:
        done = None if robot.key else records.last_done(connection, robot.name)
        live = records.live_action(connection, robot.name)
        seen, place = records.view_robot(robot, live, "" if done is None else done.release), ring_of(rings, robot.name)
        return replace(seen, rollout=place.rollout, ring=place.ring)

    def invite(self, asked: NewRobot, caller: Caller = LAB_ITSELF) -> RobotToken:
        """Returns the token by which a robot is enrolled; a plain client of DDI is enrolled at once.

        Raises:
            NotAllowed: The caller may not enrol robots of that team.
            NotFound: There is no such team.
            LimitReached: There are too many robots.
        """
        now_s, secret = self._clock.now_s(), draw_secret(self._dice)
        with self._store.write() as connection:
            known = {LAB, *(team.name for team in tenants(connection))}
            if asked.team not in known:
                raise NotFound("enrol a robot", on=f"team {asked.team!r}", wanted=nearest(asked.team, known))
            caller.require(connection, Right.MANAGE_ROBOTS, asked.team)
            before = records.find_robot(connection, asked.name)
            if before is not None and before.team != asked.team:
                caller.require(connection, Right.MANAGE_ROBOTS, before.team)
            _require_room(connection)
            ends_s = None if asked.plain else now_s + asked.hours * 3_600.0
            if asked.plain:
                made = _robot(asked, before, str(caller), now_s)
                records.save_robot(connection, replace(made, key="", sha256=secret_hash(secret)))
            else:
                token = _token(asked, secret, str(caller), now_s, ends_s)
                records.save_robot_token(connection, token)
            note(connection, caller, "enrol a robot", asked.name, team=asked.team, now_s=now_s)
        return RobotToken(robot=asked.name, secret=secret, expires_s=ends_s)

    def gateway(self, caller: Caller = LAB_ITSELF) -> RobotToken:
        """Returns the token of the lab's gateways, in place of the one before.

        Raises:
            NotAllowed: The caller may not enrol robots of the whole lab.
        """
        now_s, secret = self._clock.now_s(), draw_secret(self._dice)
        with self._store.write() as connection:
            caller.require(connection, Right.MANAGE_ROBOTS, LAB)
            asked = NewRobot(name="gateway", plain=True)
            token = replace(_token(asked, secret, str(caller), now_s, None), robot=_GATEWAY)
            records.save_robot_token(connection, token)
            note(connection, caller, "make a gateway's token", "", now_s=now_s)
        return RobotToken(robot=_GATEWAY, secret=secret)

    def label(self, robot: str, asked: RobotLabels, caller: Caller = LAB_ITSELF) -> RobotView:
        """Gives a robot another group or other labels, and returns it.

        Raises:
            NotFound: There is none of that name.
            NotAllowed: The caller may not change robots of its team.
        """
        fields: dict[str, Any] = {"group": asked.group, "labels": asked.labels}
        changed = {name: value for name, value in fields.items() if value is not None}
        return self._change(robot, "label a robot", changed, caller)

    def revoke(self, robot: str, caller: Caller = LAB_ITSELF, *, reason: str = "") -> RobotView:
        """Lets a robot call no more, nor enter by a token made before, and returns it.

        Raises:
            NotFound: There is none of that name.
            NotAllowed: The caller may not change robots of its team.
        """
        told = f"{robot}: {reason}" if reason else robot
        return self._change(robot, "revoke a robot", {"state": RobotState.REVOKED, "sha256": ""}, caller, told)

    def _change(
        self, robot: str, what: str, fields: Mapping[str, Any], caller: Caller, told: str | None = None
    ) -> RobotView:
        now_s = self._clock.now_s()
        with self._store.write() as connection:
            found = records.robot_of(connection, robot)
            caller.require(connection, Right.MANAGE_ROBOTS, found.team)
            if fields:
                records.change_robot(connection, robot, **fields)
                note(connection, caller, what, told or robot, team=found.team, now_s=now_s)
            if fields.get("state") is RobotState.REVOKED:
                records.forget_robot_tokens(connection, robot)
                while (action := records.live_action(connection, robot)) is not None:
                    records.change_action(connection, action.number, state=ActionState.CANCELLED, changed_s=now_s)
                    tell_rollout(connection, action, ActionState.CANCELLED, "the robot was revoked", now_s)
            return self._view(connection, records.robot_of(connection, robot), self._known.rings(connection))

    # ---------------------------------------------------------------- one installation

    def install(self, robot: str, asked: NewInstallation, caller: Caller = LAB_ITSELF) -> RobotActionView:
        """Has one robot install a release, and returns that.

        Raises:
            NotFound: There is no such robot or release.
            NotAllowed: The caller may not roll releases out to robots of its team.
            Conflict: The release is not published, or the robot installs something.
            InvalidInput: The release does not fit the robot.
        """
        now_s, view = self._clock.now_s(), self._releases.show(asked.release)
        reference = view.release.reference
        with self._store.write() as connection:
            found = records.robot_of(connection, robot)
            caller.require(connection, Right.ROLL_OUT, found.team)
            require_published(view)
            if (unfit := unfitness(view, found)) is not None:
                raise InvalidInput("install a release", on=f"{reference} on {robot}", got=unfit, wanted="one that fits")
            if (live := records.live_action(connection, robot)) is not None:
                step = f"wait for it, or: ms robot cancel {robot}"
                got = f"a robot that installs {live.release}"
                raise Conflict("install a release", on=robot, got=got, next_step=step)
            unconfirmed = [robot] if asked.confirm and not found.auto_confirm else []
            records.add_actions(connection, {robot: reference}, now_s=now_s, unconfirmed=unconfirmed)
            note(connection, caller, "install a release", f"{reference} on {robot}", team=found.team, now_s=now_s)
            return records.view_action(records.actions_of(connection, robot, 1)[0])

    def cancel(self, robot: str, caller: Caller = LAB_ITSELF) -> RobotActionView:
        """Asks a robot to give up what it installs, and returns that.

        Raises:
            NotFound: There is no such robot, or it installs nothing.
            NotAllowed: The caller may not roll releases out to robots of its team.
        """
        now_s = self._clock.now_s()
        with self._store.write() as connection:
            found = records.robot_of(connection, robot)
            caller.require(connection, Right.ROLL_OUT, found.team)
            action = records.live_action(connection, robot)
            if action is None:
                raise NotFound("cancel an installation", on=robot, got="none", wanted="one that goes on")
            if records.cancel_action(connection, action, now_s) is ActionState.CANCELLED:
                tell_rollout(connection, action, ActionState.CANCELLED, f"cancelled by {caller}", now_s)
            note(connection, caller, "cancel an installation", f"{action.release} on {robot}", now_s=now_s)
            return records.view_action(records.action_of(connection, robot, action.number))

    def actions(self, robot: str, caller: Caller = LAB_ITSELF, *, limit: int = 50) -> tuple[RobotActionView, ...]:
        """Returns what was installed on a robot, newest first.

        Raises:
            NotFound: There is none of that name.
        """
        with self._store.read() as connection:
            records.robot_of(connection, robot)
            return tuple(map(records.view_action, records.actions_of(connection, robot, limit)))

    # ---------------------------------------------------------------- robots

    def claim(self, claim: RobotClaim, *, address: str = "") -> Enrolled:
        """Enrols a robot, and returns what it is to keep.

        Raises:
            NotAllowed: Its token enrols nobody, or not any more; or it does not hold its key.
            Conflict: Another robot has its key; or nobody has said whose releases are trusted.
        """
        now_s, secret = self._clock.now_s(), draw_secret(self._dice)
        if not is_signed(claim.key, claim.signature, claim_words(claim.token)):
            raise NotAllowed("enrol a robot", got="a signature of another key", wanted="one of the robot's own")
        try:
            root = self._releases.metadata("root.json").decode()
        except NotFound as error:
            step = "ms release trust new FOLDER"
            raise Conflict("enrol a robot", got="no root of trust to give it", next_step=step) from error
        with self._store.write() as connection:
            token = records.find_robot_token(connection, claim.token)
            over = token is None or token.robot == _GATEWAY or (token.expires_s or now_s + 1.0) <= now_s
            if token is None or over or token.key not in ("", claim.key):
                got = "a token that was used, has ended, or never was"
                raise NotAllowed("enrol a robot", got=got, next_step="ask for another: ms robot enrol NAME")
            twin = _twin(connection, claim.key, token.robot)
            if twin is None:
                made = _robot(token.asked, records.find_robot(connection, token.robot), token.maker, now_s)
                changed = replace(made, key=claim.key, sha256=secret_hash(secret), boots=(), address=address)
                records.save_robot(connection, replace(changed, contact_s=now_s))
                records.use_robot_token(connection, token, claim.key)
                robot = Caller(role=TeamRole.ATTEMPT, team=made.team, holder=f"robot {made.name}", address=address)
                note(connection, robot, "come as a robot", claim.key[:16], team=made.team, now_s=now_s)
            else:
                records.change_robot(connection, twin.name, clash_s=now_s)
        if twin is not None:
            step = "make its key anew on the robot: remove its folder, then ms-edge enrol"
            raise Conflict("enrol a robot", on=token.robot, got=f"the key of robot {twin.name}", next_step=step)
        return Enrolled(robot=token.robot, token=secret, root=root, poll_s=self._poll_s)


def _robot(asked: NewRobot, before: RobotRecord | None, maker: str, now_s: float) -> RobotRecord:
    made = RobotRecord(
        name=asked.name,
        team=asked.team,
        group=asked.group,
        labels=dict(asked.labels),
        state=RobotState.ACTIVE,
        key="",
        sha256="",
        maker=maker,
        made_s=now_s,
    )
    if before is None:
        return made
    return replace(
        made,
        group=asked.group or before.group,
        labels={**before.labels, **asked.labels},
        report=before.report,
        attributes=before.attributes,
        made_s=before.made_s,
    )


def _token(asked: NewRobot, secret: str, maker: str, now_s: float, ends_s: float | None) -> RobotTokenRecord:
    return RobotTokenRecord(
        sha256=secret_hash(secret), robot=asked.name, asked=asked, maker=maker, made_s=now_s, expires_s=ends_s
    )


def _require_room(connection: sa.Connection) -> None:
    count = connection.execute(sa.select(sa.func.count()).select_from(robots)).scalar_one()
    if count >= ROBOTS_MAX:
        raise LimitReached("enrol a robot", got=f"{count} robots", wanted=f"at most {ROBOTS_MAX}")


def _twin(connection: sa.Connection, key: str, name: str) -> RobotRecord | None:
    query = records.ROBOT_ROWS.select.where(robots.c.key == key, robots.c.name != name)
    return next(iter(records.ROBOT_ROWS.read(connection, query)), None)


def is_signed(key: str, signature: str, words: bytes) -> bool:
    """Returns whether words were signed by a key. Source: Ed25519, RFC 8032.

    Args:
        key: Public, hexadecimal.
        signature: Hexadecimal.
    """
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(signature), words)
    except (InvalidSignature, ValueError):
        return False
    return True


def has_label(labels: Mapping[str, str], wanted: str | None) -> bool:
    """Returns whether labels have one.

    Args:
        wanted: "NAME=VALUE" or "NAME"; None for any.
    """
    if wanted is None:
        return True
    name, equals, value = wanted.partition("=")
    return name in labels and (not equals or labels[name] == value)


def require_published(view: ReleaseView) -> None:
    """Returns if a release may be installed.

    Raises:
        Conflict: It may not.
    """
    if view.state is not ReleaseState.PUBLISHED:
        step = f"ms release sign {view.release.reference} --key FILE"
        got = f"one that is {view.state.value}"
        raise Conflict("install a release", on=view.release.reference, got=got, wanted="published", next_step=step)


def unfitness(view: ReleaseView, robot: RobotRecord) -> str | None:
    """Returns why a release cannot run on a robot, None where it can; a plain client of DDI says nothing of itself."""
    if not robot.key:
        return None
    if view.release.content.image:
        return "a robot with our agent, and it is an image for plain clients of DDI"
    if robot.report is None:
        return "a robot that has not said yet what it is"
    content = view.release.content
    if _numbers(content.runtime) > _numbers(robot.report.runtime):
        return f"Mainspring {robot.report.runtime}, and it wants {content.runtime}"
    return "; ".join(content.fits.mismatches(robot.report.fits))[:400] or None


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split(".")[:3] if part.isdigit())
