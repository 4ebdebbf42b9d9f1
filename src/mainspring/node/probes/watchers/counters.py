"""The catalogue of error counters of InfiniBand, RoCE and EFA ports: how much of each is too much. Data.

Sources: the counters are those of Linux, Documentation/ABI/stable/sysfs-class-infiniband (after the InfiniBand
Architecture Specification, volume 1, 16.1.3.5 PortCounters), of mlx5 (NVIDIA, "Understanding mlx5 Linux Counters and
Status Parameters") and of drivers/infiniband/hw/efa/efa_verbs.c.
How much is too much is the specification's for `symbol_error` (an error rate of 1e-12 is 120 an hour), NVSentinel's
defaults ("NIC Health Monitor Configuration") for `link_error_recovery`, `port_rcv_errors`, `port_xmit_discards`,
`local_ack_timeout_err`, `roce_slow_restart` and for those of which any is too much; of the others our own choice.
"""

from __future__ import annotations

from dataclasses import dataclass

from mainspring.domain.hardware.health import Repair

PORT, PORT_HARDWARE, DEVICE_HARDWARE, INTERFACE = "counters", "hw_counters", "device hw_counters", "interface"


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterRule:
    """How much of a counter is too much.

    Args:
        counter: Its file.
        folder: Which folder that is in: of the port, of the device, or of its network interface.
        most: How much it may grow within the window.
        window_s: 0 where each time that it grows by more is an event of its own.
        check: What events call it.
        words: For people.
    """

    counter: str
    folder: str
    most: int
    window_s: float
    check: str
    words: str
    repair: Repair = Repair.NONE
    fatal: bool = False


_MINUTE_S, _HOUR_S = 60.0, 3_600.0


def _each(counter: str, folder: str, check: str, words: str, repair: Repair = Repair.NONE) -> CounterRule:
    return CounterRule(counter=counter, folder=folder, most=0, window_s=0.0, check=check, words=words, repair=repair)


def _over(most: int, window_s: float, counter: str, folder: str, check: str, words: str) -> CounterRule:
    return CounterRule(counter=counter, folder=folder, most=most, window_s=window_s, check=check, words=words)


COUNTERS: tuple[CounterRule, ...] = (
    _each("link_downed", PORT, "link-flap", "the link went down"),
    _each("local_link_integrity_errors", PORT, "link-errors", "more errors on the wire than the adapter bears"),
    _each("excessive_buffer_overrun_errors", PORT, "link-overrun", "packets came that there was no room for"),
    _over(120, _HOUR_S, "symbol_error", PORT, "link-symbols", "errors on the wire"),
    _over(5, _MINUTE_S, "link_error_recovery", PORT, "link-recovery", "the link was trained again"),
    _over(600, _MINUTE_S, "port_rcv_errors", PORT, "link-receive", "damaged packets came"),
    _over(600, _MINUTE_S, "port_rcv_remote_physical_errors", PORT, "link-remote", "packets came marked as damaged"),
    _over(6_000, _MINUTE_S, "port_xmit_discards", PORT, "link-discards", "packets could not be sent in time"),
    _over(60, _MINUTE_S, "port_rcv_constraint_errors", PORT, "link-refused", "packets of another partition came"),
    _over(60, _MINUTE_S, "port_xmit_constraint_errors", PORT, "link-refused-out", "packets for another partition"),
    _each("rnr_nak_retry_err", PORT_HARDWARE, "link-retries", "a peer was not ready, and was given up"),
    _each("req_transport_retries_exceeded", PORT_HARDWARE, "link-given-up", "a peer did not answer, and was given up"),
    _over(60, _MINUTE_S, "local_ack_timeout_err", PORT_HARDWARE, "link-timeouts", "peers did not answer in time"),
    _over(6_000, _MINUTE_S, "packet_seq_err", PORT_HARDWARE, "link-sequence", "packets were lost on the way"),
    _over(6_000, _MINUTE_S, "out_of_sequence", PORT_HARDWARE, "link-order", "packets came out of order"),
    _over(60, _MINUTE_S, "implied_nak_seq_err", PORT_HARDWARE, "link-implied", "answers came out of order"),
    _over(600, _MINUTE_S, "roce_slow_restart", PORT_HARDWARE, "link-slow", "sending was begun anew, slowly"),
    _over(10, _MINUTE_S, "rx_icrc_encapsulated", PORT_HARDWARE, "link-corrupt", "corrupted packets came"),
    _over(600, _MINUTE_S, "rx_drops", PORT_HARDWARE, "efa-drops", "packets that came were dropped"),
    _over(60, _MINUTE_S, "rdma_read_wr_err", PORT_HARDWARE, "efa-reads", "reads of a peer's memory failed"),
    _over(60, _MINUTE_S, "rdma_write_wr_err", PORT_HARDWARE, "efa-writes", "writes of a peer's memory failed"),
    _over(60, _MINUTE_S, "retrans_timeout_events", PORT_HARDWARE, "efa-timeouts", "peers did not answer in time"),
    _over(10, _MINUTE_S, "unresponsive_remote_events", PORT_HARDWARE, "efa-silent", "peers stopped answering"),
    _over(60, _MINUTE_S, "impaired_remote_conn_events", PORT_HARDWARE, "efa-impaired", "ways to peers are impaired"),
    CounterRule(
        counter="no_completion_cmds",
        folder=DEVICE_HARDWARE,
        most=0,
        window_s=0.0,
        check="efa-commands",
        words="the adapter does not answer its driver",
        repair=Repair.RESTART_NODE,
        fatal=True,
    ),
    _each("carrier_down_count", INTERFACE, "link-flap", "the link went down"),
)  # fmt: skip
