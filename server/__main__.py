"""`python -m server` is the command `headwater`."""

from server.commands.cli import main

main()
