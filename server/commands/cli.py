"""The command line: `headwater serve`, `psql`, `status`, `repair`, `doctor`, `export` and `quickstart`."""

from __future__ import annotations

import gc
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from server import __version__
from server.commands import logs
from server.postgres.data_directory import DataDirectory, StartupError, default_path
from server.postgres.url import InvalidUrl, PostgresUrl

FAILED, NOT_RUNNING = 1, 3

app = typer.Typer(
    name="headwater",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Tables that stay up to date, in front of any PostgreSQL.",
)


export = typer.Typer(
    no_args_is_help=True, help="Write the stream tables of a database down for another system, to take them along."
)
app.add_typer(export, name="export")

PIPE_WIDTH = 400
"""Columns of what is not shown on a terminal, so that nobody has to parse wrapped cells."""


def _directory(value: str) -> Path:
    path = Path(value)
    if not value:
        raise typer.BadParameter("it is empty")
    if path.exists() and not os.access(path, os.R_OK):
        raise typer.BadParameter(f'"{path}" is not readable')
    return path


def _spark(value: str) -> str:
    from engine.spark.installed import SparkNotInstalled, check_installed
    from engine.spark.target import SparkTargetError, Target

    try:
        check_installed(Target.parse(value))
    except (SparkTargetError, SparkNotInstalled) as error:
        raise typer.BadParameter(f"{error}; {error.hint}") from error
    return value


def _default_spark() -> str:
    from engine.spark.installed import default_target

    return default_target()


def _spark_conf(words: list[str] | None) -> list[str]:
    from engine.spark.target import SparkTargetError, parse_conf

    try:
        parse_conf(words or [])
    except SparkTargetError as error:
        raise typer.BadParameter(f"{error}; {error.hint}") from error
    return words or []


def _mirror(value: str | None) -> str | None:
    from engine.mirror.location import MirrorLocationError, parse_uri

    if value == "":
        raise typer.BadParameter("it is empty")
    try:
        return None if value is None else parse_uri(value)
    except MirrorLocationError as error:
        raise typer.BadParameter(f"{error}; use a path or s3://BUCKET/PATH") from error


def _mirror_options(words: list[str] | None) -> list[str]:
    from engine.mirror.location import MirrorLocationError, parse_options

    try:
        parse_options(words or [])
    except MirrorLocationError as error:
        raise typer.BadParameter(f"{error}; use NAME=VALUE") from error
    return words or []


def _postgres(value: str) -> PostgresUrl:
    try:
        return PostgresUrl.parse(value)
    except InvalidUrl as error:
        raise typer.BadParameter(str(error)) from error


def _one_of(choices: Sequence[str]) -> Callable[[str], str]:
    def check(value: str) -> str:
        if value not in choices:
            raise typer.BadParameter(f"{value!r} is none of {', '.join(choices)}")
        return value

    return check


def _traces(value: str | None) -> str | None:
    from server.commands.traces import parse_url

    try:
        return None if value is None else parse_url(value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _address(value: str | None) -> str | None:
    from server.metrics.http import parse_address

    try:
        if value is not None:
            parse_address(value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return value


Data = Annotated[
    Path,
    typer.Option(
        "--data",
        parser=_directory,
        envvar="HEADWATER_DATA",
        metavar="DIR",
        default_factory=default_path,
        show_default="~/.local/share/headwater",
        help="Where everything is kept: the embedded PostgreSQL, the mirror for Spark, the logs.",
    ),
]
Spark = Annotated[
    str,
    typer.Option(
        envvar="HEADWATER_SPARK",
        metavar="MASTER",
        callback=_spark,
        default_factory=_default_spark,
        show_default="local\\[*], else sail, else off: the first that is installed",
        help="Who does work that touches many rows: [bold]local\\[*][/] (Apache Spark on this machine, "
        "started when first needed), [bold]spark://HOST:PORT[/] (a cluster), [bold]sc://HOST:PORT[/] (Spark "
        "Connect), [bold]sail[/] (Sail, no JVM), [bold]off[/] (PostgreSQL does it all).",
    ),
]
Postgres = Annotated[
    PostgresUrl | None,
    typer.Option(
        parser=_postgres,
        envvar="HEADWATER_POSTGRES",
        metavar="URL",
        help="A PostgreSQL (15 to 18) that runs already, postgresql://USER[:PASSWORD]@HOST[:PORT]/DATABASE. "
        "Without it an embedded PostgreSQL 18 is started in the data directory.",
    ),
]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"headwater {__version__}")
        raise typer.Exit


@app.callback()
def headwater(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    logs.configure("warning")


@app.command()
def serve(
    data: Data,
    *,
    host: Annotated[
        str,
        typer.Option(
            envvar="HEADWATER_HOST",
            help="Address to listen on. 0.0.0.0 is every IPv4 address of the machine.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(envvar="HEADWATER_PORT", min=0, max=65535, help="Port to listen on; 0 takes any free one."),
    ] = 7432,
    postgres: Postgres = None,
    spark: Spark,
    spark_conf: Annotated[
        list[str] | None,
        typer.Option(
            "--spark-conf",
            envvar="HEADWATER_SPARK_CONF",
            metavar="NAME=VALUE",
            callback=_spark_conf,
            help="A property of Spark, for instance spark.executor.memory=4g. Can be repeated.",
        ),
    ] = None,
    spark_postgres: Annotated[
        PostgresUrl | None,
        typer.Option(
            "--spark-postgres",
            parser=_postgres,
            envvar="HEADWATER_SPARK_POSTGRES",
            metavar="URL",
            help="The PostgreSQL as Spark's executors reach it. With it they write large results themselves.",
        ),
    ] = None,
    mirror: Annotated[
        str | None,
        typer.Option(
            envvar="HEADWATER_MIRROR",
            metavar="URI",
            callback=_mirror,
            show_default="DIR/mirror",
            help="Where the columnar copy of the tables that Spark reads is kept: a path that Spark and all servers "
            "of this PostgreSQL see, or s3://BUCKET/PATH.",
        ),
    ] = None,
    mirror_option: Annotated[
        list[str] | None,
        typer.Option(
            "--mirror-option",
            envvar="HEADWATER_MIRROR_OPTION",
            metavar="NAME=VALUE",
            callback=_mirror_options,
            help="An option of the mirror's object store, for instance AWS_REGION=eu-west-1; others are taken from "
            "the environment. Can be repeated.",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            envvar="HEADWATER_TLS_CERT",
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Certificate (chain) for TLS, PEM.",
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(
            envvar="HEADWATER_TLS_KEY",
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Private key of that certificate, PEM.",
        ),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            envvar="HEADWATER_WORKERS",
            metavar="NUMBER",
            min=1,
            max=256,
            help="Processes that relay. With several, clients are spread over them and the engine has a process of its "
            "own; one is enough where a core is not busy with relaying.",
        ),
    ] = 1,
    max_connections: Annotated[
        int,
        typer.Option(
            envvar="HEADWATER_MAX_CONNECTIONS",
            metavar="NUMBER",
            min=1,
            help="Clients at the same time; further ones are told that there are too many already. "
            "PostgreSQL has a limit of its own.",
        ),
    ] = 1000,
    allow_trust: Annotated[
        bool,
        typer.Option(
            "--allow-trust",
            envvar="HEADWATER_ALLOW_TRUST",
            help="Let clients in that PostgreSQL does not ask for a password (trust, peer, ident, cert): it sees the "
            "server's connection, not theirs. Whoever reaches the server is then anybody.",
        ),
    ] = False,
    compile_workers: Annotated[
        int,
        typer.Option(
            envvar="HEADWATER_COMPILE_WORKERS",
            metavar="NUMBER",
            min=1,
            help="Processes that compile queries. With several, no role's queries occupy all of them.",
        ),
    ] = 2,
    compile_seconds: Annotated[
        int,
        typer.Option(
            envvar="HEADWATER_COMPILE_SECONDS",
            metavar="SECONDS",
            min=1,
            help="CPU time that each step of compiling a query may take; then the statement is too complex.",
        ),
    ] = 10,
    compile_memory: Annotated[
        int,
        typer.Option(
            envvar="HEADWATER_COMPILE_MEMORY",
            metavar="MB",
            min=64,
            help="Memory that each of the processes that compile may take.",
        ),
    ] = 512,
    sail_memory: Annotated[
        int,
        typer.Option(
            envvar="HEADWATER_SAIL_MEMORY",
            metavar="MB",
            min=0,
            help="A Sail (--spark sail) with more memory than this is replaced by a new one when it is idle; 0: never.",
        ),
    ] = 1024,
    metrics: Annotated[
        str | None,
        typer.Option(
            envvar="HEADWATER_METRICS",
            metavar="[HOST:]PORT",
            callback=_address,
            show_default="none",
            help="Serve metrics for Prometheus, /healthz and /readyz by HTTP, on 127.0.0.1 if no host is given. There "
            "is no login: who reaches it sees names and sizes of stream tables and queues.",
        ),
    ] = None,
    metrics_objects: Annotated[
        int,
        typer.Option(
            "--metrics-objects",
            envvar="HEADWATER_METRICS_OBJECTS",
            metavar="NUMBER",
            min=1,
            max=10_000,
            help="So many stream tables, queues, consumers, registers have metrics of their own.",
        ),
    ] = 200,
    console: Annotated[
        str | None,
        typer.Option(
            envvar="HEADWATER_CONSOLE",
            metavar="[HOST:]PORT",
            callback=_address,
            show_default="none",
            help="Serve a console for browsers, on 127.0.0.1 if no host is given. One logs in as to PostgreSQL, and "
            "sees what that user may. With TLS if the server has it. Needs the extra [bold]headwater\\[console][/].",
        ),
    ] = None,
    traces: Annotated[
        str | None,
        typer.Option(
            envvar="HEADWATER_TRACES",
            metavar="URL",
            callback=_traces,
            show_default="none, or as OTEL_EXPORTER_OTLP_ENDPOINT says",
            help="Export traces by OTLP over HTTP to a collector, for instance http://127.0.0.1:4318. Needs the extra "
            "[bold]headwater\\[otel][/].",
        ),
    ] = None,
    warn_blocked: Annotated[
        int,
        typer.Option(
            envvar="HEADWATER_WARN_BLOCKED",
            metavar="MS",
            min=5,
            help="Log what keeps the server from its other clients for so many milliseconds of CPU time.",
        ),
    ] = 100,
    log_level: Annotated[
        str,
        typer.Option(
            envvar="HEADWATER_LOG_LEVEL",
            metavar="LEVEL",
            callback=_one_of(logs.LEVELS),
            help=f"One of {', '.join(logs.LEVELS)}.",
        ),
    ] = "info",
    log_format: Annotated[
        str,
        typer.Option(
            "--log-format",
            envvar="HEADWATER_LOG_FORMAT",
            metavar="FORMAT",
            callback=_one_of(logs.FORMATS),
            help="What a line of the log is: [bold]console[/], for people, or [bold]json[/], an object for programs.",
        ),
    ] = "console",
) -> None:
    """Run the server until SIGTERM or Ctrl-C.

    Prints one line, [bold]ready: URL[/], on stdout when it accepts connections; logs go to stderr.
    """
    gc.disable()  # until the server is ready: nothing that loading its modules makes is garbage
    from engine.compile.pool import Limits
    from server.commands.options import ServeOptions
    from server.commands.serve import serve as run
    from server.metrics.http import parse_address

    if (tls_cert is None) != (tls_key is None):
        raise typer.BadParameter("--tls-cert and --tls-key go together", param_hint="'--tls-cert' / '--tls-key'")
    if workers > max_connections:
        raise typer.BadParameter("more processes than clients that may connect", param_hint="'--workers'")
    logs.configure(log_level, log_format)
    options = ServeOptions(
        data=data,
        host=host,
        port=port,
        postgres=postgres,
        spark=spark,
        spark_conf=tuple(spark_conf or ()),
        spark_postgres=spark_postgres,
        sail_memory=sail_memory,
        mirror=mirror,
        mirror_options=tuple(mirror_option or ()),
        tls_cert=tls_cert,
        tls_key=tls_key,
        workers=workers,
        max_connections=max_connections,
        allow_trust=allow_trust,
        metrics=None if metrics is None else parse_address(metrics),
        metrics_objects=metrics_objects,
        console=None if console is None else parse_address(console),
        log_level=log_level,
        log_format=log_format,
        traces=traces,
        compiling=Limits(compile_workers, compile_seconds, compile_memory << 20),
        warn_blocked=warn_blocked / 1000,
    )
    try:
        status = run(options, ready=lambda url: print(f"ready: {url}", flush=True))
    except StartupError as error:
        _fail(error)
    # What the server has started has ended. To free its memory object by object takes up to half a second.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": ["--help"],
    }
)
def psql(context: typer.Context, data: Data) -> None:
    """Open psql, connected to the running server. All other arguments go to psql.

    For example: [bold]headwater psql -c "SELECT * FROM pgtrickle.pgt_status()"[/]
    """
    from server.commands.psql import command, environment

    directory = DataDirectory(data)
    running = directory.running()
    if running is None:
        _not_running(directory)
    try:
        arguments = command(context.args)
    except StartupError as error:
        _fail(error)
    os.execve(arguments[0], arguments, environment(running, directory))


@app.command()
def status(data: Data, postgres: Postgres = None) -> None:
    """Show the running server, its databases and stream tables. Exit status 3 if none runs.

    With a PostgreSQL of your own, its password is taken from PGPASSWORD or PGPASSFILE, or give the same
    --postgres as to the server.
    """
    from server.commands.status import show

    directory = DataDirectory(data)
    running = directory.running()
    if running is None:
        _not_running(directory)
    try:
        show(running, directory, postgres, _console())
    except StartupError as error:
        _fail(error)


@app.command()
def repair(
    data: Data,
    postgres: Postgres = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what is damaged, and change nothing.")] = False,
) -> None:
    """Put back functions, views and triggers of ours that were dropped or changed, in every database.

    The server does the same when it starts. Exit status 1 if something is, or with --dry-run would be, left to repair.
    The password of a PostgreSQL of your own is taken as by [bold]headwater status[/].
    """
    from server.commands.repair import repair as run

    directory = DataDirectory(data)
    running = directory.running()
    if running is None:
        _not_running(directory)
    try:
        found = run(running, directory, postgres, dry_run=dry_run)
    except StartupError as error:
        _fail(error)
    for one in found:
        print(f"{one}{', repaired' if one.repaired else ''}")
    if not found:
        print("nothing is damaged")
    if not all(one.repaired for one in found):
        raise typer.Exit(FAILED)


@app.command()
def doctor(
    data: Data,
    postgres: Postgres = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """Check whether Headwater can work in front of a PostgreSQL, and say what to do where it cannot.

    It only reads. Without --postgres it examines the PostgreSQL behind the server that runs on --data. Exit status 1 if
    there is an error; warnings say what will not work or not yet.
    """
    from server.commands import doctor as checks

    directory = DataDirectory(data)
    if postgres is None:
        running = directory.running()
        if running is None:
            _not_running(directory)
        postgres = checks.postgres_of(running, directory)
    found = checks.examine(postgres)
    if as_json:
        print(checks.as_json(postgres, found))
    else:
        checks.show(postgres, found, _console())
    if not checks.passed(found):
        raise typer.Exit(FAILED)


@export.command("spark")
def export_spark(
    data: Data,
    postgres: Postgres = None,
    database: Annotated[
        str | None,
        typer.Option(metavar="NAME", show_default="that of the URL, or of the server", help="Whose stream tables."),
    ] = None,
    output: Annotated[
        Path, typer.Option(metavar="DIR", file_okay=False, help="Where the project is written; made if need be.")
    ] = Path("spark-pipeline"),
    force: Annotated[
        bool, typer.Option("--force", help="Write into a directory that is not empty, in place of an earlier export.")
    ] = False,
) -> None:
    """Write stream tables as a project of Spark Declarative Pipelines (Apache Spark 4.1 or newer).

    It only reads. Without --postgres it asks the PostgreSQL behind the server that runs on --data. What cannot be
    exported is listed on stderr and in the project's README.md, with the reason. Exit status 1 if nothing can be.
    """
    from server.commands.doctor import postgres_of
    from server.commands.export import pipeline
    from server.commands.spark_project import files, write

    directory = DataDirectory(data)
    if postgres is None:
        running = directory.running()
        if running is None:
            _not_running(directory)
        postgres = postgres_of(running, directory)
    try:
        found = pipeline(postgres, database)
        if found.datasets:
            write(files(found, output), output, force=force)
    except (StartupError, OSError) as error:
        _fail(error)
    for table, reason in found.left:
        print(f"not exported: {table}: {reason}", file=sys.stderr)
    if not found.datasets:
        _fail(StartupError("no stream table could be exported"))
    print(f"stream tables: {len(found.datasets)}, sources: {len(found.sources)}, in {output}")


def _console() -> Console:
    """What is shown goes to stdout, and is not wrapped where that is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)


@app.command()
def quickstart(
    *,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Data directory to use and to keep. Without it, a temporary one."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the server running, to look around.")] = False,
    spark: Spark,
) -> None:
    """Watch stream tables over 336 776 real flights stay correct while the flights change."""
    from server.quickstart import QuickstartError, run

    try:
        run(data, keep=keep, spark=spark, console=Console())
    except (StartupError, QuickstartError) as error:
        _fail(error)


def _not_running(directory: DataDirectory) -> NoReturn:
    message = f'no headwater server runs on "{directory.path}"'
    where = "" if directory.path == default_path() else f" --data {shlex.quote(str(directory.path))}"
    hint = f"Start one with: headwater serve{where}"
    if directory.is_locked():
        message, hint = (
            f'the headwater server on "{directory.path}" is not ready',
            "It is starting or stopping; try again.",
        )
    _fail(StartupError(message, hint), NOT_RUNNING)


def _fail(error: Exception, status: int = FAILED) -> NoReturn:
    """End with the message, and the hint where there is one, on stderr."""
    print(f"headwater: {error}", file=sys.stderr)
    if hint := getattr(error, "hint", None):
        print(f"hint: {hint}", file=sys.stderr)
    sys.exit(status)


def main() -> None:
    """The entry point of the command `headwater`."""
    # Kubernetes puts HEADWATER_PORT=tcp://10.0.0.1:7432 into every pod beside a service called "headwater".
    if os.environ.get("HEADWATER_PORT", "").startswith("tcp://"):
        del os.environ["HEADWATER_PORT"]
    app()
