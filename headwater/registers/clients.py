"""A register on a connection: everything happens in the connection's transaction, as the program commits it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Literal
from uuid import UUID

from psycopg import AsyncConnection, Connection

from headwater.calls import Call, T, make, make_async
from headwater.registers import calls
from headwater.registers.calls import Dimensions, Moment
from headwater.registers.results import Amounts, Movement, R, StatementLine

Period = Literal["day", "month", "quarter", "year"]


class RegisterClient(Generic[R]):
    """The register that a class declares, as the database behind a connection has it.

    In all questions `dimensions` may name any of them: `{"warehouse": 1}`; None means those cells in which it is NULL.
    Midnight means the whole of that day where a range ends, and for `at`.
    """

    def __init__(self, connection: Connection[Any], register: type[R]):
        self.connection = connection
        self.register = register
        self._definition = register.__register__

    def _make(self, call: Call[T]) -> T:
        return make(self.connection, call)

    def create(self) -> None:
        """Make the register with its tables and functions. Raises psycopg's DuplicateObject if it is there."""
        self._make(calls.create(self._definition))

    def ensure(self) -> None:
        """Make the register, or add to it the dimensions and resources that only the class has; set `high_write`.

        Raises RegisterMismatch where it differs in what cannot be altered.
        """
        info = self._make(calls.info(self._definition))
        if info is None:
            self.create()
        elif changes := self._definition.missing(info):
            self._make(calls.alter(self._definition, changes))

    def drop(self, *, force: bool = False) -> None:
        """Remove it with all that belongs to it; `force` even if it has movements."""
        self._make(calls.drop(self._definition, force))

    def post(self, *movements: R) -> int:
        """Post movements, all or none; returns how many."""
        return self._make(calls.post(self._definition, movements))

    def unpost(self, recorder: str | int | UUID) -> int:
        """Cancel a document; returns how many movements it had."""
        return self._make(calls.unpost(self._definition, recorder))

    def repost(self, *movements: R) -> int:
        """Put these in the place of the document's movements, which they name as their recorder; returns how many."""
        return self._make(calls.repost(self._definition, movements))

    def balance(self, dimensions: Dimensions = None, *, at: Moment = None) -> Amounts:
        """The balance, now or at a time. Of kind `balance` only."""
        return self._make(calls.balance(self._definition, dimensions, at))

    def balances(self, dimensions: Dimensions = None, *, nonzero: bool = False) -> list[dict[str, Any]]:
        """The present balance of each cell: dimensions and resources, in the order of the dimensions."""
        return self._make(calls.balances(self._definition, dimensions, nonzero))

    def turnover(self, dimensions: Dimensions = None, *, from_date: Moment = None, to_date: Moment = None) -> Amounts:
        """What was moved in a time."""
        (total,) = self._make(calls.turnovers(self._definition, (), dimensions, from_date, to_date))
        return total

    def turnovers(
        self,
        by: Sequence[str],
        dimensions: Dimensions = None,
        *,
        from_date: Moment = None,
        to_date: Moment = None,
    ) -> list[dict[str, Any]]:
        """The same for each combination of the dimensions `by` that occurs: these and the resources."""
        return self._make(calls.turnovers(self._definition, by, dimensions, from_date, to_date))

    def movements(
        self,
        dimensions: Dimensions = None,
        *,
        recorder: str | int | UUID | None = None,
        from_date: Moment = None,
        to_date: Moment = None,
        corrected: bool = False,
    ) -> list[Movement[R]]:
        """Movements in the order of their periods; `corrected`: also those that have been taken back, behind them."""
        return self._make(calls.movements(self.register, dimensions, recorder, from_date, to_date, corrected))

    def statement(
        self,
        each: Period = "month",
        dimensions: Dimensions = None,
        *,
        from_date: Moment = None,
        to_date: Moment = None,
    ) -> list[StatementLine]:
        """Turnover of each day, month, quarter or year, and the balance at its end. Of kind `balance` only.

        From the first movement to now, where nothing else is said.
        """
        return self._make(calls.statement(self._definition, each, dimensions, from_date, to_date))


class AsyncRegisterClient(Generic[R]):
    """`RegisterClient` over an asynchronous connection."""

    def __init__(self, connection: AsyncConnection[Any], register: type[R]):
        self.connection = connection
        self.register = register
        self._definition = register.__register__

    async def _make(self, call: Call[T]) -> T:
        return await make_async(self.connection, call)

    async def create(self) -> None:
        """See `RegisterClient.create`."""
        await self._make(calls.create(self._definition))

    async def ensure(self) -> None:
        """See `RegisterClient.ensure`."""
        info = await self._make(calls.info(self._definition))
        if info is None:
            await self.create()
        elif changes := self._definition.missing(info):
            await self._make(calls.alter(self._definition, changes))

    async def drop(self, *, force: bool = False) -> None:
        """See `RegisterClient.drop`."""
        await self._make(calls.drop(self._definition, force))

    async def post(self, *movements: R) -> int:
        """See `RegisterClient.post`."""
        return await self._make(calls.post(self._definition, movements))

    async def unpost(self, recorder: str | int | UUID) -> int:
        """See `RegisterClient.unpost`."""
        return await self._make(calls.unpost(self._definition, recorder))

    async def repost(self, *movements: R) -> int:
        """See `RegisterClient.repost`."""
        return await self._make(calls.repost(self._definition, movements))

    async def balance(self, dimensions: Dimensions = None, *, at: Moment = None) -> Amounts:
        """See `RegisterClient.balance`."""
        return await self._make(calls.balance(self._definition, dimensions, at))

    async def balances(self, dimensions: Dimensions = None, *, nonzero: bool = False) -> list[dict[str, Any]]:
        """See `RegisterClient.balances`."""
        return await self._make(calls.balances(self._definition, dimensions, nonzero))

    async def turnover(
        self, dimensions: Dimensions = None, *, from_date: Moment = None, to_date: Moment = None
    ) -> Amounts:
        """See `RegisterClient.turnover`."""
        (total,) = await self._make(calls.turnovers(self._definition, (), dimensions, from_date, to_date))
        return total

    async def turnovers(
        self,
        by: Sequence[str],
        dimensions: Dimensions = None,
        *,
        from_date: Moment = None,
        to_date: Moment = None,
    ) -> list[dict[str, Any]]:
        """See `RegisterClient.turnovers`."""
        return await self._make(calls.turnovers(self._definition, by, dimensions, from_date, to_date))

    async def movements(
        self,
        dimensions: Dimensions = None,
        *,
        recorder: str | int | UUID | None = None,
        from_date: Moment = None,
        to_date: Moment = None,
        corrected: bool = False,
    ) -> list[Movement[R]]:
        """See `RegisterClient.movements`."""
        return await self._make(calls.movements(self.register, dimensions, recorder, from_date, to_date, corrected))

    async def statement(
        self,
        each: Period = "month",
        dimensions: Dimensions = None,
        *,
        from_date: Moment = None,
        to_date: Moment = None,
    ) -> list[StatementLine]:
        """See `RegisterClient.statement`."""
        return await self._make(calls.statement(self._definition, each, dimensions, from_date, to_date))
