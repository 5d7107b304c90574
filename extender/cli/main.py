"""The command line. Exit 0: yes; 1: no (does not fit, does not verify, not found); 2: bad usage or input; 141: its output was not read to the end.

Only the command that runs is imported: Kubernetes, SQL and the planner take a second to import, and `--version`,
`--help` and completion do not need them. So `COMMANDS` repeats the first lines of the docstrings.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import Any

import typer
import typer.core
from typer.exceptions import TyperException

from extender import __version__
from extender.cli.output.printing import complain
from extender.cli.output.usage_errors import missing_extra, unknown_command, usage_text
from extender.core.model import errors
from extender.settings import PREFIX, unknown_variable_text, unknown_variables

# In the order of `--help`: module and function, and the first line of its docstring.
COMMANDS = {
    "serve": (
        "extender.cli.commands.serve_command:serve",
        "Run the service that kube-scheduler calls. Every option is also GANG_EXTENDER_<OPTION> in the environment.",
    ),
    "plan": ("extender.cli.commands.plan_command:plan", "Check whether trees of pod groups fit on a cluster, and where. Exit 0 only when all are placed."),
    "make-room": (
        "extender.cli.commands.moves_command:make_room",
        "Find the fewest moves of running pods after which a tree fits, or whole domains are free. Exit 0 only when there are such.",
    ),
    "drain": (
        "extender.cli.commands.moves_command:drain",
        "Find which pods of some nodes can move elsewhere and in which order, what stays, and which gangs would break.",
    ),
    "moves": (
        "extender.cli.commands.moves_command:moves",
        "Show, pause, resume or stop the moves that the service makes (`make-room --apply`, `drain --apply`).",
    ),
    "simulate": (
        "extender.cli.commands.simulate_command:simulate",
        "Simulate a cluster in virtual time: waits, utilisation, evictions and what starves, by namespace and size.",
    ),
    "gangs": ("extender.cli.commands.gang_commands:gangs", "List the gangs of the service, with their state."),
    "explain": ("extender.cli.commands.explain_command:explain", "Explain why a group, pod, workload or node is in its state, and what would help."),
    "trees": ("extender.cli.commands.gang_commands:trees", "List workloads with a tree label: their root groups and states, or why no tree can be made."),
    "history": ("extender.cli.commands.history_commands:history", "Show all events about a gang, also about a deleted one: time, type, reason, actor."),
    "events": ("extender.cli.commands.history_commands:events", "List events of the log, oldest first, or follow the log."),
    "preemptions": (
        "extender.cli.commands.preemptions_command:preemptions",
        "Show preemptions: preemptor, victims, cost, alternatives, when each victim was gone, and the outcome.",
    ),
    "state": ("extender.cli.commands.state_commands:state", "Show reservations, bound members and pending trees at a time or position."),
    "report": ("extender.cli.commands.report_command:report", "Show a report: waiting times, preemptions, terminations and others; without a name, list them."),
    "status": ("extender.cli.commands.status_command:status", "Show the state of the service on one screen, what is wrong first. Exit 1 when something is."),
    "decision replay": (
        "extender.cli.replay.replay_command:replay",
        "Plan the stored input of a decision again and compare, or all of them before an upgrade. Exit 1 when a result differs.",
    ),
    "config": (
        "extender.cli.commands.serve_command:config",
        "Print every setting: its value, its default, where the value is from, and what it does. Takes the options of serve.",
    ),
    "certs": (
        "extender.cli.certificates.certificate_folder:certs",
        "Make a CA and the certificates of the service, of kube-scheduler and of other clients, or renew them.",
    ),
    "proxy": (
        "extender.cli.commands.proxy_command:proxy",
        "Serve the page and the read API on a port of this machine, with your token. Every process of this machine can use it.",
    ),
    "verify": (
        "extender.cli.commands.verify_command:verify",
        "Verify the whole log, and what is stored beside it. Exit 1 when something was changed behind the back of the service.",
    ),
    "keys": ("extender.cli.commands.verify_command:keys", "Make the key that signs anchors (Ed25519) and authenticates snapshots, or replace it."),
    "db migrate": ("extender.cli.commands.database_commands:migrate", "Migrate the database to the schema of this version."),
    "db project": ("extender.cli.commands.database_commands:project", "Bring the interval tables and the snapshots up to the end of the log."),
    "db prune": (
        "extender.cli.commands.database_commands:prune",
        "Delete the stored inputs of old decisions, the largest part of the database; the log stays complete.",
    ),
}  # fmt: skip
# The first words of commands with two words.
GROUPS = {
    "decision": "Replay decisions of the planner.",
    "db": "Maintain the database: migrate, project, prune.",
}


class LazyGroup(typer.core.TyperGroup):
    """Lists one level of `COMMANDS`, and imports only the command that is run or whose `--help` is shown."""

    def __init__(self, *, before: str = "", **settings: Any) -> None:  # noqa: ANN401 -- those of the superclass
        """Make the group of the commands that begin with the words `before`, which end with a space."""
        super().__init__(**settings)
        self._before = before
        for words, (_, summary) in COMMANDS.items():
            if not words.startswith(before):
                continue
            name, _, second = words.removeprefix(before).partition(" ")
            if not second:
                self.add_command(typer.core.TyperCommand(name, help=summary))
            elif name not in self.commands:
                self.add_command(
                    LazyGroup(
                        before=f"{name} ",
                        name=name,
                        help=GROUPS[name],
                        no_args_is_help=True,
                        rich_markup_mode=None,
                    )
                )

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002 -- typer does not export the classes
        """Write the commands with their whole sentences: click cuts them to one line."""
        rows = [(name, str(command.help)) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:  # noqa: ANN401 -- typer does not export the classes
        """Return the name of the command to run, the imported command or the group, and its arguments.

        Raises:
            BadInput: There is no such command; the message has the commands that the user may mean.
        """
        unknown = not args[0].startswith("-") and args[0] not in self.commands
        if unknown and not ctx.resilient_parsing:  # as it is during completion
            raise errors.BadInput(unknown_command(args[0], self._before, tuple(COMMANDS)))
        name, command, rest = super().resolve_command(ctx, args)
        if command is None or isinstance(command, LazyGroup):
            return name, command, rest
        return name, imported_command(self._before + str(command.name)), rest


def imported_command(words: str) -> Any:  # noqa: ANN401 -- typer does not export the class of its commands
    """Return an imported command of `COMMANDS`, ready to parse its arguments."""
    from extender.cli.connection.service_client import with_option_groups
    from extender.cli.options.command_examples import examples_text

    module, _, function = COMMANDS[words][0].partition(":")
    name = words.rpartition(" ")[2]
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    run = with_option_groups(getattr(importlib.import_module(module), function))
    alone.command(name, epilog=examples_text(words))(run)
    return typer.main.get_command(alone)


app = typer.Typer(
    name="gang-extender",
    cls=LazyGroup,
    help="Schedule trees of pod groups as one unit beside a stock kube-scheduler, and query the decisions.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(requested: bool) -> None:
    if requested:
        print(f"gang-extender {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: bool = typer.Option(  # noqa: ARG001 -- its callback does the work
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Warn about variables that are no settings; `serve` writes them to its log."""
    if context.invoked_subcommand == "serve" or not any(
        name.startswith(PREFIX) for name in os.environ
    ):
        return
    for variable, similar in unknown_variables().items():
        complain(unknown_variable_text(variable, similar))


def main() -> None:
    """Run the program."""
    try:
        code = _exit_code()
        sys.stdout.flush()
    except BrokenPipeError:
        code = _reader_ended()
    except SystemExit as end:  # of rich and typer, which end the program themselves
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        code = _reader_ended()
    sys.exit(code)


def _exit_code() -> int:
    """Run the command, print what it could not do, and return the exit code."""
    try:
        return app(standalone_mode=False, prog_name="gang-extender") or 0
    except TyperException as error:
        text = usage_text(error)
        if text.startswith("Usage:"):
            print(text, file=sys.stderr)
        else:
            complain(text)
    except errors.NotFound as error:
        complain(str(error))
        return 1
    except (errors.BadInput, errors.SchemaOutdated) as error:
        complain(str(error))
    except errors.StoreUnavailable as error:
        complain(f"the database does not answer: {error}")
    except errors.ExtenderError as error:
        complain(f"{type(error).__name__}: {error}")
    except ImportError as error:
        text = missing_extra(error.name or "", sys.argv[1:])
        if not text:
            raise
        complain(text)
    return 2


def _reader_ended() -> int:
    """Return the exit code of a program whose reader has ended, such as `head`: that by which a shell shows SIGPIPE, as of kubectl."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())  # so that the end of Python has a place for the rest
    return 128 + signal.SIGPIPE


if __name__ == "__main__":
    main()
