"""IMMEDIATE mode: what maintains a stream table within the statements that change its sources."""

from sql.immediate.program import Lock, Program, SourceProgram, program

__all__ = ["Lock", "Program", "SourceProgram", "program"]
