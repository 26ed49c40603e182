"""`python -m server` is the command `headwater`."""

from server.cli import main

main()
