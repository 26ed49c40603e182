"""Operators that compute the rows of a group anew, or from what has changed in it."""
