"""The program `kubectl_complete-gang`: kubectl runs it to complete the words after `kubectl gang`.

kubectl gives the words, the last one incomplete, and reads lines `WORD<tab>DESCRIPTION` and a last line with a number in the format
of the library cobra.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys

NO_FILES = ":4"  # cobra: the words are all there are, files are not offered


def main() -> None:
    """Print the completions of the arguments."""
    words = ["gang-extender", *sys.argv[1:]]
    # typer prints the same lines for the shell fish
    os.environ["_GANG_EXTENDER_COMPLETE"] = "complete_fish"
    os.environ["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    os.environ["COLUMNS"] = "10000"  # a description stays on its line
    os.environ["_TYPER_COMPLETE_ARGS"] = shlex.join(words[:-1]) + " " + words[-1]
    from extender.cli.main import app

    printed = io.StringIO()
    # completion ends the process
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        app(standalone_mode=False, prog_name="gang-extender")
    print(*filter(None, printed.getvalue().splitlines()), NO_FILES, sep="\n")


if __name__ == "__main__":
    main()
