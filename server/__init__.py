"""Talks to clients: wire protocol, sessions, the relay, the command line."""
