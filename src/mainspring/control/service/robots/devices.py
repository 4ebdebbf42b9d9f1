"""What robots are told and tell, by hawkBit's Direct Device Integration, and what of TUF they read beside it.

DDI is a hint: our own agent installs what TUF says is signed. Plain clients of DDI, such as `swupdate`, trust what the
server says, and what they install is signed by their own means.

Source: Eclipse hawkBit, Direct Device Integration API, 0.9: https://eclipse.dev/hawkbit/apis/ddi_api
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import sqlalchemy as sa

from mainspring.control.service.releases.keeping import PolicyReleases
from mainspring.control.service.robots.digests import Digests
from mainspring.control.service.robots.enrolling import is_signed
from mainspring.control.service.robots.limits import DeviceLimits
from mainspring.control.service.robots.news import tell_rollout
from mainspring.control.store.robots import records
from mainspring.control.store.robots.records import RobotActionRecord, RobotRecord, secret_hash
from mainspring.control.store.store import Store
from mainspring.domain.answers import ActionState, RobotReport, RobotState
from mainspring.domain.answers.policies.releases import ReleaseFile, reference_of
from mainspring.domain.answers.policies.robots import (
    BOOT,
    LIVE_ACTIONS,
    REPORT,
    SIGNATURE,
    TALLIES_MAX,
    TARGET,
    UNHEALTHY,
    device_words,
)
from mainspring.domain.codec import decode, loads
from mainspring.domain.errors import InvalidInput, NotAllowed, NotFound, TooManyRequests
from mainspring.domain.ids import checked_name
from mainspring.domain.job import LAB
from mainspring.domain.ports import Clock

CONTACT_S = 20.0  # How exactly it is known when a robot last called.
BOOTS_KEPT = 8  # Starts of its agent: a twin of a robot is noticed by one that comes again.
ATTRIBUTES_MAX = 100  # As of hawkBit.
ATTRIBUTE_LENGTH_MAX = 1_024  # Of a value; a report may be as long as a small message.
SAID_MAX = 1_000  # Of one action, as of hawkBit; how it ended may always be said.
WORDS_MAX = 1_000
_NUMBER = re.compile("[0-9]{1,18}")
_TARGET_TOKEN, _GATEWAY_TOKEN = "TargetToken", "GatewayToken"
_ENDED = {"success": ActionState.DONE, "failure": ActionState.FAILED}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCall:
    """How a robot calls.

    Args:
        authorization: HTTP's header, "" for none.
        device: Of `DEVICE_HEADER`, "" for none.
        base: Where this server is, as the robot calls it, with the path up to its name.
    """

    robot: str
    method: str
    path: str
    authorization: str
    device: str
    address: str
    base: str


@final
class Devices:
    """What robots call, of one controller. Used by many threads.

    Args:
        poll_s: How often each is asked to call.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        releases: PolicyReleases,
        digests: Digests,
        limits: DeviceLimits,
        *,
        poll_s: float,
    ) -> None:
        self._store = store
        self._clock = clock
        self._releases = releases
        self._digests = digests
        self._limits = limits
        self._poll_s = poll_s

    # ---------------------------------------------------------------- who calls

    def enter(self, call: DeviceCall, *, counted: bool = True) -> RobotRecord:
        """Returns the robot that calls.

        Args:
            counted: Whether the call is one of those of which a robot may make so many.

        Raises:
            NotAllowed: It is none, or does not show that it is this one.
            TooManyRequests: It calls too often.
        """
        now_s = self._clock.now_s()
        if counted:
            # Who has no token of the robot, or calls from elsewhere, uses up none of its calls.
            caller = secret_hash(f"{call.robot} {call.address} {call.authorization}")
            self._limits.count(call.robot, caller, self._clock.monotonic_s())
        with self._store.read() as connection:
            robot = records.find_robot(connection, call.robot)
            by_gateway = self._is_gateway(connection, call)
        if robot is None and by_gateway:
            robot = self._welcome(call, now_s)
        if robot is None or not ((by_gateway and not robot.key) or self._shows_token(robot, call)):
            raise NotAllowed("call as a robot", on=call.robot[:80], got="no token of it", wanted="its TargetToken")
        if robot.state is RobotState.REVOKED:
            raise NotAllowed("call as a robot", on=robot.name, got="one that is revoked")
        boot = _boot(robot, call) if robot.key else ""
        return self._seen(robot, call, boot, now_s)

    def _is_gateway(self, connection: sa.Connection, call: DeviceCall) -> bool:
        kind, _, secret = call.authorization.partition(" ")
        found = records.find_robot_token(connection, secret) if kind == _GATEWAY_TOKEN and secret else None
        return found is not None and not found.robot

    def _shows_token(self, robot: RobotRecord, call: DeviceCall) -> bool:
        kind, _, secret = call.authorization.partition(" ")
        shown = secret_hash(secret) if kind == _TARGET_TOKEN else ""
        return bool(robot.sha256) and hmac.compare_digest(shown, robot.sha256)

    def _welcome(self, call: DeviceCall, now_s: float) -> RobotRecord:
        """Enters a robot behind a gateway that nobody has enrolled: as hawkBit does."""
        robot = RobotRecord(
            name=checked_name(call.robot, "a robot"),
            team=LAB,
            group="",
            labels={},
            state=RobotState.ACTIVE,
            key="",
            sha256="",
            maker="a gateway",
            made_s=now_s,
        )
        with self._store.write() as connection:
            if (found := records.find_robot(connection, robot.name)) is not None:
                return found
            records.save_robot(connection, robot)
        return robot

    def _seen(self, robot: RobotRecord, call: DeviceCall, boot: str, now_s: float) -> RobotRecord:
        """Writes that a robot called, once in a while; and that two devices do by one key, where one comes again that
        another had followed.
        """
        fields: dict[str, Any] = {}
        if boot and robot.boots[-1:] != (boot,):
            fields["boots"] = (*(known for known in robot.boots if known != boot), boot)[-BOOTS_KEPT:]
            if boot in robot.boots:
                fields["clash_s"] = now_s
        if fields or robot.contact_s is None or not 0 <= now_s - robot.contact_s < CONTACT_S:
            fields |= {"contact_s": now_s, "address": call.address}
            with self._store.write() as connection:
                records.change_robot(connection, robot.name, **fields)
        return replace(robot, **fields) if fields else robot

    # ---------------------------------------------------------------- what there is to do

    def poll(self, call: DeviceCall) -> dict[str, Any]:
        """Returns what a robot is to do: the base document of DDI."""
        robot = self.enter(call)
        with self._store.read() as connection:
            action = records.live_action(connection, robot.name)
            done = None if robot.key or action is not None else records.last_done(connection, robot.name)
        links: dict[str, Any] = {"configData": {"href": f"{call.base}/configData"}}
        if action is not None:
            name = {
                ActionState.UNCONFIRMED: "confirmationBase",
                ActionState.CANCELLING: "cancelAction",
            }.get(action.state, "deploymentBase")
            links[name] = {"href": f"{call.base}/{name}/{action.number}"}
        elif done is not None:
            links["installedBase"] = {"href": f"{call.base}/installedBase/{done.number}"}
        if robot.auto_confirm or (action is not None and action.state is ActionState.UNCONFIRMED):
            links.setdefault("confirmationBase", {"href": f"{call.base}/confirmationBase"})
        return {"config": {"polling": {"sleep": sleep_text(self._poll_s)}}, "_links": links}

    def deployment(self, call: DeviceCall, action: str, *, what: str = "deployment") -> dict[str, Any]:
        """Returns what an action installs.

        Args:
            what: `deployment`, `installed` or `confirmation`: what is asked for.
        """
        robot, found = self._action(call, action)
        wanted = {"deployment": (ActionState.OPEN, ActionState.CANCELLING), "confirmation": (ActionState.UNCONFIRMED,)}
        if found.state not in wanted.get(what, (ActionState.DONE,)):
            raise NotFound("read an action", on=action, got=f"one that is {found.state.value}")
        if what == "deployment" and not found.seen:
            with self._store.write() as connection:
                again = records.action_of(connection, robot.name, found.number)
                if again.state is not ActionState.OPEN:
                    raise NotFound("read an action", on=action, got=f"one that is {again.state.value}")
                records.change_action(connection, found.number, seen=True, changed_s=self._clock.now_s())
        body = {"download": "forced", "update": "forced", "chunks": [self._chunk(robot, found, call)]}
        return {"id": str(found.number), "confirmation" if what == "confirmation" else "deployment": body}

    def _chunk(self, robot: RobotRecord, action: RobotActionRecord, call: DeviceCall) -> dict[str, Any]:
        view = self._releases.show(action.release)
        content = view.release.content
        files = [] if robot.key else [self._artifact(call, action, file) for file in content.files]
        return {
            "part": "bApp" if robot.key else "os",
            "name": content.name,
            "version": str(view.release.version),
            "metadata": [{"key": TARGET, "value": view.release.target}],
            "artifacts": files,
        }

    def _artifact(self, call: DeviceCall, action: RobotActionRecord, file: ReleaseFile) -> dict[str, Any]:
        found = self._digests.of(file)
        href = f"{call.base}/softwaremodules/{action.number}/artifacts/{_flat(file)}"
        links = {name: {"href": href} for name in ("download", "download-http")}
        links |= {name: {"href": f"{href}.MD5SUM"} for name in ("md5sum", "md5sum-http")}
        hashes = {"sha1": found.sha1, "md5": found.md5, "sha256": file.sha256}
        return {"filename": _flat(file), "hashes": hashes, "size": file.size_bytes, "_links": links}

    def artifacts(self, call: DeviceCall, module: str) -> list[dict[str, Any]]:
        """Returns the files of what an action installs; a module of DDI is called as its action."""
        _, action = self._action(call, module)
        content = self._releases.show(action.release).release.content
        return [self._artifact(call, action, file) for file in content.files]

    def artifact(self, call: DeviceCall, module: str, name: str) -> ReleaseFile:
        """Returns a file of what an action installs.

        Raises:
            NotFound: It has none of that name.
        """
        _, action = self._action(call, module, counted=False)
        for file in self._releases.show(action.release).release.content.files:
            if _flat(file) == name:
                return file
        raise NotFound("fetch an artifact", on=name[:80], got="none of that name")

    def checksum(self, call: DeviceCall, module: str, name: str) -> str:
        """Returns a file's MD5 as `md5sum` writes it."""
        return f"{self._digests.of(self.artifact(call, module, name)).md5}  {name}"

    def cancelled(self, call: DeviceCall, action: str) -> dict[str, Any]:
        """Returns what a robot is to give up."""
        _, found = self._action(call, action)
        if found.state is not ActionState.CANCELLING:
            raise NotFound("read what to cancel", on=action, got=f"one that is {found.state.value}")
        return {"id": str(found.number), "cancelAction": {"stopId": str(found.number)}}

    # ---------------------------------------------------------------- what robots tell

    def feedback(self, call: DeviceCall, action: str, body: bytes, *, of_cancel: bool = False) -> bool:
        """Takes how far a robot is; returns False where that is over.

        Args:
            of_cancel: Whether it is said of giving it up.

        Raises:
            InvalidInput: It is no feedback.
            TooManyRequests: The robot says too much of it.
        """
        robot, found = self._action(call, action)
        if not found.is_live:
            return False
        told, now_s = _Feedback.read(body), self._clock.now_s()
        with self._store.write() as connection:
            found = records.action_of(connection, robot.name, found.number)  # It may have been cancelled meanwhile.
            if not found.is_live:
                return False
            state = told.state(found.state, of_cancel=of_cancel)
            ends = state not in LIVE_ACTIONS
            if found.said >= SAID_MAX and not ends:
                raise TooManyRequests("tell of an action", on=action, got=f"{found.said} messages", wanted="its end")
            words = told.words or found.words
            fields: dict[str, Any] = {"state": state, "seen": True, "said": found.said + 1, "words": words}
            timed = {"changed_s": now_s} if ends or not found.seen else {}
            records.change_action(connection, found.number, **fields, **timed)
            if ends:
                tell_rollout(connection, found, state, words, now_s, unhealthy=told.code == UNHEALTHY)
        return True

    def configure(self, call: DeviceCall, body: bytes) -> None:
        """Takes attributes of a robot, our agent's report among them.

        Raises:
            InvalidInput: They are none, or too many.
        """
        robot = self.enter(call)
        plain = loads(body)
        data = plain.get("data") if isinstance(plain, dict) else None
        mode = plain.get("mode", "merge") if isinstance(plain, dict) else ""
        if not isinstance(data, dict) or mode not in ("merge", "replace", "remove"):
            raise InvalidInput("take attributes", on=robot.name, got="other words", wanted="data, and a mode of DDI")
        said = {str(name): str(value) for name, value in data.items()}
        text = said.pop(REPORT, None)
        kept = dict(robot.attributes) if mode != "replace" else {}
        attributes = {name: value for name, value in kept.items() if name not in said} | (
            {} if mode == "remove" else said
        )
        long = [name for name, value in attributes.items() if max(len(name), len(value)) > ATTRIBUTE_LENGTH_MAX]
        if len(attributes) > ATTRIBUTES_MAX or long:
            got = f"{len(attributes)} attributes, {len(long)} of them too long"
            wanted = f"at most {ATTRIBUTES_MAX}, each of at most {ATTRIBUTE_LENGTH_MAX} letters"
            raise InvalidInput("take attributes", on=robot.name, got=got, wanted=wanted)
        report = robot.report if text is None else decode(RobotReport, text.encode())
        with self._store.write() as connection:
            records.change_robot(connection, robot.name, attributes=attributes, report=report)
            if report is not None and text is not None:
                self._take(connection, robot, report)

    def _take(self, connection: sa.Connection, robot: RobotRecord, report: RobotReport) -> None:
        """Keeps what a robot counted, and tells its rollout once when it is healthy no more."""
        before = {tally.target: tally for tally in robot.report.tallies} if robot.report is not None else {}
        for tally in report.tallies[:TALLIES_MAX]:
            reference = reference_of(tally.target)
            if reference and before.get(tally.target) != tally:
                records.save_tally(connection, robot.name, reference, tally)
        was_healthy = robot.report is None or robot.report.healthy or robot.report.runs != report.runs
        done = records.last_done(connection, robot.name) if not report.healthy and was_healthy else None
        if done is not None and not done.back and done.release == reference_of(report.runs):
            now_s, why = self._clock.now_s(), report.why or "healthy no more"
            tell_rollout(connection, done, ActionState.FAILED, why, now_s, unhealthy=True)

    # ---------------------------------------------------------------- confirmation

    def confirmations(self, call: DeviceCall) -> dict[str, Any]:
        """Returns whether somebody at the robot is to confirm what is installed."""
        robot = self.enter(call)
        with self._store.read() as connection:
            action = records.live_action(connection, robot.name)
        other = "deactivateAutoConfirm" if robot.auto_confirm else "activateAutoConfirm"
        links = {other: {"href": f"{call.base}/confirmationBase/{other}"}}
        if action is not None and action.state is ActionState.UNCONFIRMED:
            links["confirmationBase"] = {"href": f"{call.base}/confirmationBase/{action.number}"}
        return {"autoConfirm": {"active": robot.auto_confirm}, "_links": links}

    def confirm_all(self, call: DeviceCall, *, on: bool) -> None:
        """Confirms all that waits and is to come; or has each confirmed by itself again."""
        robot, now_s = self.enter(call), self._clock.now_s()
        with self._store.write() as connection:
            records.change_robot(connection, robot.name, auto_confirm=on)
            action = records.live_action(connection, robot.name)
            if on and action is not None and action.state is ActionState.UNCONFIRMED:
                records.change_action(connection, action.number, state=ActionState.OPEN, changed_s=now_s)

    def confirm(self, call: DeviceCall, action: str, body: bytes) -> bool:
        """Takes whether it was confirmed; what is denied waits on, as in hawkBit. Returns False where nothing waits.

        Raises:
            InvalidInput: It is no confirmation.
        """
        robot, found = self._action(call, action)
        if found.state is not ActionState.UNCONFIRMED:
            return False
        plain = loads(body)
        word = plain.get("confirmation") if isinstance(plain, dict) else None
        if word not in ("confirmed", "denied"):
            raise InvalidInput("confirm an action", got=repr(word)[:80], wanted="confirmed or denied")
        words = _details(plain if isinstance(plain, dict) else {}) or str(word)
        state = ActionState.OPEN if word == "confirmed" else ActionState.UNCONFIRMED
        with self._store.write() as connection:
            if records.action_of(connection, robot.name, found.number).state is ActionState.UNCONFIRMED:
                fields: dict[str, Any] = {"state": state, "words": words, "changed_s": self._clock.now_s()}
                records.change_action(connection, found.number, **fields)
        return True

    def _action(self, call: DeviceCall, action: str, *, counted: bool = True) -> tuple[RobotRecord, RobotActionRecord]:
        robot = self.enter(call, counted=counted)
        if not _NUMBER.fullmatch(action):
            raise NotFound("find an action", on=f"robot {robot.name}", got=repr(action[:80]), wanted="a number")
        with self._store.read() as connection:
            return robot, records.action_of(connection, robot.name, int(action))


def _boot(robot: RobotRecord, call: DeviceCall) -> str:
    """Returns what the agent of a robot drew when it started, where the robot's key signed the call."""
    boot, _, signature = call.device.partition(" ")
    words = device_words(robot.name, boot, call.method, call.path)
    if BOOT.fullmatch(boot) and SIGNATURE.fullmatch(signature) and is_signed(robot.key, signature, words):
        return boot
    raise NotAllowed("call as a robot", on=robot.name, got="no signature of its key", wanted="one of this call")


def sleep_text(poll_s: float) -> str:
    """Returns a time between polls as DDI writes it, in whole seconds."""
    seconds = max(1, round(poll_s))
    return f"{seconds // 3_600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _flat(file: ReleaseFile) -> str:
    """Returns a file's name without folders, of which DDI knows none."""
    return file.path.replace("/", "--")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Feedback:
    execution: str
    finished: str
    words: str
    code: int

    @classmethod
    def read(cls, body: bytes) -> _Feedback:
        plain = loads(body)
        status = plain.get("status") if isinstance(plain, dict) else None
        if not isinstance(status, Mapping) or not isinstance(status.get("execution"), str):
            raise InvalidInput("take feedback", got="other words", wanted="a status with its execution, as DDI has it")
        result = status.get("result")
        finished = str(result.get("finished", "none")) if isinstance(result, Mapping) else "none"
        code = status.get("code")
        return cls(
            execution=status["execution"].lower(),
            finished=finished.lower(),
            words=_details(status),
            code=code if isinstance(code, int) else 0,
        )

    def state(self, now: ActionState, *, of_cancel: bool) -> ActionState:
        """Returns how an action is once this is said of it."""
        if self.execution == "closed":
            return ActionState.CANCELLED if of_cancel else self._ended
        if self.execution == "canceled" and now is ActionState.CANCELLING:
            return ActionState.CANCELLED
        if self.execution == "rejected" and of_cancel and self.finished != "failure":
            return ActionState.OPEN
        return now

    @property
    def _ended(self) -> ActionState:
        if self.finished not in _ENDED:
            raise InvalidInput("take feedback", got=f"closed, {self.finished[:40]!r}", wanted="success or failure")
        return _ENDED[self.finished]


def _details(status: Mapping[str, Any]) -> str:
    details = status.get("details")
    return "; ".join(map(str, details))[:WORDS_MAX] if isinstance(details, list) else ""
