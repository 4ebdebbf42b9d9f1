"""What each alert of a symptom is told in virtual time, a sample a minute, when it fires by it, and what it says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """Series as promtool writes them, and when the alert is to fire and to be silent."""

    alert: str
    series: tuple[tuple[str, str], ...]
    fires: tuple[str, ...]
    silent: tuple[str, ...]
    labels: tuple[tuple[str, str], ...] = ()
    says: str = ""


UP = "up{job='mainspring',instance='%s'}"
WEST = (("cluster", "west"),)
A = (("instance", "a"),)

CASES = (
    Case("MainspringDeadMan", (), fires=("0m", "30m"), silent=()),
    Case(
        "MainspringServersDown",
        ((UP % "a", "1x5 0x10 1x10"), (UP % "b", "0x25")),
        fires=("8m", "15m"),
        silent=("5m", "7m", "17m"),
    ),
    Case(
        "MainspringServerDown",
        ((UP % "a", "1x5 0x10 1x10"), (UP % "b", "1x25")),
        fires=("11m", "15m"),
        silent=("5m", "10m", "17m"),
        labels=(*A, ("job", "mainspring")),
        says="Server a does not answer Prometheus.",
    ),
    Case(
        "MainspringNoLeader",
        (("mainspring_leads{instance='a'}", "1x5 0x20"), ("mainspring_leads{instance='b'}", "0x15 1x10")),
        fires=("8m", "15m"),
        silent=("5m", "7m", "16m"),
    ),
    Case(
        "MainspringLoopSilent",
        (("mainspring_loop_silent_seconds{instance='a'}", "0x5 180x10 1x5"),),
        fires=("8m", "15m"),
        silent=("5m", "6m", "18m"),
        labels=A,
        says="The loop of a has not moved for 3m 0s.",
    ),
    Case(
        "MainspringTicksFail",
        (("mainspring_ticks_failed_total{instance='a'}", "0x10 1+1x9 10x30"),),
        fires=("20m",),
        silent=("10m", "13m", "35m"),
        says="10 ticks of the loop were cut short in 10 minutes.",
    ),
    Case(
        "MainspringTicksSlow",
        (
            ("mainspring_tick_seconds_sum{instance='a'}", "0+6x20 120+480x20 9720+6x30"),
            ("mainspring_tick_seconds_count{instance='a'}", "0+60x72"),
        ),
        fires=("40m",),
        silent=("20m", "31m", "60m"),
        says="A tick of the loop takes 8s: jobs wait for it.",
    ),
    Case(
        "MainspringPlanOld",
        (("mainspring_plan_timestamp_seconds{instance='a'}", "0+60x10 600x12 1320+60x10"),),
        fires=("18m",),
        silent=("10m", "15m", "24m"),
        says="The newest plan is 8m 0s old.",
    ),
    Case(
        "MainspringStoreDown",
        (
            ("mainspring_store_up{instance='a'}", "1x5 0x10 1x10"),
            ("mainspring_store_up{instance='b'}", "1x25"),
        ),
        fires=("8m", "15m"),
        silent=("5m", "7m", "17m"),
        labels=A,
        says="The store does not answer a.",
    ),
    Case(
        "MainspringStoreSlow",
        (
            ("mainspring_store_read_seconds{instance='a'}", "0.2x5 7x20 0.2x5"),
            ("mainspring_store_read_seconds{instance='b'}", "0.2x5 7x20 0.2x5"),
        ),
        fires=("16m", "25m"),
        silent=("5m", "15m", "27m"),
        says="The store takes 7s for what /metrics asks it.",
    ),
    Case(
        "MainspringStoreFills",
        (("mainspring_store_free_ratio{instance='a'}", "0.16x5 0.14x20 0.3x5"),),
        fires=("16m", "25m"),
        silent=("5m", "15m", "27m"),
        labels=A,
        says="14% of the store's disk is free on a.",
    ),
    Case(
        "MainspringStoreFull",
        (("mainspring_store_free_ratio{instance='a'}", "0.06x5 0.04x20 0.3x5"),),
        fires=("8m", "25m"),
        silent=("5m", "6m", "27m"),
        labels=A,
        says="4% of the store's disk is free on a.",
    ),
    Case(
        "MainspringClusterSilent",
        (
            ("mainspring_cluster_up{cluster='west',instance='a'}", "1x5 0x15 1x10"),
            ("mainspring_cluster_up{cluster='west',instance='b'}", "0x20 1x10"),
            ("mainspring_cluster_up{cluster='east',instance='a'}", "1x30"),
        ),
        fires=("12m", "20m"),
        silent=("5m", "10m", "22m"),
        labels=WEST,
        says="Cluster west does not answer: nothing starts or stops there.",
    ),
    Case(
        "MainspringNodesUnwell",
        (
            ("mainspring_nodes{cluster='west',condition='ready',instance='a'}", "90x5 80x25 90x10"),
            ("mainspring_nodes{cluster='west',condition='down',instance='a'}", "4x5 12x25 4x10"),
            ("mainspring_nodes{cluster='west',condition='cordoned',instance='a'}", "6x5 8x25 6x10"),
        ),
        fires=("22m", "30m"),
        silent=("5m", "20m", "32m"),
        labels=WEST,
        says="20% of the nodes of west are down or cordoned.",
    ),
    Case(
        "MainspringAttemptsLost",
        (
            ("mainspring_attempts_stopped_total{cluster='west',cause='lost',instance='a'}", "0x60 1+1x11 12x120"),
            ("mainspring_attempts_stopped_total{cluster='west',cause='evict',instance='a'}", "0+9x190"),
        ),
        fires=("75m", "110m"),
        silent=("60m", "68m", "140m"),
        labels=WEST,
        says="12 attempts on west were lost in an hour.",
    ),
    Case(
        "MainspringCheckpointsFail",
        (
            ("mainspring_events_total{cluster='west',kind='checkpoint_failed',instance='a'}", "0x60 1 2 3 4 5x120"),
            ("mainspring_events_total{cluster='west',kind='checkpoint_durable',instance='a'}", "0+9x190"),
        ),
        fires=("70m", "110m"),
        silent=("60m", "62m", "140m"),
        labels=(*WEST, ("kind", "checkpoint_failed")),
        says="5 times in an hour: checkpoint_failed on west.",
    ),
    Case(
        "MainspringReplicasDiffer",
        (
            ("mainspring_events_total{cluster='west',kind='replicas_differ',instance='a'}", "0x60 1x130"),
            ("mainspring_events_total{cluster='west',kind='hang',instance='a'}", "0+9x190"),
        ),
        fires=("62m", "110m"),
        silent=("60m", "140m"),
        labels=WEST,
        says="Ranks of a job on west no longer agree on their state: a device may compute wrongly.",
    ),
    Case(
        "MainspringAllocationsHeld",
        (("mainspring_allocations_held{instance='a'}", "0x5 3x20 0x5"),),
        fires=("21m", "25m"),
        silent=("5m", "20m", "27m"),
        says="3 allocations run that the store does not know; they wait for an operator.",
    ),
    Case(
        "MainspringBreakerOpen",
        (("mainspring_breaker_open{cluster='west',instance='a'}", "0x5 1x20 0x5"),),
        fires=("7m", "25m"),
        silent=("5m", "27m"),
        labels=WEST,
        says="Too many nodes of west were to be closed at once; none is until somebody has looked.",
    ),
    Case(
        "MainspringArchiveBehind",
        (("mainspring_archive_behind_seconds{instance='a'}", "86400x10 259200x90 0x10"),),
        fires=("75m", "100m"),
        silent=("10m", "65m", "102m"),
        says="The oldest job of the store should have been archived 3d 0h 0m 0s ago.",
    ),
    Case(
        "MainspringBackupOld",  # Time begins at 0: a back-up of three days before is of -259,200.
        (("mainspring_backup_timestamp_seconds{instance='a'}", "0x10 -259200x90 6000x10"),),
        fires=("75m", "100m"),
        silent=("10m", "65m", "102m"),
        says="The newest back-up of the store is over two days old, or there is none.",
    ),
    Case(
        "MainspringCertificateExpires",
        (("mainspring_certificate_expiry_timestamp_seconds{instance='a'}", "3000000x10 864000+60x89 9000000x10"),),
        fires=("75m", "100m"),
        silent=("10m", "65m", "102m"),
        labels=A,
        says="The certificate of a ends in 9d 23h 49m 0s.",
    ),
    Case(
        "MainspringCertificateExpiresSoon",
        (("mainspring_certificate_expiry_timestamp_seconds{instance='a'}", "864000x10 172800+60x29 9000000x10"),),
        fires=("22m", "40m"),
        silent=("10m", "20m", "42m"),
        labels=A,
        says="The certificate of a ends in 1d 23h 49m 0s.",
    ),
    Case(
        "MainspringFilesRunOut",
        (
            ("process_open_fds{job='mainspring',instance='a'}", "100x5 950x20 100x5"),
            ("process_max_fds{job='mainspring',instance='a'}", "1000x32"),
        ),
        fires=("16m", "25m"),
        silent=("5m", "15m", "27m"),
        labels=A,
        says="a has 95% of the files open that it may.",
    ),
    Case(
        "MainspringReleasesDiffer",
        (
            ("mainspring_release_info{release='0.2.0',instance='a'}", "1x90 _x30"),
            ("mainspring_release_info{release='0.3.0',instance='b'}", "_x10 1x110"),
        ),
        fires=("75m", "89m"),
        silent=("9m", "69m", "100m"),
        says="Servers of 2 releases share the store: an upgrade was left half done.",
    ),
)
