"""`ms cluster`: the clusters jobs may go to; adding one begins with a look at its set-up."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import Parameter, Signature
from typing import Annotated, Any, final

import typer
from typer.core import TyperGroup

from mainspring.app.base.specs import DURATION_FORM, duration_from
from mainspring.app.cli.arguments import Json, LabContext
from mainspring.app.render.clusters import cluster_panel, clusters_table, finding_lines, node_list
from mainspring.app.render.tables import CONSOLE, ERRORS, show, told_of_accounts, told_of_objects
from mainspring.app.sdk.clusters import refused
from mainspring.domain.errors import InvalidSpec, NotFound
from mainspring.domain.routes import LIST_MAX
from mainspring.engines.common.kind import AddOption, ClusterKind, Finding, Manifests, OptionForm
from mainspring.engines.registry import ENGINES, kind_named, kinds


class _KindGroup(TyperGroup, ABC):
    """A command for each kind of cluster, made when one is wanted: who wants none loads no engine."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Returns the kinds of cluster."""
        self.commands = self.commands or {name: made for kind in kinds() for name, made in self.made(kind)}
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns the command for a kind; None where there is no such kind."""
        self.list_commands(ctx)
        return super().get_command(ctx, cmd_name)

    @abstractmethod
    def made(self, kind: ClusterKind[Any]) -> Iterator[tuple[str, Any]]:
        """Yields the command for a kind, by its name, if there is one."""


@final
class _AddGroup(_KindGroup):
    def made(self, kind: ClusterKind[Any]) -> Iterator[tuple[str, Any]]:
        """Yields the command that adds a cluster of a kind."""
        yield kind.name, _add_command(kind)


@final
class _ManifestsGroup(_KindGroup):
    def made(self, kind: ClusterKind[Any]) -> Iterator[tuple[str, Any]]:
        """Yields the command of a kind whose operators apply something."""
        if kind.manifests is not None:
            yield kind.name, _manifests_command(kind.name, kind.manifests)


app = typer.Typer()
add = typer.Typer(cls=_AddGroup, help="Add a cluster; its set-up is checked first.", no_args_is_help=True)
app.add_typer(add, name="add")
manifests = typer.Typer(cls=_ManifestsGroup, help="Print what a cluster's operators apply first.", no_args_is_help=True)
app.add_typer(manifests, name="manifests")
Name = Annotated[str, typer.Argument(help="Name of a cluster.", metavar="NAME")]
NewName = Annotated[str, typer.Argument(help="Name to give it.", metavar="NAME")]
NoCheck = Annotated[bool, typer.Option("--no-check", help="Add it without looking at its set-up.")]
# What the command line takes for each form of an option, and what it has where nothing is typed.
_TYPED: dict[OptionForm, tuple[Any, object]] = {
    OptionForm.TEXT: (str, ""),
    OptionForm.FLAG: (bool, False),
    OptionForm.COUNT: (int, 0),
    OptionForm.NUMBER: (float, 0.0),
    OptionForm.DURATION: (str, ""),
    OptionForm.NAMES: (list[str] | None, None),
    OptionForm.PAIRS: (list[str] | None, None),
    OptionForm.AMOUNTS: (list[str] | None, None),
}


def _add_command(kind: ClusterKind[Any]) -> Any:
    """Returns `ms cluster add KIND`."""

    def add_cluster(
        *, context: LabContext, name: str, no_check: bool = False, as_json: bool = False, **given: Any
    ) -> None:
        cluster = kind.settings(name=name, **_fields(kind.options, given))
        with _telling(kind.steps, as_json=as_json) as tell:
            shown = context.obj.clusters.add(cluster, check=not no_check, on_finding=tell)
        told = f"Added {shown.name}. "
        told += f"It has not answered yet. Look: ms cluster show {shown.name}" if shown.asked else "ms up takes it in."
        show(shown, as_json=as_json, look=lambda: cluster_panel(shown, now_s=time.time()) if shown.view else told)

    own = [
        Parameter("context", Parameter.KEYWORD_ONLY, annotation=LabContext),
        Parameter("name", Parameter.KEYWORD_ONLY, annotation=NewName),
        *map(_parameter, kind.options),
        Parameter("no_check", Parameter.KEYWORD_ONLY, annotation=NoCheck, default=False),
        Parameter("as_json", Parameter.KEYWORD_ONLY, annotation=Json, default=False),
    ]
    add_cluster.__signature__ = Signature([each for each in own if kind.steps or each.name != "no_check"])  # type: ignore[attr-defined]
    return _command(kind.name, kind.help, add_cluster)


def _manifests_command(name: str, manifests: Manifests) -> Any:
    """Returns `ms cluster manifests KIND`."""

    def print_manifests(**given: Any) -> None:
        print(manifests.text(_fields(manifests.options, given)), end="")

    print_manifests.__signature__ = Signature([*map(_parameter, manifests.options)])  # type: ignore[attr-defined]
    return _command(name, manifests.help, print_manifests)


def _command(name: str, help: str, called: Callable[..., None]) -> Any:
    made = typer.Typer(add_completion=False)
    made.command(name, help=help)(called)
    return typer.main.get_command(made)


def _parameter(option: AddOption) -> Parameter:
    """Returns an option as typer takes it from a function's signature."""
    kind, usual = _TYPED[option.form]
    told = typer.Option(
        _flag(option),
        help=f"{option.help}: {DURATION_FORM}." if option.form is OptionForm.DURATION else option.help,
        metavar=option.metavar or None,
        show_default=option.shown_default or True,
        min=option.least,
    )
    default = usual if option.default is None else option.default
    return Parameter(
        _name(option),
        Parameter.KEYWORD_ONLY,
        annotation=Annotated[kind, told],
        default=Parameter.empty if option.required else default,
    )


def _name(option: AddOption) -> str:
    """Returns what an option is called among all that the command takes: no field of an engine's is any of ours."""
    return f"of_{option.field}"


def _flag(option: AddOption) -> str:
    return option.flag or f"--{option.field.replace('_', '-')}"


def _fields(options: Sequence[AddOption], given: Mapping[str, Any]) -> dict[str, object]:
    """Returns what each option's field is given."""
    return {each.field: _field(each, given[_name(each)]) for each in options}


def _field(option: AddOption, typed: Any) -> object:
    """Returns what a field of the settings is given for what was typed."""
    match option.form:
        case OptionForm.TEXT | OptionForm.FLAG | OptionForm.COUNT | OptionForm.NUMBER:
            return typed
        case OptionForm.DURATION:
            return duration_from(typed) if typed else 0.0
        case OptionForm.NAMES:
            return tuple(typed or ())
        case OptionForm.PAIRS:
            return _pairs(_flag(option), typed)
        case OptionForm.AMOUNTS:
            return {key: _amount(option, value) for key, value in _pairs(_flag(option), typed).items()}


@app.command("ls")
def list_command(context: LabContext, as_json: Json = False) -> None:
    """List clusters with their nodes, chips and prices."""
    clusters = context.obj.clusters.ls()
    none = "No clusters. Add one: " + "; ".join(f"ms cluster add {engine} --help" for engine in ENGINES)
    show(clusters, as_json=as_json, look=lambda: clusters_table(clusters, now_s=time.time()) if clusters else none)


@app.command("show")
def show_command(context: LabContext, name: Name, as_json: Json = False) -> None:
    """Show one cluster: how it is set up, and its nodes or slots with chips, what is free, state and reason."""
    shown = context.obj.clusters.show(name)
    show(shown, as_json=as_json, look=lambda: cluster_panel(shown, now_s=time.time()))


@app.command()
def nodes(
    context: LabContext,
    name: Name,
    after: Annotated[str, typer.Option(help="Go on after this node of the list.", metavar="NODE")] = "",
    limit: Annotated[int, typer.Option(min=1, max=LIST_MAX, help="At most so many, in order of name.")] = 50,
    as_json: Json = False,
) -> None:
    """List a cluster's nodes or slots one by one; `show` has those that are alike on one line."""
    found = context.obj.nodes(name, after=after, limit=limit)
    show(found, as_json=as_json, look=lambda: node_list(found, now_s=time.time()) if found else "No more nodes.")
    if len(found) == limit and not as_json:
        ERRORS.print(f"There may be more: ms cluster nodes {name} --after {found[-1].node.name}", style="dim")


@app.command()
def check(context: LabContext, name: Name, as_json: Json = False) -> None:
    """Look at a cluster's set-up step by step, and say what to fix. Exit 6 when something needed is missing."""
    shown = context.obj.clusters.show(name)
    if shown.settings is None:
        raise NotFound("check a cluster", on=name, got="a server elsewhere", next_step="run it on the server's machine")
    found, kind = [], kind_named(shown.settings.kind)
    with _telling(kind.steps, as_json=as_json) as tell:
        for finding in context.obj.clusters.findings(shown.settings):
            found.append(finding)
            tell(finding)
    if as_json:
        show(tuple(found), as_json=True)
    elif not found:
        why = "pretended by this machine" if kind.here else "ready as it is"
        show(f"{name} is {why}: there is nothing to set up.")
    if not as_json:
        config = context.obj.home.config()
        told = told_of_accounts(config.run_as), told_of_objects(config.objects, config.objects_role)
        show("\n".join(filter(None, told)))
    refused(found, attempted="use a cluster", on=name, next_step="put it right, and check again")


@app.command()
def remove(
    context: LabContext,
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Stop the jobs that are on it first.")] = False,
    as_json: Json = False,
) -> None:
    """Remove a cluster; refused while jobs are on it. The cluster itself is left as it is."""
    with ERRORS.status("") as status:
        removal = context.obj.clusters.remove(
            name,
            force=force,
            on_look=lambda view: status.update(f"{view.spec.name} ({view.id}) is {view.state.value}"),
        )
    told = [f"Removed {removal.name}."]
    if removal.stopped:
        told.append(f"Stopped for it: {', '.join(removal.stopped)}.")
    if removal.left:
        told.append(
            f"Not ended when it went: {', '.join(removal.left)}. They are given up once nothing has been heard of them"
            " for a while; adding the cluster again takes back what still runs there."
        )
    show(removal, as_json=as_json, look=lambda: "\n".join(told))


@contextmanager
def _telling(steps: Sequence[str], *, as_json: bool) -> Iterator[Callable[[Finding], None]]:
    """Gives what prints findings as they come; what is looked at meanwhile is shown below them."""
    if as_json or not steps:
        yield lambda finding: None
        return
    with CONSOLE.status(steps[0]) as status:

        def tell(finding: Finding) -> None:
            CONSOLE.print(finding_lines(finding), soft_wrap=True)
            after = steps.index(finding.name) + 1 if finding.name in steps else 0
            status.update(f"{steps[after]} ..." if after < len(steps) else "")

        yield tell


def _pairs(flag: str, texts: list[str] | None) -> dict[str, str]:
    """Returns what several LEFT=RIGHT stand for."""
    found: dict[str, str] = {}
    for text in texts or ():
        left, equals, right = text.partition("=")
        if not left or not equals or not right or left in found:
            twice = ", twice" if left in found else ""
            raise InvalidSpec("read a flag", on=flag, got=repr(text) + twice, wanted="NAME=VALUE, each name once")
        found[left] = right
    return found


def _amount(option: AddOption, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InvalidSpec("read an amount", on=_flag(option), got=repr(text), wanted=option.metavar) from error
