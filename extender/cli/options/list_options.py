"""Options of the commands that list something, named as those of kubectl."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

import msgspec
import typer

from extender.cli.output.list_table import ListForm, ListFormat
from extender.cli.output.printing import Output
from extender.core.model.errors import BadInput
from extender.queries.log.parameter_validation import checked_choice, checked_name
from extender.queries.state.label_selector import parse_selector

AllNamespaces = Annotated[
    bool, typer.Option("-A", "--all-namespaces", help="All namespaces, also with -n. The default.")
]
OfNamespace = Annotated[str, typer.Option("-n", "--namespace", help="Only of this namespace.")]
Selector = Annotated[str, typer.Option("-l", "--selector", help="Only with these labels, of the root group or of its workload: a=b,c!=d,e in (x,y),!f.")]  # fmt: skip
States = Annotated[list[str] | None, typer.Option("--state", help="Only in these states, with commas between them. Repeatable.")]  # fmt: skip
Watch = Annotated[bool, typer.Option("-w", "--watch", help="After the list, print each row that changes, until Ctrl-C.")]  # fmt: skip
Form = Annotated[ListForm, typer.Option("-o", "--output", help="Form of the output; wide has more columns and cuts no row on a terminal, name only names.")]  # fmt: skip
ValueForm = Annotated[Output, typer.Option("-o", "--output", help="Form of the output.")]
NoHeaders = Annotated[
    bool, typer.Option("--no-headers", help="Print only the rows: no titles, no notes.")
]
SortBy = Annotated[str, typer.Option("--sort-by", "--sort", help="Sort by this column; -COLUMN: the largest first.")]  # fmt: skip


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of a list a user wants."""

    namespace: str = ""  # empty: all
    states: tuple[str, ...] = ()  # empty: all
    selector: str = ""  # empty: all

    @property
    def restricted(self) -> bool:
        """Return whether the part may lack something."""
        return bool(self.namespace or self.states or self.selector)

    def words(self) -> str:
        """Return the part in words, for a sentence that there is nothing: ` in namespace 'a'`."""
        text = f" in namespace {self.namespace!r}" if self.namespace else ""
        text += f" in state {' or '.join(self.states)}" if self.states else ""
        return text + (f" with labels {self.selector!r}" if self.selector else "")

    def path(self, path: str, **more: str) -> str:
        """Return the path of a list under /v1 with this part, and more parameters unless they are empty, as its query."""
        query = [("namespace", self.namespace)] if self.namespace else []
        query += [("state", state) for state in self.states]
        query += [("labelSelector", self.selector)] if self.selector else []
        query += [(name, text) for name, text in more.items() if text]
        return path + ("?" + urlencode(query) if query else "")


def listed(
    namespace: str,
    all_namespaces: bool,
    states: list[str] | None = None,
    choices: tuple[str, ...] = (),
    selector: str = "",
) -> Listed:
    """Return the part of a list that the options name.

    Args:
        all_namespaces: Whether -A is given, which counts more than -n, as for kubectl.
        states: Values of --state, each one or several with commas.

    Raises:
        BadInput: The namespace is not a name, there is no such state, or the selector is not one.
    """
    state_names = [part.strip() for text in states or () for part in text.split(",")]
    parse_selector(selector, "--selector")
    return Listed(
        namespace=checked_name(namespace, "--namespace")
        if namespace and not all_namespaces
        else "",
        selector=selector.strip(),
        states=tuple(
            dict.fromkeys(
                checked_choice(state_name, choices, "--state", "state")
                for state_name in state_names
            )
        ),
    )


def list_format(form: ListForm, no_headers: bool, sort_by: str) -> ListFormat:
    """Return the form of a list that the options name.

    Raises:
        BadInput: --sort-by is empty or only a minus.
    """
    column = sort_by.removeprefix("-").strip()
    if sort_by and not column:
        raise BadInput(f"--sort-by: {sort_by!r} names no column")
    return ListFormat(
        form=form, headers=not no_headers, sort_by=column, descending=sort_by.startswith("-")
    )
