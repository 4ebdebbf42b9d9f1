"""What the lab promises over 30 days. Objectives are where others of its size are, or where users begin to complain."""

from __future__ import annotations

from mainspring.control.service.alerts.values import Minutes, Share, Slo

_REQUESTS = "sum(rate(mainspring_requests_total{status!~'401|403'}[{window}]))"
_ANSWERS = "sum(rate(mainspring_request_seconds_count[{window}]))"
_LARGE = "mainspring_large_node_seconds_total"


def _beyond(family: str, limit: str) -> str:
    """Returns how many a second were above a limit, one of a histogram's bounds."""
    count = f"sum(rate({family}_count[{{window}}]))"
    return f"{count} - sum(rate({family}_bucket{{le='{limit}'}}[{{window}}]))"


def _waits(tier: str, limit_s: int) -> Minutes:
    oldest = f"max(mainspring_queue_oldest_seconds{{tier='{tier}'}})"
    return Minutes(late=f"({oldest} > bool {limit_s}) or vector(0)")


SLOS = (
    Slo(
        name="api-availability",
        words="Requests are answered, and not with a fault of ours.",
        objective=0.999,
        measure=Share(
            bad="(sum(rate(mainspring_requests_total{status=~'5..'}[{window}])) or vector(0))", total=_REQUESTS
        ),
    ),
    Slo(
        name="api-latency",
        words="Answers begin within a second.",
        objective=0.99,
        measure=Share(bad=_beyond("mainspring_request_seconds", "1.0"), total=_ANSWERS),
    ),
    Slo(
        name="large-job-goodput",  # Llama 3 reports over 90 % on 16,384 accelerators, ByteRobust 97 %.
        words="Time of jobs of 16 nodes or more goes into steps that nobody has to do again.",
        objective=0.9,
        measure=Share(
            bad=f"(sum(rate({_LARGE}{{use!='productive'}}[{{window}}])) or vector(0))",
            total=f"sum(rate({_LARGE}[{{window}}]))",
        ),
    ),
    Slo(
        name="hang-detection",  # Mycroft sees hangs after 15 s; ours waits for several steps, which may take seconds.
        words="A hang is seen within a minute of the last step.",
        objective=0.95,
        measure=Share(
            bad=_beyond("mainspring_detection_seconds", "60.0"),
            total="sum(rate(mainspring_detection_seconds_count[{window}]))",
            events="sum(max by (cluster) (increase(mainspring_detection_seconds_count[{window}])))",
        ),
    ),
    Slo(
        name="recovery",  # Cold restarts at other labs take 200 to 900 s.
        words="Ranks step again within two minutes of the decision for another generation.",
        objective=0.95,
        measure=Share(
            bad=_beyond("mainspring_recovery_seconds", "120.0"),
            total="sum(rate(mainspring_recovery_seconds_count[{window}]))",
            events="sum(max by (cluster) (increase(mainspring_recovery_seconds_count[{window}])))",
        ),
    ),
    Slo(
        name="queue-critical",
        words="No critical job that may start waits longer than 15 minutes.",
        objective=0.95,
        measure=_waits("critical", 900),
    ),
    Slo(
        name="queue-standard",
        words="No standard job that may start waits longer than 8 hours.",
        objective=0.9,
        measure=_waits("standard", 28_800),
        pages=False,
    ),
    Slo(
        name="queue-opportunistic",
        words="No opportunistic job that may start waits longer than 3 days.",
        objective=0.9,
        measure=_waits("opportunistic", 259_200),
        pages=False,
    ),
    Slo(
        name="promised-starts",
        words="Jobs start when the plan first said that they would, give or take a tenth of the wait.",
        objective=0.9,
        measure=Share(
            bad="sum(rate(mainspring_promised_starts_late_total[{window}]))",
            total="sum(rate(mainspring_promised_starts_total[{window}]))",
            events="max(increase(mainspring_promised_starts_total[{window}]))",
        ),
        pages=False,
    ),
    Slo(
        name="data-freshness",
        words="A recording that has arrived is in its dataset within 15 minutes.",
        objective=0.99,
        measure=Minutes(late="(max(mainspring_arrivals_oldest_seconds) > bool 900) or vector(0)"),
        pages=False,
    ),
)
