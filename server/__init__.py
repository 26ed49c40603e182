"""Talks to clients: wire protocol, sessions, the relay, the command line."""

from importlib.metadata import version

__version__ = version("headwater")
