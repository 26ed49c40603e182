"""Targets: the executors that a statement is written for."""
