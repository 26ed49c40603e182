"""Registers for Python programs: declare one as a class, post its movements, ask for balances and turnovers.

`docs/python.md` has examples. Everything is done by the documented functions of the schema `accum`.
"""

from headwater.registers.clients import AsyncRegisterClient, RegisterClient
from headwater.registers.definition import Register, RegisterMismatch, dimension, resource
from headwater.registers.results import Amounts, Correction, Movement, StatementLine

__all__ = [
    "Amounts",
    "AsyncRegisterClient",
    "Correction",
    "Movement",
    "Register",
    "RegisterClient",
    "RegisterMismatch",
    "StatementLine",
    "dimension",
    "resource",
]
