"""The quickstart from beginning to end."""

from __future__ import annotations

import shlex
import shutil
import tempfile
import time
from datetime import datetime
from pathlib import Path

import psycopg
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from catalog.values import Executor
from server.quickstart import data as flights
from server.quickstart.proof import compare
from server.quickstart.refreshes import Watcher, refresh_table
from server.quickstart.replay import replay, rounds
from server.quickstart.served import Connection, QuickstartError, Served, served
from server.quickstart.stream_tables import STREAM_TABLES

DATABASE = "flights"
SCHEDULE = "1s"


def run(data: Path | None, *, keep: bool, spark: str, console: Console) -> None:
    """Tell the story. Raises QuickstartError (above all if a stream table is wrong) and StartupError."""
    began = time.monotonic()
    directory = (data or Path(tempfile.mkdtemp(prefix="headwater-quickstart-"))).expanduser().absolute()
    wanted = data is not None
    try:
        with served(directory, spark, keep=keep) as server:
            seconds = time.monotonic() - began
            console.print(
                f"[bold]A server[/] listens at {escape(server.url)} (started in {seconds:.1f} s). It has a PostgreSQL "
                f"of its own in {escape(str(directory))}. All that follows goes through that address, with an "
                "ordinary PostgreSQL driver."
            )
            _create_database(server)
            with server.connect(DATABASE) as connection, server.connect(DATABASE) as observer:
                watcher = Watcher(observer)
                live = _load(connection, console)
                _create_stream_tables(connection, watcher, spark, console)
                _replay(connection, watcher, live, console)
                _prove(connection, console)
        wanted = wanted or keep
        _say_goodbye(server, keep=keep, seconds=time.monotonic() - began, console=console)
    except (psycopg.Error, QuickstartError) as error:
        wanted = True
        hint = getattr(error, "hint", None)
        raise QuickstartError(
            str(error).strip(), hint or f'The server\'s log is "{directory}/headwater.log".'
        ) from error
    finally:
        if not wanted:
            shutil.rmtree(directory, ignore_errors=True)


def _create_database(server: Served) -> None:
    with server.connect("postgres") as connection:
        try:
            connection.execute(f"CREATE DATABASE {DATABASE}")
        except psycopg.errors.DuplicateDatabase as error:
            raise QuickstartError(
                f'there is a database "{DATABASE}" already in this data directory',
                f"Drop it (headwater psql -c 'DROP DATABASE {DATABASE}'), or use another directory.",
            ) from error


def _load(connection: Connection, console: Console) -> list[dict[str, str]]:
    console.rule("1. A year of flights", align="left")
    console.print(
        "Five tables: every flight that left New York City in 2013, with airlines, airports, planes and the weather. "
        "They are loaded with COPY. The flights of the last two days of the year are held back for later."
    )
    flights.create_tables(connection)
    began = time.monotonic()
    with _progress(console) as progress:
        rows, live = flights.load(connection, progress)
    loaded = ", ".join(f"{count:,} {table}" for table, count in rows.items())
    console.print(f"Loaded {loaded} in {time.monotonic() - began:.1f} s.\n")
    return live


def _create_stream_tables(connection: Connection, watcher: Watcher, spark: str, console: Console) -> None:
    console.rule("2. Stream tables", align="left")
    console.print(
        "A stream table is a table defined by a query and kept up to date. It is created by calling a function:\n"
    )
    first = STREAM_TABLES[0]
    console.print(_indented(first.query), style="cyan", markup=False, highlight=False)
    console.print(f"\n{_create_call(first.name)}\n", style="cyan", markup=False, highlight=False)
    if spark != "off":
        console.print(
            f"Much is read here, so the initial population is Spark's work ({escape(spark)}): it reads a columnar "
            "mirror of the tables. The first stream table also waits for Spark to start and for the mirror to be "
            "filled."
        )
    table = Table(pad_edge=False, box=None)
    for heading, justify in (("stream table", "left"), ("executor", "left"), ("rows", "right"), ("s", "right")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    table.add_column("what it holds")
    reasons: list[str] = []
    with _progress(console) as progress:
        task = progress.add_task("populating", total=len(STREAM_TABLES))
        for stream_table in STREAM_TABLES:
            progress.update(task, description=stream_table.name)
            began = time.monotonic()
            connection.execute(
                "SELECT pgtrickle.create_stream_table(name => %s, query => %s, schedule => %s)",
                [stream_table.name, stream_table.query, SCHEDULE],
            )
            seconds = time.monotonic() - began
            created = [refresh for refresh in watcher.new() if refresh.name == stream_table.name]
            if not created:
                raise QuickstartError(f"the initial population of {stream_table.name} is not in the refresh history")
            done = created[-1]
            table.add_row(done.name, done.executor, f"{done.rows_out:,}", f"{seconds:.1f}", stream_table.purpose)
            if done.executor != Executor.SPARK and spark != "off":
                reasons.append(f"{done.name}: {done.executor_reason}")
            progress.advance(task)
        progress.update(task, description="populated")
    console.print(table)
    if reasons:
        console.print("\nWhat PostgreSQL did itself, and why (it is in the refresh history):")
        for reason in reasons:
            console.print(f"  {reason}", style="dim", markup=False, highlight=False)
    console.print()


def _create_call(name: str) -> str:
    return f"SELECT pgtrickle.create_stream_table(name => '{name}', query => ..., schedule => '{SCHEDULE}');"


def _replay(connection: Connection, watcher: Watcher, live: list[dict[str, str]], console: Console) -> None:
    console.rule("3. The last two days of the year, live", align="left")
    console.print(
        f"{len(live):,} flights are announced, leave, land, are cancelled; each commit is followed by what the server "
        "did about it by itself. [bold]rows in[/] are changed rows that a refresh has read (all: it computed the "
        "whole query, and the history says why), [bold]rows out[/] those it has inserted, updated or deleted in the "
        "stream table; [bold]seen[/] is how long after the commit everybody could see the result.\n"
    )
    with _progress(console) as progress:
        task = progress.add_task("replaying", total=len(rounds(live)))
        for happened in replay(connection, live):
            committed = _now(connection)
            progress.update(task, description=happened.title)
            console.print(escape(str(happened)), style="bold", highlight=False)
            console.print(refresh_table(watcher.until_fresh(happened.transaction), committed))
            console.print()
            progress.advance(task)
        progress.update(task, description="replayed")


def _now(connection: Connection) -> datetime:
    row = connection.execute("SELECT pg_catalog.clock_timestamp()").fetchone()
    assert row is not None
    assert isinstance(row[0], datetime)
    return row[0]


def _prove(connection: Connection, console: Console) -> None:
    console.rule("4. Is it right?", align="left")
    console.print(
        "Each stream table against its query, run afresh on the tables as they are now, EXCEPT ALL both ways: "
        "rows that one has and the other has not, duplicates counted."
    )
    table = Table(pad_edge=False, box=None, padding=(0, 1, 0, 0))
    table.add_column("stream table")
    for heading in ("rows", "missing", "surplus", "query, ms", "reading it, ms"):
        table.add_column(heading, justify="right")
    table.add_column("")
    wrong = []
    with _progress(console) as progress:
        task = progress.add_task("comparing", total=len(STREAM_TABLES))
        for comparison in compare(connection, STREAM_TABLES):
            if not comparison.equal:
                wrong.append(comparison.name)
            table.add_row(
                comparison.name,
                f"{comparison.rows:,}",
                f"{comparison.missing:,}",
                f"{comparison.surplus:,}",
                f"{comparison.query_ms:.0f}",
                f"{comparison.read_ms:.1f}",
                "[green]equal[/]" if comparison.equal else "[bold red]WRONG[/]",
            )
            progress.advance(task)
        progress.update(task, description="compared")
    console.print(table)
    console.print()
    if wrong:
        raise QuickstartError(f"not equal to the query: {', '.join(wrong)}")


def _say_goodbye(server: Served, *, keep: bool, seconds: float, console: Console) -> None:
    console.rule("5. Look for yourself", align="left")
    if not keep:
        console.print(
            f"Done in {seconds:.0f} s, and the server is stopped. To look around, leave it running:\n\n"
            "    make quickstart ARGS=--keep\n",
            markup=False,
            highlight=False,
        )
        return
    address, directory = server.url.rsplit("/", 1)[0], shlex.quote(str(server.data))
    lines = (
        f"Done in {seconds:.0f} s. The server keeps running. The bundled psql:",
        f"    headwater psql --data {directory} -d {DATABASE}",
        "or any client of your own (user postgres; the password is in the file):",
        f"    PGPASSFILE={directory}/pgpass psql {address}/{DATABASE}",
        "Try there:",
        "    SELECT * FROM planes_by_manufacturer ORDER BY flights DESC;",
        "    UPDATE flights SET status = 'cancelled' WHERE tailnum = 'N14228';",
        "    SELECT * FROM pgtrickle.pgt_status();",
        "    SELECT * FROM pgtrickle.get_refresh_history('planes_by_manufacturer');",
        "    SELECT * FROM pgtrickle.explain_st('planes_by_manufacturer');",
        "What runs:",
        f"    headwater status --data {directory}",
        "Stop it, and remove everything:",
        f"    kill {server.process.pid}",
        f"    rm -r {directory}",
    )
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def _indented(query: str) -> str:
    return "\n".join("    " + line.removeprefix("        ") for line in query.strip("\n").rstrip().splitlines())


def _progress(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
