"""The watch over a node, and how what it sees is told."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain import codec, wire
from mainspring.domain.errors import NotAllowed
from mainspring.domain.hardware.health import HealthEvent, ScopeKind, Strategy
from mainspring.domain.ids import ClusterName, NodeName
from mainspring.domain.routes import Calls
from mainspring.domain.wire.controller import HEALTH_BATCH_MAX
from mainspring.node.probes.files import NodeFiles
from mainspring.node.probes.sightings import SAID_AGAIN_S, Sighting, Teller, well
from mainspring.node.probes.telling import BATCH_MAX, ROUTE, HttpPost, Outgoing, PostAnswer
from mainspring.node.probes.watch import Watch, watchers_of
from mainspring.node.probes.watchers.kernel_log import KernelLog
from mainspring.testing.time_and_chance import FakeClock, SeededDice

from .recorded import Recorded

LIMIT_S = 60.0  # Of what takes a moment on a machine that has time.


def _teller() -> Teller:
    return Teller(ClusterName("hall"), NodeName("n1"), SeededDice(1, "probes"))


class Scripted:
    """A watcher that sees what it is told to."""

    name = "scripted"
    every_s = 5.0

    def __init__(self, *seen: Sighting) -> None:
        self.seen: Sequence[Sighting] = seen
        self.looks = 0

    def look(self, now_s: float) -> Sequence[Sighting]:
        self.looks += 1
        if not self.seen:
            raise ValueError("a fault of ours")
        return self.seen

    def close(self) -> None:
        pass


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["disk", "clock"]),
            st.sampled_from(["/", "/data"]),
            st.booleans(),
            st.integers(0, 7_000),
        ),
        max_size=40,
    )
)
def test_of_what_stands_the_newest_event_says_how_it_is_and_no_event_repeats_the_last(
    steps: list[tuple[str, str, bool, int]],
) -> None:
    teller, now_s = _teller(), 1e9
    last: dict[tuple[str, str], HealthEvent] = {}
    sequences: list[int] = []
    for check, part, healthy, after_s in steps:
        now_s += after_s
        seen = Sighting(check=check, kind=ScopeKind.DEVICE, part=part, healthy=healthy)
        for event in teller.tell("machine", [seen], now_s):
            before = last.get((check, part))
            if before is not None and before.healthy == event.healthy:
                assert not healthy
                assert event.at_s - before.at_s >= SAID_AGAIN_S
            last[check, part] = event
            sequences.append(event.source.sequence)
        assert last[check, part].healthy == healthy
        assert healthy or now_s - last[check, part].at_s < SAID_AGAIN_S
    assert sequences == list(range(len(sequences)))


def test_events_hold_whatever_a_node_may_say() -> None:
    seen = Sighting(
        check="xid",
        kind=ScopeKind.DEVICE,
        part="a b\x00" + "é" * 500,
        stands=False,
        codes=("x y" * 40,) * 99,
        message="\ud7ff" * 5_000,
        at_s=2e9,
    )
    (event,) = _teller().tell("kernel-log", [seen], 1e9)
    assert event.at_s == 1e9  # Nothing is from the future.
    assert codec.decode(HealthEvent, codec.encode(event)) == event


def test_two_lives_of_a_watch_tell_under_different_sessions() -> None:
    sources = [
        Teller(ClusterName("hall"), NodeName("n1"), SeededDice(seed, "probes")).tell("machine", [well("disk")], 1.0)
        for seed in (1, 2)
    ]
    assert sources[0][0].source.session != sources[1][0].source.session


def test_each_watcher_is_asked_in_its_time_and_a_fault_of_one_stops_no_other() -> None:
    clock, quick, broken = FakeClock(), Scripted(well("disk")), Scripted()
    quick.every_s = 1.0
    watch = Watch([broken, quick], _teller(), clock)
    told: list[HealthEvent] = []
    for _ in range(11):
        told += watch.look()
        clock.advance(1.0)
    assert (quick.looks, broken.looks) == (11, 3)
    assert [(event.check, event.healthy) for event in told] == [("watcher", False), ("disk", True)]
    assert "ValueError" in told[0].message


def test_a_watch_that_was_held_up_does_not_make_up_for_what_it_missed() -> None:
    clock, watcher = FakeClock(), Scripted(well("disk"))
    watch = Watch([watcher], _teller(), clock)
    watch.look()
    clock.advance(1_000.0)
    watch.look()
    watch.look()
    assert watcher.looks == 2
    clock.jump(-3_600.0)  # Somebody sets the clock: the watch goes on as before.
    clock.advance(watcher.every_s)
    watch.look()
    assert watcher.looks == 3


def test_all_watchers_of_a_recorded_node_look_at_it(tmp_path: Path) -> None:
    node = Recorded(tmp_path)
    node.adapter("mlx5_0")
    node.log("nvme nvme3: Device not ready; aborting reset")
    node.put("proc/sys/fs/file-nr", "95 0 100")
    clock = FakeClock(2e9)
    watch = Watch(watchers_of(str(tmp_path), None), _teller(), clock)
    told = watch.look()
    watch.close()
    assert {event.check for event in told if not event.healthy} >= {"nvme", "open-files"}
    assert "link-state" in {event.check for event in told}
    assert all(event.strategy is Strategy.ACT for event in told)


# ---------------------------------------------------------------- telling


def test_what_is_sent_is_what_the_controller_takes_and_where_it_takes_it() -> None:
    bodies: list[bytes] = []

    def post(body: bytes) -> PostAnswer:
        bodies.append(body)
        return PostAnswer(status=200)

    events = _events(BATCH_MAX)
    outgoing = Outgoing(post, clock=FakeClock(), dice=SeededDice(1, "again"))
    outgoing.add(events)
    assert outgoing.drain(LIMIT_S)
    outgoing.close()
    sent = [event for body in bodies for event in codec.decode(wire.HealthBatch, body).events]
    assert sent == events
    assert BATCH_MAX == HEALTH_BATCH_MAX
    assert Calls.tell_health.path == ROUTE


class Controller:
    """A controller that answers as it is told to, and keeps what it took."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.taken: list[str] = []
        self.batches: list[int] = []
        self.tokens: set[str] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert self.path == ROUTE
                status = outer.statuses.pop(0) if outer.statuses else 200
                outer.tokens.add(self.headers["Authorization"])
                outer.batches.append(len(body["events"]))
                if status == 200:
                    outer.taken += [event["message"] for event in body["events"]]
                self.send_response(status)
                self.end_headers()

            def log_message(self, format: str, *words: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def controller() -> Iterator[Controller]:
    made = Controller()
    yield made
    made.close()


def _events(count: int) -> list[HealthEvent]:
    seen = [Sighting(check="disk", stands=False, message=str(index)) for index in range(count)]
    return _teller().tell("machine", seen, 1e9)


def test_events_come_in_order_in_batches_until_they_are_taken(controller: Controller) -> None:
    controller.statuses = [503, 429]
    outgoing = Outgoing(HttpPost((controller.url,), "secret"), clock=FakeClock(), dice=SeededDice(1, "again"))
    count = 2 * BATCH_MAX + 7
    outgoing.add(_events(count))
    assert outgoing.drain(LIMIT_S)
    outgoing.close()
    assert controller.taken == [str(index) for index in range(count)]
    assert max(controller.batches) == BATCH_MAX
    assert controller.tokens == {"Bearer secret"}
    assert outgoing.take_left_out() == 0


def test_the_next_server_is_called_when_one_does_not_answer(controller: Controller) -> None:
    post = HttpPost(("http://127.0.0.1:9", controller.url), "secret")
    outgoing = Outgoing(post, clock=FakeClock(), dice=SeededDice(1, "again"))
    outgoing.add(_events(3))
    assert outgoing.drain(LIMIT_S)
    outgoing.close()
    assert controller.taken == ["0", "1", "2"]


def test_what_a_controller_refuses_is_left_out_and_counted_and_the_rest_goes_on(controller: Controller) -> None:
    controller.statuses = [422]
    outgoing = Outgoing(HttpPost((controller.url,), "secret"), clock=FakeClock(), dice=SeededDice(1, "again"))
    outgoing.add(_events(5))
    assert outgoing.drain(LIMIT_S)
    outgoing.add(_events(1))
    assert outgoing.drain(LIMIT_S)
    outgoing.close()
    assert controller.taken == ["0"]
    assert outgoing.take_left_out() == 5


def test_while_nobody_answers_the_newest_are_kept_and_the_others_counted(controller: Controller) -> None:
    def nobody(body: bytes) -> PostAnswer:
        raise OSError("nobody there")

    outgoing = Outgoing(nobody, clock=FakeClock(), dice=SeededDice(1, "again"), most=10)
    for event in _events(40):
        outgoing.add([event])
    assert not outgoing.drain(0.0)
    outgoing.close()
    assert outgoing.trouble in ("", "nobody there")
    clock, watcher = FakeClock(), Scripted(well("disk"))
    (_, event) = Watch([watcher], _teller(), clock, left_out=outgoing.take_left_out).look()
    assert (event.check, event.message.split()[0]) == ("left-out", "30")


def test_a_token_does_not_cross_a_network_in_the_clear() -> None:
    with pytest.raises(NotAllowed, match="plain HTTP"):
        HttpPost(("http://lab.example:7077",), "secret")
    HttpPost(("http://lab.example:7077",), "secret", insecure=True)


def test_garbage_for_an_answer_is_no_answer(tmp_path: Path) -> None:
    class Mad(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.wfile.write(b"\x00\xff not HTTP\r\n\r\n")

        def log_message(self, format: str, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Mad) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        post = HttpPost((f"http://127.0.0.1:{server.server_address[1]}",), "secret")
        with pytest.raises(OSError, match="no answer in HTTP"):
            post(b"{}")
        server.shutdown()


def test_a_log_that_is_closed_is_read_from_its_beginning(tmp_path: Path) -> None:
    Recorded(tmp_path).log("nvme nvme3: Device not ready; aborting reset")
    log = KernelLog(NodeFiles(str(tmp_path)))
    first = [seen.record for seen in log.look(2e9)]
    log.close()
    log.close()
    assert len(first) == 1
