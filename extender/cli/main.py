"""The command line. Exit 0: yes; 1: no (does not fit, does not verify, not found); 2: bad usage or input."""

from __future__ import annotations

import sys

import typer

from extender import __version__
from extender.cli import audit, live, plan, preemptions, prune, reports, serve, state
from extender.cli.output import complain
from extender.core.errors import BadInput, ExtenderError, NotFound, SchemaOutdated

app = typer.Typer(
    name="gang-extender",
    help="Schedule trees of pod groups as one unit beside a stock kube-scheduler, and ask why.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("serve")(serve.serve)
app.command("migrate")(serve.migrate)
app.command("plan")(plan.plan)
app.command("gangs")(live.gangs)
app.command("explain")(live.explain)
app.command("history")(audit.history)
app.command("events")(audit.events)
app.command("preemptions")(preemptions.preemptions)
app.command("state")(state.state)
app.command("project")(state.project)
app.command("report")(reports.report)
app.command("replay")(audit.replay)
app.command("verify")(audit.verify)
app.command("prune")(prune.prune)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"gang-extender {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Options of the whole program."""


def main() -> None:
    """Run the program."""
    try:
        app()
    except NotFound as error:
        complain(str(error))
        sys.exit(1)
    except (BadInput, SchemaOutdated) as error:
        complain(str(error))
        sys.exit(2)
    except ExtenderError as error:
        complain(f"{type(error).__name__}: {error}")
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(0)


if __name__ == "__main__":
    main()
