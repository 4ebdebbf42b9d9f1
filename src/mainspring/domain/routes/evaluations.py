"""Calls about what runs are worth and how they spend their time: rules of evaluations, profiles."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from mainspring.domain import answers
from mainspring.domain.routes.routing import route
from mainspring.domain.team import Right


class EvaluationCalls:
    """What people ask and say of evaluations and profiles; see `LabCalls`."""

    @route("GET", "/evaluation-rules", may=Right.READ_JOBS, handler="evaluations.rules", operation="evaluation_rules")
    def evaluation_rules(self) -> tuple[answers.EvaluationRuleView, ...]:
        """Lists the rules by which checkpoints are evaluated by themselves, in order of name, each with its newest
        evaluations.
        """

    @route("PUT", "/evaluation-rules/{name}", may=Right.SUBMIT_JOBS, handler="evaluations.put", repeats=True)
    def set_evaluation_rule(self, name: str, body: answers.NewEvaluationRule) -> answers.EvaluationRuleView:
        """Has checkpoints of a job evaluated by themselves, in place of an earlier rule of that name."""

    @route("POST", "/jobs/{job}/profile", may=Right.STEER_JOBS, handler="profiling.ask", operation="profile_job")
    def ask_profile(self, job: str, body: answers.NewProfile) -> answers.ProfileView:
        """Has ranks of a job that runs profile their next steps, without a restart; it comes as events of the job."""

    @route("DELETE", "/evaluation-rules/{name}", may=Right.SUBMIT_JOBS, handler="evaluations.remove", repeats=True)
    def remove_evaluation_rule(self, name: str) -> answers.EvaluationRuleView:
        """Ends a rule; evaluations that it started go on."""
