"""`headwater quickstart`: stream tables over a year of real flights, kept correct while the flights change.

`story` tells it from beginning to end; `data` loads the flights, `stream_tables` says what is wanted of them, `replay`
makes the last two days of the year happen, `refreshes` watches what the server does about it, `proof` compares.
"""

from server.quickstart.served import QuickstartError
from server.quickstart.story import run

__all__ = ["QuickstartError", "run"]
