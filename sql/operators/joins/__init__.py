"""Operators that put rows of several inputs together."""
