"""Run the command line with `python -m extender`."""

from extender.cli.main import main

main()
