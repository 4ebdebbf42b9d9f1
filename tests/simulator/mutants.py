"""Mutants: known bugs that are planted in a copy of the product, each of which the fault proof must find.

To add one: the text that stands there now, once in its file, and what a bug would make of it.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_SEED, SEEDS = 10_000, 200  # Of these one finds each.


@dataclass(frozen=True)
class Mutant:
    """One bug.

    Args:
        name: What is wrong, in words of a report.
        file: Below `src/mainspring`.
        before: What stands there, once.
        after: What the bug makes of it.
        seed: Which found it last, where others before it did not: the hunt begins there.
    """

    name: str
    file: str
    before: str
    after: str
    seed: int = FIRST_SEED


LEDGER, FOLD = "control/store/ledger.py", "control/loop/fold.py"
COMMANDS, AGENTS = "control/loop/engine_commands.py", "control/service/agents.py"
ADOPTING = "control/store/restores/adopting.py"
HOLDINGS, SAVES, RUNNING = "node/lead/holdings.py", "node/lead/saves.py", "node/lead/running.py"

MUTANTS = (
    # ------------------------------------------------------------ controllers
    Mutant(
        "a stale leader may write",
        "control/store/store.py",
        "if (row.holder, row.epoch) != (lease.holder, lease.epoch):",
        "if False:",
        10_004,
    ),
    Mutant(
        "the lead is taken from a server whose lease is not over",
        "control/store/store.py",
        "return not self.holder or self.expires_s <= now_s",
        "return not self.holder or self.expires_s <= now_s + 2.0",
        10_010,
    ),
    Mutant(
        "a server that followed goes on from what it saw, and reads nothing anew",
        "control/loop/loop.py",
        """            with self._leadership.read() as connection:
                self._mirror.take_over(connection)
""",
        """            pass
""",
        10_010,
    ),
    Mutant(
        "act before commit",
        "control/loop/loop.py",
        """            leadership.renew(connection)
        yield Step.COMMITTED
""",
        """            for act in acts:
                tell(self._engines[act.cluster], act)
            leadership.renew(connection)
        yield Step.COMMITTED
""",
        10_005,
    ),
    Mutant(
        "a new controller forgets evictions it did not begin",
        COMMANDS,
        """            known.add(allocation.id)
""",
        """            known.add(allocation.id)
            lives = self.__dict__.setdefault("_lives", set())
            if allocation.state is not AllocationState.STOPPING:
                lives.add(allocation.attempt)
            elif allocation.attempt not in lives:
                continue
""",
        10_001,
    ),
    Mutant(
        "a plan applied out of order",
        "control/loop/commit.py",
        "            if jobs[start.job].state is JobState.QUEUED and not _is_paused(jobs[start.job]):\n",
        "            if jobs[start.job].state is not JobState.RUNNING and not _is_paused(jobs[start.job]):\n",
        10_010,
    ),
    Mutant(
        "a job starts that was paused since its plan was made",
        "control/loop/commit.py",
        " and not _is_paused(jobs[start.job]):\n",
        ":\n",
        10_004,
    ),
    Mutant(
        "an old plan's evictions end attempts that ended",
        "control/loop/commit.py",
        "        if attempt is None or attempt.state not in _LIVE:\n            return\n        match end:",
        "        if attempt is None:\n            return\n        match end:",
        10_002,
    ),
    # ------------------------------------------------------------ engines
    Mutant(
        "a stop is recorded before the engine took it",
        COMMANDS,
        "    except Unavailable:\n        return None\n",
        "    except Unavailable:\n        return CommandResult(act=act) if act.order is None else None\n",
    ),
    Mutant(
        "a launch that is absent for a while counts as gone without a stop",
        FOLD,
        """                return AllocationOutcome(
                    loss=Loss(reason=f"the engine has not seen""",
        """                return AllocationOutcome(
                    after=AllocationState.GONE,
                    loss=Loss(reason=f"the engine has not seen""",
        10_000,
    ),
    Mutant(
        "stopping counted as gone",
        FOLD,
        "            gone = over or (seen is None",
        "            gone = over or (seen is not None and seen.phase is AllocationPhase.STOPPING) or (seen is None",
    ),
    Mutant(
        "a double grant after an engine's restart",
        FOLD,
        "(seen is None and allocation.stopped_s is not None)",
        "seen is None",
        10_001,
    ),
    Mutant(
        "what a controller does not know runs on",
        COMMANDS,
        "if runs and over:",
        "if False and over:",
        10_006,
    ),
    Mutant(
        "what no store knows is stopped",
        COMMANDS,
        "over = allocation_id not in known and (held is None or held.settled_by)",
        "over = allocation_id not in known",
        10_002,
    ),
    Mutant(
        "a stop that was lost is not repeated",
        COMMANDS,
        """            if allocation.cluster not in seen:
                continue
""",
        """            if allocation.cluster not in seen:
                continue
            told = self.__dict__.setdefault("_stops_told", set())
            if allocation.state is AllocationState.STOPPING:
                if allocation.id in told:
                    continue
                told.add(allocation.id)
""",
    ),
    # ------------------------------------------------------------ a store that goes back
    Mutant(
        "attempts are numbered from those that a restored store knows",
        "control/loop/granting.py",
        "first_attempt(life, new.job.submitted_s))",
        "1)",
        10_002,
    ),
    Mutant(
        "plans are numbered from those that a restored store knows",
        "control/store/restores/lives.py",
        "number = max(own.plan, seen.plan) + LEAP",
        "number = own.plan + 1",
        10_002,
    ),
    Mutant(
        "an attempt whose end was forgotten is lost, and its job starts again",
        "control/loop/beyond.py",
        "    if life is None:\n",
        "    if life is None or life.began_s >= 0.0:\n",
        10_006,
    ),
    Mutant(
        "a job starts again of which something is over that the store does not know",
        "control/store/restores/held.py",
        "if not one.over or one.job in jobs}",
        "if not one.over}",
        10_037,
    ),
    Mutant(
        "an adopted attempt was granted when it was adopted",
        ADOPTING,
        "row = ATTEMPTS_ATTESTED.row(columns) | {",
        'row = ATTEMPTS_ATTESTED.row(columns) | {"granted_s": now_s, ',
        10_006,
    ),
    Mutant(
        "a job that is adopted goes on waiting",
        ADOPTING,
        '    ledger.move_job(job, JobState.STARTING, f"{by} adopted {where}")\n',
        "",
        10_006,
    ),
    # ------------------------------------------------------------ peers of two releases
    Mutant(
        "a newer peer is refused",
        "domain/release.py",
        "    return found is Skew.NEWER\n",
        "    return False\n",
        10_003,
    ),
    Mutant(
        "a lead acts on a word that it does not know",
        "node/lead/lead.py",
        "                self._outbox.unknown(agent, message)\n",
        "                self._drained(agent)\n",
        10_003,
    ),
    Mutant(
        "an event that a server does not know is acknowledged and not kept",
        AGENTS,
        "            _write_unknown(ledger, attempt, event, time_s)\n",
        "",
        10_003,
    ),
    # ------------------------------------------------------------ fail-over, leads as control has them
    Mutant(
        "fail-over though the lead is heard",
        "control/loop/failover.py",
        "if silent_s <= failover_s or quiet_s <= lease_s:",
        "if silent_s <= failover_s:",
        10_001,
    ),
    Mutant(
        "what is given up is forgotten, and not stopped when its cluster is back",
        LEDGER,
        ".values(ended_s=at_s)",
        ".values(ended_s=at_s, state=AllocationState.GONE.value)",
        10_002,
    ),
    Mutant(
        "an old lead's reports count",
        AGENTS,
        "if ended(attempt.state) or beat.epoch < attempt.epoch or not beat.epoch:",
        "if ended(attempt.state):",
        10_005,
    ),
    Mutant(
        "another lead is named while one is heard",
        AGENTS,
        "    return rules.now_s - heard_s >= rules.settings.lease_s\n",
        "    return rules.now_s - heard_s >= 0.0\n",
        10_014,
    ),
    Mutant(
        "an event is kept twice",
        AGENTS,
        "        if event.sequence <= seen:\n",
        "        if event.sequence < seen:\n",
        10_002,
    ),
    Mutant(
        "an event is acknowledged and not kept",
        AGENTS,
        "        ledger.event(event, job=attempt.job, attempt=attempt.id, time_s=time_s)\n",
        """        if event.sequence % 7:
            ledger.event(event, job=attempt.job, attempt=attempt.id, time_s=time_s)
""",
    ),
    Mutant(
        "what a lead tells is dated by the clock of its node",
        AGENTS,
        "time_s = max(attempt.granted_s, min(event.time_s, ledger.now_s))",
        "time_s = event.time_s",
    ),
    Mutant(
        "a state without its event",
        LEDGER,
        "        self.event(JobMovedEvent(before=job.state, after=after, reason=reason), job=job.id)\n",
        """        if after is not JobState.RUNNING:
            self.event(JobMovedEvent(before=job.state, after=after, reason=reason), job=job.id)
""",
    ),
    Mutant(
        "an event without its state",
        LEDGER,
        """        self.connection.execute(sa.update(jobs).where(jobs.c.id == job.id).values(columns))
        self.event(JobMovedEvent(""",
        """        if after is not JobState.RUNNING:
            self.connection.execute(sa.update(jobs).where(jobs.c.id == job.id).values(columns))
        self.event(JobMovedEvent(""",
    ),
    Mutant(
        "a cancelled job is queued again",
        LEDGER,
        "    if job is JobState.STOPPING:\n",
        "    if job is JobState.STOPPING and cause is StopCause.OUTCOME:\n",
        10_003,
    ),
    Mutant(
        "a promised start moves and nobody is told",
        "control/loop/commit.py",
        "    moved = [job for job, start_s in now.items() if start_s != promised.get(job)]\n",
        "    moved = [job for job, start_s in now.items() if start_s is not None and job not in promised]\n",
        10_002,
    ),
    # ------------------------------------------------------------ accounts and quota
    Mutant(
        "quota is not charged",
        "planner/quota/entitlement.py",
        "            self._limits.hold(team, chip, milli)\n",
        "",
    ),
    Mutant(
        "quota is given back before what held it has ended",
        "planner/quota/entitlement.py",
        """            self._hold(team, chip, -milli)
""",
        """            self._hold(team, chip, -milli)
            self._limits.hold(team, chip, -milli)
""",
        10_012,
    ),
    Mutant(
        "what stops holds nothing",
        "control/state/active_state.py",
        "self._live(attempt, going, stopping=True) if going else None",
        "None",
        10_063,
    ),
    Mutant(
        "an allocation is held a second longer than its books say",
        LEDGER,
        '            columns["ended_s"] = max(self.now_s, began_s)\n',
        '            columns["ended_s"] = self.now_s - 1.0\n',
    ),
    # ------------------------------------------------------------ the lead
    Mutant(
        "a durable step mixed from two steps",
        SAVES,
        "stored.step == self._taken.step and stored.rank in self._ranks",
        "stored.rank in self._ranks",
        10_021,
    ),
    Mutant(
        "a durable step lacks a share",
        SAVES,
        "len(self._shares) < len(self._ranks)",
        "len(self._shares) < max(1, len(self._ranks) - 1)",
    ),
    Mutant(
        "a peer's copy is taken for one step newer than it is",
        HOLDINGS,
        "        taken = Taken(holding.step, holding.generation)\n        parts = self._steps.get(taken) or",
        "        taken = Taken(holding.step + holding.copied, holding.generation)\n"
        "        parts = self._steps.get(taken) or",
    ),
    Mutant(
        "a generation resumes from the oldest step there is",
        HOLDINGS,
        "return max((taken for taken in self._steps if self._whole(taken)), default=None)",
        "return min((taken for taken in self._steps if self._whole(taken)), default=None)",
    ),
    Mutant(
        "a step counts as whole that lacks a rank",
        HOLDINGS,
        "len(parts.sizes) == len(self._roles) and len(parts.held) == sum(parts.sizes.values())",
        "len(parts.sizes) == len(self._roles) and len(parts.held) >= max(1, sum(parts.sizes.values()) - 1)",
        10_003,
    ),
    Mutant(
        "what came after the step a generation resumed at is not forgotten",
        HOLDINGS,
        "return later == len(self._resumes) or taken.step <= self._resumes[later][1]",
        "return True",
        10_142,
    ),
    Mutant(
        "a lead goes on without an agent before its lease is over",
        "node/lead/lead.py",
        "LOST_AFTER_LEASES = 1.5 ",
        "LOST_AFTER_LEASES = 0.1 ",
        10_002,
    ),
    Mutant(
        "a generation starts before older ranks have left",
        "node/lead/preparation.py",
        "if members.active_of(agent) or roster[agent].busy}",
        "if members.active_of(agent) and not roster[agent].busy}",
        10_006,
    ),
    Mutant(
        "a lead that was fenced leads on",
        "node/lead/reports.py",
        "        if reply.fenced:\n            return Answered.FENCED\n",
        "",
        10_005,
    ),
    Mutant(
        "a durable step is not resumed from",
        "node/lead/resume.py",
        "        if taken is not None and taken.step >= stored:\n",
        "        if taken is not None:\n",
        10_014,
    ),
    # ------------------------------------------------------------ devices that compute wrongly
    Mutant(
        "after devices differed a lead goes back to the newest checkpoint, whatever it is",
        HOLDINGS,
        "        self._trusted = step if self._trusted is None else min(step, self._trusted)\n",
        "        del step\n",
        10_026,
    ),
    Mutant(
        "a lead blames the first rank for a device that stands alone",
        RUNNING,
        "        odd = [rank for rank, one in alike if one.role_rank in report.ranks]\n",
        "        odd = [rank for rank, one in alike if one.role_rank == 0]\n",
        10_026,
    ),
    Mutant(
        "a lead ignores the verdict",
        RUNNING,
        "        return of_devices(odd or [message.rank], agents) if report.certain else None\n",
        "        return None\n",
        10_026,
    ),
    Mutant(
        "of two devices that differ one is told to be wrong",
        "train/steps/verdicts.py",
        "        if len(apart) == 1 and len(all_of_them - apart) >= THIRD - 1:\n",
        "        if len(apart) == 1:\n",
        10_026,
    ),
    Mutant(
        "a device that stands alone once is told to be wrong",
        "train/steps/verdicts.py",
        "        certain=bool(odd) and len(rounds) > 1 and clear.issuperset(odd),\n",
        "        certain=bool(odd) and len(rounds) > 1,\n",
        10_046,
    ),
    Mutant(
        "what devices differed after is not withdrawn where the attempt ends",
        "node/lead/resume.py",
        "        return self._withdraws is not None and self._waits <= STORE_TRIES_MAX\n",
        "        return False\n",
        10_026,
    ),
    # ------------------------------------------------------------ health
    Mutant(
        "a quarantine has no end",
        "control/loop/nodes/step.py",
        "until_s=quarantine.until_s,",
        "until_s=None,",
        20_006,
    ),
    Mutant(
        "a rule in shadow closes nodes",
        "control/health/rules.py",
        "found.append(_finding(rule, evidence, Strategy.ACT if sure else Strategy.SHADOW))",
        "found.append(_finding(rule, evidence, Strategy.ACT))",
        20_006,
    ),
    Mutant(
        "a breaker lets through whatever is asked of it",
        "control/health/breaker.py",
        "if words := _too_much((*recent, closing), closing):",
        "if words := _too_much((closing,), closing):",
        10_011,
    ),
    Mutant(
        "an open breaker closes nodes",
        "control/health/breaker.py",
        "            return Answered(breaker=self, granted=False)",
        "            return Answered(breaker=self, granted=True)",
        10_011,
    ),
)
QUICK = (
    "an event is kept twice",
    "a durable step lacks a share",
    "a generation resumes from the oldest step there is",
)
