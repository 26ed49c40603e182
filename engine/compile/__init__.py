"""Compilation of queries, in processes of its own."""
