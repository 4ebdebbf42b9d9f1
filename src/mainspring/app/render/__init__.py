"""What people see of the SDK's answers: tables, panels, progress."""

from typing import TYPE_CHECKING

from mainspring.lazy import names_of

if TYPE_CHECKING:
    from mainspring.app.render.clusters import held_table, past_fleet_panel
    from mainspring.app.render.events import alert_panel, alerts_table, event_line
    from mainspring.app.render.goodput import goodput_table, report_panel
    from mainspring.app.render.jobs import job_panel
    from mainspring.app.render.people import audit_table, blocks_table, secrets_table, tokens_table
    from mainspring.app.render.plans import (
        plan_panel,
        plans_table,
        teams_table,
        verdicts_table,
        what_if_panel,
        why_panel,
    )
    from mainspring.app.render.progress import Bar, Lines, bytes_bar, progress_bar
    from mainspring.app.render.services.tables import service_panel, services_table
    from mainspring.app.render.simulations import comparison_panel, replay_panel
    from mainspring.app.render.tables import (
        ERRORS,
        ago,
        facts_grid,
        fleet_table,
        framed,
        hold_text,
        jobs_table,
        show,
        told_of_accounts,
        told_of_objects,
    )
    from mainspring.app.render.terminal import write_output
    from mainspring.app.render.training.samples import comparison, curves_plot, metrics_table, stacks_panel
else:
    __getattr__, __dir__ = names_of(__name__)
