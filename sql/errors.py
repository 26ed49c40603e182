"""What the compiler refuses."""

from __future__ import annotations


class NotDifferentiable(Exception):
    """A construct that no operator maintains incrementally.

    ``construct`` names it as a user would write it (``LEFT JOIN``, ``window function``); ``hint`` says what to do with
    a stream table instead, ``detail`` why it is so, in sentences, where there is something to say.
    """

    def __init__(self, construct: str, hint: str | None = None, detail: str | None = None):
        super().__init__(construct)
        self.construct = construct
        self.hint = hint
        self.detail = detail


class NotExpressible(Exception):
    """A query that Spark would not answer exactly as PostgreSQL does; the text names what stands in the way."""
