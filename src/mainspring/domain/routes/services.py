"""Calls about services: made, scaled, updated, shown, ended; and where their replicas are, for proxies."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from typing import Annotated

from mainspring.domain import answers
from mainspring.domain.ids import TeamName
from mainspring.domain.routes.nodes import Why
from mainspring.domain.routes.routing import Query, route
from mainspring.domain.team import Right


class ServiceCalls:
    """What people ask and say of services; see `LabCalls`."""

    @route("POST", "/services", may=Right.SUBMIT_JOBS, handler="services.make", patient=True)
    def serve(self, body: answers.NewService) -> answers.ServiceView:
        """Makes a service of a spec of kind `service`: so many jobs of it, each a replica."""

    @route("GET", "/services", may=Right.READ_JOBS, handler="services.services", operation="list_services")
    def services(
        self, *, team: Annotated[TeamName | None, Query(max_length=63)] = None
    ) -> tuple[answers.ServiceView, ...]:
        """Lists services with their replicas, in order of name.

        Args:
            team: Only this team's.
        """

    @route("GET", "/services/{service}", may=Right.READ_JOBS, handler="services.service", operation="show_service")
    def service(self, service: str) -> answers.ServiceView:
        """Shows a service and its replicas, those that ended lately too."""

    @route("GET", "/services/{service}/replicas", may=Right.CALL_SERVICES, handler="services.replicas")
    def service_replicas(self, service: str) -> tuple[answers.ReplicaAddress, ...]:
        """Lists where the replicas of a service are called and how, for whoever may call it."""

    @route("PUT", "/services/{service}/scale", may=Right.STEER_JOBS, handler="services.scale")
    def scale_service(self, service: str, body: answers.NewScale) -> answers.ServiceView:
        """Gives a service other numbers of replicas, at least and at most."""

    @route("POST", "/services/{service}/versions", may=Right.STEER_JOBS, handler="services.update", patient=True)
    def update_service(self, service: str, body: answers.NewVersion) -> answers.ServiceView:
        """Replaces the replicas of a service one by one by those of another spec; back again where these fail."""

    @route("DELETE", "/services/{service}", may=Right.STOP_JOBS, handler="services.stop")
    def stop_service(self, service: str, *, reason: Why = "") -> answers.ServiceView:
        """Ends a service with all its replicas.

        Args:
            service: Its name.
            reason: Why, for people.
        """
