"""Calls about robots: those of people, those of robots, and those of hawkBit's Direct Device Integration."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from mainspring.domain import answers
from mainspring.domain.routes.nodes import Limit, Named, Why
from mainspring.domain.routes.routing import route
from mainspring.domain.team import Right

TENANT = "{tenant}"  # hawkBit's first word of a path: any is taken, since a server is one lab's.
_DDI = f"/{TENANT}/controller/v1/{{robot}}"
_SEE, _MANAGE = Right.READ_ROBOTS, Right.MANAGE_ROBOTS


class RobotCalls:
    """What people ask and say of robots; see `LabCalls`."""

    @route("GET", "/robots", may=_SEE, handler="robots.ls", operation="list_robots")
    def robots(
        self, *, group: Named = None, label: Named = None, after: Named = None, limit: Limit = 50
    ) -> tuple[answers.RobotView, ...]:
        """Lists robots in order of name.

        Args:
            group: Only those of this group.
            label: Only those that have this label, "NAME=VALUE" or "NAME".
            after: Name of the last one seen: the list goes on after it.
            limit: At most so many.
        """

    @route("GET", "/robots/{robot}", may=_SEE, handler="robots.show", operation="show_robot")
    def robot(self, robot: str) -> answers.RobotView:
        """Shows one robot."""

    @route("POST", "/robots", may=_MANAGE, handler="robots.invite", operation="enrol_robot")
    def enrol_robot(self, body: answers.NewRobot) -> answers.RobotToken:
        """Makes a one-time token by which a robot is enrolled; of a plain client of DDI the token that it goes by."""

    @route("POST", "/robot-gateways", may=_MANAGE, handler="robots.gateway", operation="make_gateway")
    def robot_gateway(self) -> answers.RobotToken:
        """Makes the GatewayToken of the lab's gateways, in place of the one before; it enters plain clients of DDI."""

    @route("PUT", "/robots/{robot}/labels", may=_MANAGE, handler="robots.label")
    def label_robot(self, robot: str, body: answers.RobotLabels) -> answers.RobotView:
        """Gives a robot another group, other labels, or both."""

    @route("POST", "/robots/{robot}/revoke", may=_MANAGE, handler="robots.revoke", repeats=True)
    def revoke_robot(self, robot: str, *, reason: Why = "") -> answers.RobotView:
        """Lets a robot call no more; what it runs it goes on with.

        Args:
            robot: Its name.
            reason: Why, for people.
        """

    @route("POST", "/robots/{robot}/install", may=Right.ROLL_OUT, handler="robots.install", patient=True)
    def install_release(self, robot: str, body: answers.NewInstallation) -> answers.RobotActionView:
        """Has one robot install a release, outside any rollout."""

    @route("POST", "/robots/{robot}/cancel", may=Right.ROLL_OUT, handler="robots.cancel", repeats=True)
    def cancel_install(self, robot: str) -> answers.RobotActionView:
        """Asks a robot to give up what it is installing."""

    @route("GET", "/robots/{robot}/actions", may=_SEE, handler="robots.actions", operation="list_robot_actions")
    def robot_actions(self, robot: str, *, limit: Limit = 50) -> tuple[answers.RobotActionView, ...]:
        """Lists what was installed on a robot, newest first.

        Args:
            robot: Its name.
            limit: At most so many.
        """

    @route("GET", "/rollouts", may=_SEE, handler="rollouts.ls", operation="list_rollouts")
    def rollouts(self, *, limit: Limit = 50) -> tuple[answers.RolloutView, ...]:
        """Lists rollouts, newest first, without their events.

        Args:
            limit: At most so many.
        """

    @route("GET", "/rollouts/{rollout}", may=_SEE, handler="rollouts.show", operation="show_rollout")
    def rollout(self, rollout: str) -> answers.RolloutView:
        """Shows one rollout, by its number, and what became of it last."""

    @route("GET", "/rollouts/{rollout}/robots", may=_SEE, handler="rollouts.robots", operation="list_rollout_robots")
    def rollout_robots(
        self,
        rollout: str,
        *,
        ring: Named = None,
        standing: answers.RobotStanding | None = None,
        after: Named = None,
        limit: Limit = 50,
    ) -> tuple[answers.RolloutRobot, ...]:
        """Lists robots of a rollout, ring by ring: where each stands, what it runs, why it last failed.

        Args:
            rollout: Its number.
            ring: Only those of this ring.
            standing: Only those that stand so.
            after: Name of the last one seen: the list goes on after it.
            limit: At most so many.
        """

    @route("POST", "/rollouts", may=Right.ROLL_OUT, handler="rollouts.start", patient=True)
    def start_rollout(self, body: answers.NewRollout) -> answers.RolloutView:
        """Begins to roll a release out, ring after ring."""

    @route("POST", "/rollouts/{rollout}/pause", may=Right.ROLL_OUT, handler="rollouts.pause")
    def pause_rollout(self, rollout: str, body: answers.RolloutWord) -> answers.RolloutView:
        """Lets no robot of a rollout begin until it is resumed."""

    @route("POST", "/rollouts/{rollout}/resume", may=Right.ROLL_OUT, handler="rollouts.resume")
    def resume_rollout(self, rollout: str, body: answers.RolloutWord) -> answers.RolloutView:
        """Lets a paused rollout go on."""

    @route("POST", "/rollouts/{rollout}/abort", may=Right.ROLL_OUT, handler="rollouts.abort")
    def abort_rollout(self, rollout: str, body: answers.RolloutWord) -> answers.RolloutView:
        """Ends a rollout where it is: robots keep what they run."""

    @route("POST", "/rollouts/{rollout}/rollback", may=Right.ROLL_OUT, handler="rollouts.roll_back")
    def take_back_rollout(self, rollout: str, body: answers.RolloutWord) -> answers.RolloutView:
        """Has every robot of a rollout run again what it ran before."""

    @route("POST", "/rollouts/{rollout}/approve", may=Right.ROLL_OUT, handler="rollouts.approve")
    def approve_rollout(self, rollout: str, body: answers.RolloutWord) -> answers.RolloutView:
        """Says yes to the ring that is open: it passes after the stated hours, whatever was counted."""


class DeviceCalls:
    """What robots call. Documents of DDI are hawkBit's own: see its specification."""

    @route("POST", "/robot-claims", anybody=True)
    def claim_robot(self, body: answers.RobotClaim) -> answers.Enrolled:
        """Enrols a robot by its one-time token and its own key; may be repeated by the same key."""

    @route("GET", f"{_DDI}/trust/{{file}}", anybody=True, below="")
    def device_trust(self, tenant: str, robot: str, file: str) -> bytes:
        """Returns metadata of TUF for a robot; beside DDI."""

    @route("GET", f"{_DDI}/targets/{{folder}}/{{name}}", anybody=True, below="")
    def device_target(self, tenant: str, robot: str, folder: str, name: str) -> bytes:
        """Returns a target of TUF for a robot, or the range of it that is asked for; beside DDI."""

    @route("GET", _DDI, anybody=True, below="")
    def ddi_poll(self, tenant: str, robot: str) -> bytes:
        """Tells a robot what there is to do."""

    @route("PUT", f"{_DDI}/configData", anybody=True, below="")
    def ddi_config(self, tenant: str, robot: str, body: bytes) -> bytes:
        """Takes attributes of a robot."""

    @route("GET", f"{_DDI}/deploymentBase/{{action}}", anybody=True, below="")
    def ddi_deployment(self, tenant: str, robot: str, action: str) -> bytes:
        """Tells a robot what to install."""

    @route("POST", f"{_DDI}/deploymentBase/{{action}}/feedback", anybody=True, below="")
    def ddi_feedback(self, tenant: str, robot: str, action: str, body: bytes) -> bytes:
        """Takes how far a robot is with it."""

    @route("GET", f"{_DDI}/installedBase/{{action}}", anybody=True, below="")
    def ddi_installed(self, tenant: str, robot: str, action: str) -> bytes:
        """Tells a robot what it installed last."""

    @route("GET", f"{_DDI}/cancelAction/{{action}}", anybody=True, below="")
    def ddi_cancel(self, tenant: str, robot: str, action: str) -> bytes:
        """Tells a robot what to give up."""

    @route("POST", f"{_DDI}/cancelAction/{{action}}/feedback", anybody=True, below="")
    def ddi_cancel_feedback(self, tenant: str, robot: str, action: str, body: bytes) -> bytes:
        """Takes whether a robot has given it up."""

    @route("GET", f"{_DDI}/confirmationBase", anybody=True, below="")
    def ddi_confirmations(self, tenant: str, robot: str) -> bytes:
        """Tells a robot whether somebody there is to confirm what is installed."""

    @route("POST", f"{_DDI}/confirmationBase/activateAutoConfirm", anybody=True, below="")
    def ddi_auto_confirm(self, tenant: str, robot: str, body: bytes) -> bytes:
        """Confirms all that is to come."""

    @route("POST", f"{_DDI}/confirmationBase/deactivateAutoConfirm", anybody=True, below="")
    def ddi_no_auto_confirm(self, tenant: str, robot: str) -> bytes:
        """Has each confirmed by itself again."""

    @route("GET", f"{_DDI}/confirmationBase/{{action}}", anybody=True, below="")
    def ddi_confirmation(self, tenant: str, robot: str, action: str) -> bytes:
        """Tells a robot what somebody there is to confirm."""

    @route("POST", f"{_DDI}/confirmationBase/{{action}}/feedback", anybody=True, below="")
    def ddi_confirm(self, tenant: str, robot: str, action: str, body: bytes) -> bytes:
        """Takes whether it was confirmed."""

    @route("GET", f"{_DDI}/softwaremodules/{{module}}/artifacts", anybody=True, below="")
    def ddi_artifacts(self, tenant: str, robot: str, module: str) -> bytes:
        """Lists files of what a robot is to install."""

    @route("GET", f"{_DDI}/softwaremodules/{{module}}/artifacts/{{file}}", anybody=True, below="")
    def ddi_artifact(self, tenant: str, robot: str, module: str, file: str) -> bytes:
        """Returns a file, or the range of it that is asked for; with `.MD5SUM` after its name, its MD5."""
