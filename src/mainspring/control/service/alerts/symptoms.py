"""What operators are told of besides promises: servers, leader, loop, store, clusters, and what runs out some day.

Limits are many times what is usual: a plan comes every 10 s, a tick takes well under a second and the store's answer
some hundredths of one, sweeps run every 30 s; back-ups are daily, of which one may fail. A page is what nobody can wait
for until the morning.
"""

from __future__ import annotations

from mainspring.control.service.alerts.values import DAY_S, HOUR_S, MINUTE_S, Alert, Severity

DEAD_MAN = "MainspringDeadMan"
SERVERS = "up{job='mainspring'}"


def _page(name: str, expr: str, *, for_s: float, summary: str, runbook: str) -> Alert:
    return Alert(name=name, severity=Severity.PAGE, expr=expr, for_s=for_s, summary=summary, runbook=runbook)


def _ticket(name: str, expr: str, *, for_s: float, summary: str, runbook: str) -> Alert:
    return Alert(name=name, severity=Severity.TICKET, expr=expr, for_s=for_s, summary=summary, runbook=runbook)


SYMPTOMS = (
    Alert(
        name=DEAD_MAN,
        severity=Severity.NONE,
        expr="vector(1)",
        for_s=0.0,
        summary="Prometheus evaluates rules and Alertmanager delivers. Whoever stops hearing this is to be woken.",
        runbook="dead-man",
    ),
    _page(
        "MainspringServersDown",
        f"(max({SERVERS}) or vector(0)) == 0",
        for_s=2 * MINUTE_S,
        summary="No server answers Prometheus: nothing is planned, and nobody can submit. What runs goes on.",
        runbook="servers-down",
    ),
    _ticket(
        "MainspringServerDown",
        f"{SERVERS} == 0",
        for_s=5 * MINUTE_S,
        summary="Server {{ $labels.instance }} does not answer Prometheus.",
        runbook="server-down",
    ),
    _page(
        "MainspringNoLeader",
        "max(mainspring_leads) == 0",
        for_s=2 * MINUTE_S,
        summary="Servers answer and none of them leads: nothing is planned.",
        runbook="no-leader",
    ),
    _page(
        "MainspringLoopSilent",
        "max by (instance) (mainspring_loop_silent_seconds) > 90",
        for_s=MINUTE_S,
        summary="The loop of {{ $labels.instance }} has not moved for {{ $value | humanizeDuration }}.",
        runbook="loop-silent",
    ),
    _ticket(
        "MainspringTicksFail",
        "max(increase(mainspring_ticks_failed_total[{10m}])) > 5",
        for_s=0.0,
        summary="{{ $value | humanize }} ticks of the loop were cut short in 10 minutes.",
        runbook="ticks-fail",
    ),
    _ticket(
        "MainspringTicksSlow",
        "sum(rate(mainspring_tick_seconds_sum[{10m}])) / sum(rate(mainspring_tick_seconds_count[{10m}])) > 5",
        for_s=10 * MINUTE_S,
        summary="A tick of the loop takes {{ $value | humanizeDuration }}: jobs wait for it.",
        runbook="ticks-slow",
    ),
    _page(
        "MainspringPlanOld",
        "time() - max(mainspring_plan_timestamp_seconds) > 300",
        for_s=2 * MINUTE_S,
        summary="The newest plan is {{ $value | humanizeDuration }} old.",
        runbook="plan-old",
    ),
    _page(
        "MainspringStoreDown",
        "min by (instance) (mainspring_store_up) == 0",
        for_s=2 * MINUTE_S,
        summary="The store does not answer {{ $labels.instance }}.",
        runbook="store-down",
    ),
    _ticket(
        "MainspringStoreSlow",
        "min(mainspring_store_read_seconds) > 5",
        for_s=10 * MINUTE_S,
        summary="The store takes {{ $value | humanizeDuration }} for what /metrics asks it.",
        runbook="store-slow",
    ),
    _ticket(
        "MainspringStoreFills",
        "min by (instance) (mainspring_store_free_ratio) < 0.15",
        for_s=10 * MINUTE_S,
        summary="{{ $value | humanizePercentage }} of the store's disk is free on {{ $labels.instance }}.",
        runbook="store-full",
    ),
    _page(
        "MainspringStoreFull",
        "min by (instance) (mainspring_store_free_ratio) < 0.05",
        for_s=MINUTE_S,
        summary="{{ $value | humanizePercentage }} of the store's disk is free on {{ $labels.instance }}.",
        runbook="store-full",
    ),
    _page(
        "MainspringClusterSilent",
        "max by (cluster) (mainspring_cluster_up) == 0",
        for_s=5 * MINUTE_S,
        summary="Cluster {{ $labels.cluster }} does not answer: nothing starts or stops there.",
        runbook="cluster-silent",
    ),
    _ticket(
        "MainspringNodesUnwell",
        "sum by (cluster) (max by (cluster, condition) (mainspring_nodes{condition=~'down|cordoned'}))"
        " / sum by (cluster) (max by (cluster, condition) (mainspring_nodes)) > 0.1",
        for_s=15 * MINUTE_S,
        summary="{{ $value | humanizePercentage }} of the nodes of {{ $labels.cluster }} are down or cordoned.",
        runbook="nodes-unwell",
    ),
    _ticket(
        "MainspringAttemptsLost",
        "max by (cluster) (increase(mainspring_attempts_stopped_total{cause='lost'}[{1h}])) > 10",
        for_s=0.0,
        summary="{{ $value | humanize }} attempts on {{ $labels.cluster }} were lost in an hour.",
        runbook="attempts-lost",
    ),
    _ticket(
        "MainspringCheckpointsFail",
        "max by (cluster, kind) (increase(mainspring_events_total{kind=~'checkpoint_(failed|corrupt)'}[{1h}])) > 3",
        for_s=0.0,
        summary="{{ $value | humanize }} times in an hour: {{ $labels.kind }} on {{ $labels.cluster }}.",
        runbook="checkpoints-fail",
    ),
    _ticket(
        "MainspringReplicasDiffer",
        "max by (cluster) (increase(mainspring_events_total{kind='replicas_differ'}[{1h}])) > 0",
        for_s=0.0,
        summary="Ranks of a job on {{ $labels.cluster }} no longer agree on their state: a device may compute wrongly.",
        runbook="replicas-differ",
    ),
    _ticket(
        "MainspringAllocationsHeld",
        "max(mainspring_allocations_held) > 0",
        for_s=15 * MINUTE_S,
        summary="{{ $value }} allocations run that the store does not know; they wait for an operator.",
        runbook="allocations-held",
    ),
    _ticket(
        "MainspringBreakerOpen",
        "max by (cluster) (mainspring_breaker_open) > 0",
        for_s=0.0,
        summary="Too many nodes of {{ $labels.cluster }} were to be closed at once; none is until somebody has looked.",
        runbook="breaker-open",
    ),
    _ticket(
        "MainspringArchiveBehind",
        "max(mainspring_archive_behind_seconds) > 172800",
        for_s=HOUR_S,
        summary="The oldest job of the store should have been archived {{ $value | humanizeDuration }} ago.",
        runbook="archive-behind",
    ),
    _ticket(
        "MainspringBackupOld",
        "time() - max(mainspring_backup_timestamp_seconds) > 172800",
        for_s=HOUR_S,
        summary="The newest back-up of the store is over two days old, or there is none.",
        runbook="backup-old",
    ),
    _ticket(
        "MainspringCertificateExpires",
        f"min by (instance) (mainspring_certificate_expiry_timestamp_seconds) - time() < {21 * DAY_S:.0f}",
        for_s=HOUR_S,
        summary="The certificate of {{ $labels.instance }} ends in {{ $value | humanizeDuration }}.",
        runbook="certificate-expires",
    ),
    _page(
        "MainspringCertificateExpiresSoon",
        f"min by (instance) (mainspring_certificate_expiry_timestamp_seconds) - time() < {3 * DAY_S:.0f}",
        for_s=10 * MINUTE_S,
        summary="The certificate of {{ $labels.instance }} ends in {{ $value | humanizeDuration }}.",
        runbook="certificate-expires",
    ),
    _ticket(
        "MainspringFilesRunOut",
        "max by (instance) (process_open_fds{job='mainspring'} / process_max_fds{job='mainspring'}) > 0.9",
        for_s=10 * MINUTE_S,
        summary="{{ $labels.instance }} has {{ $value | humanizePercentage }} of the files open that it may.",
        runbook="files-run-out",
    ),
    _ticket(
        "MainspringReleasesDiffer",
        "count(count by (release) (mainspring_release_info)) > 1",
        for_s=HOUR_S,
        summary="Servers of {{ $value }} releases share the store: an upgrade was left half done.",
        runbook="releases-differ",
    ),
)
