"""Carries out the statements that PostgreSQL has no grammar for, in the transaction of the client that sent them."""

from __future__ import annotations

from catalog.session import RequestSession, SqlError
from engine.compile.pool import compilers, on_behalf_of
from engine.load_generators import create_source, drop_source
from engine.subscribe.history import retain_history
from sql.statements.source_and_history import CreateSource, DropSource, RetainHistory, StatementError, parse_statement


async def carry_out_statement(session: RequestSession, text: str, search_path: str) -> None:
    """Carry out one statement with the rights of the session's user. Raises SqlError."""
    ((role,),) = await session.fetch("SELECT current_user::text")
    try:
        with on_behalf_of(role):
            statement = await compilers().run(parse_statement, text)
    except StatementError as error:
        raise SqlError(error.sqlstate, str(error), hint=error.hint) from error
    match statement:
        case CreateSource():
            created = await create_source(session, statement, search_path)
            if created and statement.retain is not None:
                await retain_history(session, statement.name, statement.retain, search_path, kind="SOURCE")
            session.tag = "CREATE SOURCE"
        case DropSource():
            await drop_source(session, statement, search_path)
            session.tag = "DROP SOURCE"
        case RetainHistory():
            await retain_history(
                session,
                statement.name,
                statement.period,
                search_path,
                kind=statement.kind,
                guarded=statement.guarded,
            )
            session.tag = "ALTER " + statement.kind
