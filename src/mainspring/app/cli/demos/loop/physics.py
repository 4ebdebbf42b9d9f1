"""Plays a share of the arms: `python -m mainspring.app.cli.demos.loop.physics FOLDER SHARE SHARES`.

One arm after the other, an episode each, time as fast as it goes. An arm asks its own policy server, keeps its own log,
counts for its own agent, and sends its clips by its own token. While an episode goes on the arm's lock file is there,
by which its agent knows that a restart would do harm.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any, final

import numpy as np
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from mainspring.app.base.system import SystemClock
from mainspring.app.cli.demos.loop.site import (
    RATE_HZ,
    ArmSite,
    Place,
    Played,
    Site,
    Work,
    played_path,
    read_site,
    read_work,
    share_of,
)
from mainspring.app.edge.main import count, read_journal
from mainspring.app.edge.policy import end_with_parent
from mainspring.domain.answers.policies.robots import RobotTally
from mainspring.domain.codec import encode
from mainspring.domain.errors import InvalidMessage, MainspringError
from mainspring.robots.edge.folder import FolderDisk
from mainspring.robots.edge.machine import Phase
from mainspring.robots.environments.metaworld import STEPS_MAX, MetaWorld, metaworld_shelf, metaworld_table
from mainspring.robots.environments.port import EpisodeStart, FloatArray, Moment, Purpose
from mainspring.robots.logs.calls import HttpClips
from mainspring.robots.logs.clips import Clips
from mainspring.robots.logs.recorder import ACTION_TOPIC, STATE_TOPIC, LogRecorder
from mainspring.robots.logs.sending import Sender
from mainspring.robots.recorder import STEPS_AFTER_SUCCESS
from mainspring.robots.serving.wire import OURS, pack, unpack

LOCK = "busy"  # In the folder of an arm's agent, while it moves.
PERIOD_NS, PAUSE_NS = round(1e9 / RATE_HZ), 2_000_000_000  # Of the arm's own clock: of a step, and between episodes.
DEADLINE_MS = 60_000.0  # Of a machine that does much else: the arm's time stands still while it waits.
ANSWER_S = 90.0
IDLE_S, SEND_S = 0.2, 0.5  # Between two looks at arms that cannot play, and for clips to send.
END_S = 5.0  # For a piece that is under way; what is not sent is on the disk of the arm.
AT_WORK = (Phase.IDLE, Phase.DOWNLOADING, Phase.VERIFYING, Phase.INSTALLING)  # Else the agent wants a restart.
TROUBLES = (OSError, WebSocketException, InvalidMessage)


@final
class ArmAtWork:
    """One arm, as its own program plays it."""

    def __init__(self, site: Site, arm: ArmSite, worlds: Mapping[Place, MetaWorld]) -> None:
        self._site, self._arm, self._worlds = site, arm, worlds
        facts = worlds[Place.TABLE].facts()
        names = {STATE_TOPIC: facts.state_names, ACTION_TOPIC: facts.action_names}
        self._recorder = LogRecorder(Path(arm.log), site.rules(arm), names)
        self._disk = FolderDisk(Path(arm.agent))
        self._lines = ExitStack()
        self._line: ClientConnection | None = None
        self._now_ns = time.time_ns()
        self._episode = self._calls = self._shown = 0
        self._release = ""

    def turn(self, work: Work) -> list[Played]:
        """Plays an episode, and has it shown where it failed and somebody is there; nothing where it may not move."""
        with self._moving() as may:
            if not may:
                return []
            start = EpisodeStart(seed=self._arm.seed, index=self._episode, purpose=Purpose.TRAINING)
            self._episode += 1
            try:
                solved = self._play(work.place, start)
            except TROUBLES:  # Its policy server is being started, or ended: the episode does not count.
                self._hang_up()
                return []
            count(Path(self._arm.agent), RobotTally(target="", episodes=1, successes=int(solved)))
            done = [self._told(work.place, solved=solved, shown=False)]
            if not solved and self._shown < work.shows_each:
                self._shown += 1
                done.append(self._told(work.place, solved=self._show(work.place, start), shown=True))
            return done

    def close(self) -> None:
        """Ends it."""
        self._hang_up()
        self._recorder.close()

    @contextmanager
    def _moving(self) -> Iterator[bool]:
        """Holds the lock file, and yields whether the agent leaves the arm to its program."""
        lock = Path(self._arm.agent) / LOCK
        lock.touch()  # Before the look: an agent that is about to restart looks for it after it has said so.
        try:
            journal = read_journal(self._disk)
            yield bool(journal.committed) and journal.phase in AT_WORK
        finally:
            lock.unlink(missing_ok=True)

    def _told(self, place: Place, *, solved: bool, shown: bool) -> Played:
        return Played(
            at_s=time.time(), robot=self._arm.name, release=self._release, place=place, solved=solved, shown=shown
        )

    def _play(self, place: Place, start: EpisodeStart) -> bool:
        """Has the policy do it, the first half of each chunk; returns whether it did."""
        world = self._worlds[place]
        moment = world.reset(start)
        before, chunk = moment.state, self._ask(moment.state, moment.state)  # The answer says what runs.
        self._begin(moment)
        steps = 0
        while True:
            for action in chunk[: (len(chunk) + 1) // 2]:
                before, moment = moment.state, self._step(world, moment, action)
                steps += 1
                if moment.solved or steps >= STEPS_MAX:
                    self._recorder.outcome(self._now_ns, success=moment.solved)
                    self._end()
                    return moment.solved
            chunk = self._ask(moment.state, before)

    def _show(self, place: Place, start: EpisodeStart) -> bool:
        """Has the helper do it from the same start; the button says that this is worth keeping."""
        world = self._worlds[place]
        moment = world.reset(start)
        self._begin(moment)
        self._recorder.hold(self._now_ns, self._site.helper)
        solved = 0
        for _ in range(STEPS_MAX):
            moment = self._step(world, moment, world.expert_action())
            solved += moment.solved
            if solved > STEPS_AFTER_SUCCESS:
                break
        self._recorder.outcome(self._now_ns, success=solved > 0)
        self._recorder.press(self._now_ns)
        self._end(held=True)
        return solved > 0

    def _begin(self, moment: Moment) -> None:
        self._recorder.runs(self._now_ns, release=self._release, ring=self._arm.ring)
        self._recorder.task(self._now_ns, moment.task)

    def _step(self, world: MetaWorld, moment: Moment, action: FloatArray) -> Moment:
        self._now_ns += PERIOD_NS
        self._recorder.step(self._now_ns, moment.state.tolist(), np.clip(action, -1.0, 1.0).tolist())
        return world.step(action)

    def _end(self, *, held: bool = False) -> None:
        self._recorder.tick(self._now_ns + 1)  # What fired is cut now.
        if held:
            self._recorder.hold(self._now_ns + 1, "")  # The next episode is the policy's from its first step.
        self._now_ns += PAUSE_NS

    def _ask(self, state: FloatArray, before: FloatArray) -> FloatArray:
        if self._line is None:
            given: dict[str, Any] = {"compression": None, "open_timeout": ANSWER_S, "close_timeout": 1.0}
            self._line = self._lines.enter_context(connect(f"ws://127.0.0.1:{self._arm.port}", **given))
            self._line.recv(timeout=ANSWER_S)  # It greets with what it is.
        self._calls += 1
        ours = {"seed": self._calls, "deadline_ms": DEADLINE_MS}
        self._line.send(pack({"state": state, "before": before, OURS: ours}))
        answer = self._line.recv(timeout=ANSWER_S)
        if isinstance(answer, str):
            raise InvalidMessage("ask a policy", on=self._arm.name, got=answer[:200], wanted="a chunk")
        told = unpack(answer)
        self._release = str(told[OURS]["policy"])
        return np.asarray(told["actions"], np.float32)

    def _hang_up(self) -> None:
        with suppress(*TROUBLES):
            self._lines.close()
        self._line = None


@final
class Sending(Thread):
    """Sends the clips of some arms, each by its own token, until it is ended."""

    def __init__(self, site: Site, arms: tuple[ArmSite, ...], ended: Event) -> None:
        super().__init__(name="sending", daemon=True)
        self._ended = ended
        self._senders = []
        for arm in arms:
            rules, log = site.rules(arm), Path(arm.log)
            clips = Clips(log / "clips", rules)
            self._senders.append(Sender(log, clips, HttpClips(site.url, arm.token), rules, SystemClock()))

    def run(self) -> None:
        """Does a piece of each arm's in turn; who has nothing to send, or is refused, waits its own time."""
        due_s = dict.fromkeys(self._senders, 0.0)
        told = ""
        while not self._ended.is_set():
            for sender in self._senders:
                if time.monotonic() >= due_s[sender]:
                    wait_s = sender.step()
                    due_s[sender] = time.monotonic() + (wait_s if sender.problem else min(wait_s, SEND_S))
                    if sender.problem not in ("", told):
                        told = sender.problem
                        print(told, file=sys.stderr, flush=True)
            self._ended.wait(max(0.0, min(min(due_s.values()) - time.monotonic(), SEND_S)))


def main() -> int:
    """Plays until SIGTERM, or what sends has ended; returns the exit code."""
    try:
        return _played(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    except MainspringError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def _played(folder: Path, share: int, shares: int) -> int:
    ended = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    end_with_parent()
    site = read_site(folder)
    arms = share_of(site.arms, share, shares)
    worlds = {Place.TABLE: metaworld_table(), Place.SHELF: metaworld_shelf()}
    at_work = [ArmAtWork(site, arm, worlds) for arm in arms]
    sending = Sending(site, arms, ended)
    sending.start()
    with played_path(folder, share).open("ab") as file:
        while sending.is_alive() and not ended.is_set():
            work, any_played = read_work(folder), False
            for arm in at_work:
                if ended.is_set():
                    break
                for played in arm.turn(work):
                    any_played = True
                    file.write(encode(played) + b"\n")
                    file.flush()
            if not any_played:
                ended.wait(IDLE_S)
    for arm in at_work:
        arm.close()
    sending.join(END_S)
    return 0 if ended.is_set() else 1  # What ended it is told already.


if __name__ == "__main__":
    sys.exit(main())
