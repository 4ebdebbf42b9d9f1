"""The command line, `ms`: thin verbs over the SDK.

Exit codes: 0 done, 1 the job or command failed, 2 wrong input, 3 not found, 4 conflict, 5 not allowed, 6 not available,
130 interrupted.
"""

from __future__ import annotations

import errno
import re
import sys
from functools import partial
from importlib import import_module
from inspect import isfunction
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mainspring.app import render, sdk
from mainspring.app.cli import jobs
from mainspring.domain.errors import (
    SENTENCES,
    InvalidInput,
    MainspringError,
    NotAllowed,
    NotFound,
    StorageFull,
    Unavailable,
)

# Verbs, and the modules of this package whose functions they are; each is loaded when it is called or its help shown.
_OWN = [name for name, found in vars(jobs).items() if isfunction(found) and found.__module__ == jobs.__name__]
VERBS = {
    **{name: name for name in ("demo", "simulate", "plan", "goodput")},
    **dict.fromkeys(("fleet", "history", "gc"), "history"),
    "alerts": "metrics.metrics",
    "top": "metrics.top",
    **dict.fromkeys(("samples", "compare", "stacks"), "metrics.samples"),
    "audit": "people.audit",
    **dict.fromkeys(("login", "logout", "whoami"), "people.login"),
    "web": "people.web",
    "serve": "services.service",
    **{name: "jobs" for name in _OWN if not name.startswith("_")},
    **dict.fromkeys(("backup", "restore"), "store"),
    "train": "training.train",
    **dict.fromkeys(("pause", "resume", "requeue", "priority", "resize", "drain", "undrain"), "steering"),
}
# Groups of verbs, the modules whose `app` they are, and their help.
GROUPS = {
    "data": ("data.data", "Recordings in, versions, training views out."),
    "checkpoint": ("checkpoint", "Look at checkpoints, compare them, take them out and in."),
    "recipe": ("training.recipe", "Look at recipes, and plan them on chips before asking for any."),
    "profile": ("training.profile", "See where a running job's time goes, and how two profiles differ."),
    "eval": ("evaluation.evaluate", "Evaluate checkpoints, compare two, judge them by gates."),
    "release": ("robots.release", "Release policies for robots, sign them, look at them, revoke them."),
    "robot": ("robots.robot", "Enrol robots, look at them, label and revoke them."),
    "rollout": ("robots.rollout", "Roll releases out to robots, ring after ring, and take them back."),
    "team": ("people.team", "List teams, and set what they are promised and allowed."),
    "token": ("people.token", "Let people in: make tokens, list and remove them."),
    "secret": ("people.secret", "Give jobs tokens and passwords: set secrets of teams, list and remove them."),
    "store": ("store", "Look at the store's tables, and bring them back for an older release."),
    "metrics": ("metrics.metrics", "Give Prometheus its rules, and Grafana its dashboards."),
    "service": ("services.service", "Look at policies that serve robots; scale, update and end them."),
    "cluster": ("cluster", "Add clusters, look at them, check and remove them."),
    "node": ("nodes.node", "See how nodes are; close and open them."),
    "health": ("nodes.health", "See what was told of machines; let rules act."),
}

# What `ms --help` shows together, in the order in which a newcomer meets it.
PANELS = {
    "First steps": ("demo", "up", "down", "web", "cluster"),
    "Jobs": ("run", "ps", "status", "logs", "why", "stop", "pause", "resume", "requeue", "priority", "resize"),
    "Look into jobs": ("top", "events", "history", "samples", "compare", "stacks", "profile", "goodput"),
    "Data": ("data",),
    "Training": ("train", "recipe", "checkpoint", "eval"),
    "Policies and robots": ("serve", "service", "release", "robot", "rollout"),
    "The fleet": ("fleet", "plan", "simulate", "node", "health", "drain", "undrain"),
    "People": ("login", "logout", "whoami", "team", "token", "secret", "audit"),
    "Keeping it running": ("alerts", "metrics", "backup", "restore", "store", "gc"),
}


class _Spare(TyperGroup):
    """A group whose options are taken as they are; see `_spare`."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns its own options."""
        return [_spare(param) for param in super().get_params(ctx)]


class _Group(_Spare):
    """Verbs of one module, which is loaded when they are asked for."""

    def __init__(self, *, module: str, **given: Any) -> None:
        super().__init__(no_args_is_help=True, rich_markup_mode="rich", **given)
        self._module = module

    def list_commands(self, ctx: Any) -> list[str]:
        """Returns the names of its verbs."""
        if not self.commands:
            found = typer.main.get_group(_loaded(self._module).app).commands
            self.commands.update({name: _spared(command) for name, command in found.items()})
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns a verb, None where there is none of that name."""
        return self.commands.get(cmd_name) if cmd_name in self.list_commands(ctx) else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Returns the verb that was meant: of a group with a `DEFAULT`, that one where the first word is none."""
        default = getattr(_loaded(self._module), "DEFAULT", "")
        named = not default or args[0].startswith("-") or args[0] in self.list_commands(ctx)
        return super().resolve_command(ctx, args if named else [default, *args])


class _Ms(_Spare):
    """All verbs."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Returns their names."""
        return [name for names in PANELS.values() for name in names]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns a verb or a group of them, None where there is none of that name."""
        if cmd_name in self.list_commands(ctx) and cmd_name not in self.commands:
            made = self.commands[cmd_name] = _made(cmd_name)
            made.rich_help_panel = next(panel for panel, names in PANELS.items() if cmd_name in names)
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Returns the verb that was meant; of a wrong one, the nearest are told."""
        known = self.list_commands(ctx)
        for name in () if args[0] in known else known:
            self.get_command(ctx, name)
        return super().resolve_command(ctx, args)


def _loaded(module: str) -> Any:
    return import_module(f"mainspring.app.cli.{module}")


def _made(name: str) -> Any:
    if name in GROUPS:
        module, told = GROUPS[name]
        return _Group(name=name, module=module, help=told)
    alone = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode="rich", add_completion=False)
    alone.command(name)(getattr(_loaded(VERBS[name]), name))
    return _spared(typer.main.get_command(alone))


def _spared(command: Any) -> Any:
    params = command.get_params
    command.get_params = lambda context: [_spare(param) for param in params(context)]
    return command


def _spare(param: Any) -> Any:
    """Has a parameter take text, and what is left out, as it is: Typer loads pydantic to read any value."""
    param.process_value = partial(_read, param)
    return param


def _read(param: Any, context: Any, value: Any) -> Any:
    several, left_out = param.multiple or param.nargs == -1, value is None or value == param.default
    value = param.default if left_out and value is not None else value  # A word may equal a default, which is an enum.
    text = not several and type(value) is str and param.type_descriptor.annotation is str
    if (left_out and not param.required) or text:
        value = () if several and value is None else value
        return param.callback(context, param, value) if param.callback else value
    return type(param).process_value(param, context, value)


app = typer.Typer(
    name="ms",
    cls=_Ms,
    help="Mainspring: jobs, data and robots of a lab.\n\n" + " ".join((__doc__ or "").partition("\n\n")[2].split()),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@app.callback()
def _home(
    context: typer.Context,
    home: Annotated[
        str | None,
        typer.Option(
            metavar="<path>",
            help="Home folder with configuration and state.",
            envvar="MAINSPRING_HOME",
            show_default="~/.mainspring",
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Send the token over plain HTTP, which whoever is on the way can read.",
            envvar="MAINSPRING_INSECURE",
        ),
    ] = False,
) -> None:
    context.obj = sdk.Lab(home, insecure=insecure)


def main() -> None:
    """Runs the command line; every known error becomes one clear message and an exit code."""
    words = sys.argv[1:]
    as_json = "--json" in (words[: words.index("--")] if "--" in words else words)
    try:
        sys.exit(app(standalone_mode=not as_json))
    except MainspringError as error:
        told = error
    except typer.TyperException as error:  # Raised for machines only; people were shown how the command is used.
        told = InvalidInput("read the command line", got=error.format_message(), next_step="ms --help")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _extra_packages():
            raise
        told = Unavailable(
            "run this command with a small installation",
            got=f"no package {error.name!r}",
            next_step="pip install 'mainspring[all]'",
        )
    except OSError as error:
        told = _of_this_machine(error)
    if as_json:
        from mainspring.app.render.terminal import json_text
        from mainspring.domain.answers import problem_of

        sys.stderr.write(json_text(problem_of(told)) + "\n")
    else:
        _tell(told)
    sys.exit(told.exit_code)


def _extra_packages() -> set[str]:
    """Returns what `pip install mainspring` leaves to its extras, so that a control plane installs small."""
    from importlib.metadata import requires

    wanted = [each for each in requires("mainspring") or () if "extra ==" in each]
    names = {re.split(r"[^\w.-]", each)[0].replace("-", "_") for each in wanted} - {"mainspring"}
    return names | {"google"}  # Protobuf's.


def _of_this_machine(error: OSError) -> MainspringError:
    kinds = {errno.ENOENT: NotFound, errno.EACCES: NotAllowed, errno.EPERM: NotAllowed, errno.EROFS: NotAllowed}
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    kind = StorageFull if full else kinds.get(error.errno or 0, Unavailable)
    unnamed = "the current folder" if error.errno == errno.ENOENT else ""
    return kind("use a file or folder", on=str(error.filename or unnamed), got=error.strerror or repr(error))


def _tell(error: MainspringError) -> None:
    wanted = "" if error.wanted.startswith(SENTENCES) else "wanted"
    parts = {"on": error.on, "got": error.got, wanted: error.wanted, "next": error.next_step}
    render.ERRORS.print(f"Could not {error.attempted}.", style="red")
    render.ERRORS.print(render.facts_grid({label: text for label, text in parts.items() if text}))
