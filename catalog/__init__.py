"""Remembers: install and upgrade scripts, typed access to their tables, the dependency graph."""
