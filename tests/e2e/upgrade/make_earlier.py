"""Makes ``earlier.sql``: the dump of a database that a server of an earlier revision has worked on.

    $ .venv/bin/python -m tests.e2e.upgrade.make_earlier REVISION

checks the revision out beside the working tree, starts its server on a new data directory, runs ``earlier_data.sql``
through it and dumps the database. Most of the server's functions have their signatures in the dump and no bodies: an
upgrade writes these anew, and the dump stays small.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from server.postgres.cluster import binaries

HERE = Path(__file__).parent
_FUNCTION = re.compile(
    r"^(CREATE (?:FUNCTION|PROCEDURE) ((?:pgtrickle(?:_changes|_roles)?|pgque|accum(?:_internal)?)\.\w+)[^$]*?)"
    r"\n    LANGUAGE (\w+)[^$]*?\n    AS (\$\w*\$).*?\4;$",
    re.MULTILINE | re.DOTALL,
)
_RIGHTS = re.compile(r"^((?:REVOKE|GRANT) [A-Z,]+ ON \w+) ([\w.]+)(\(.*\))? ((?:FROM|TO) [^ ()]+);\n", re.MULTILINE)


def main(revision: str) -> None:
    """Write ``earlier.sql``."""
    with tempfile.TemporaryDirectory() as place:
        tree, data = Path(place, "tree"), Path(place, "data")
        subprocess.run(["git", "worktree", "add", "--detach", tree, revision], check=True, cwd=HERE)
        try:
            dump = _dump(tree, data)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], check=True, cwd=HERE)
    described = subprocess.check_output(
        ["git", "show", "-s", "--format=%h of %cs", revision], text=True, cwd=HERE
    ).strip()
    text = f"-- A database of revision {described}; made by make_earlier.py.\n{shrunk(dump)}"
    (HERE / "earlier.sql").write_text(text)


def _dump(tree: Path, data: Path) -> str:
    command = [sys.executable, "-m", "server", "serve", "--data", str(data), "--port", "0", "--spark", "off"]
    with subprocess.Popen(command, cwd=tree, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            address = server.stdout.readline().removeprefix("ready: ").strip()
            environment = {**os.environ, "PGPASSFILE": str(data / "pgpass")}
            load = [binaries() / "psql", "-v", "ON_ERROR_STOP=1", "-f", HERE / "earlier_data.sql", address]
            subprocess.run(load, env=environment, check=True, stdout=subprocess.DEVNULL)
            socket = ["-h", data / "socket", "-p", "5432", "-U", "postgres"]
            dump = [binaries() / "pg_dump", *socket, "postgres"]
            return subprocess.check_output(dump, env=environment, text=True)
        finally:
            server.terminate()


def shrunk(dump: str) -> str:
    """A dump without the bodies of the server's functions, without comments and what is so by itself.

    Those of event triggers stay, and of what these call: they run during an upgrade.
    """
    whole = _run_by_event_triggers(dump)

    def without_body(found: re.Match[str]) -> str:
        return (
            found.group() if found.group(2) in whole else f"{_shorter(found.group(1))} LANGUAGE {found.group(3)} AS '';"
        )

    text = _FUNCTION.sub(without_body, dump)
    text = re.sub(r"^ *(?:--|\\(?:un)?restrict).*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^(?:ALTER .* OWNER TO|GRANT .* TO) postgres;\n", "", text, flags=re.MULTILINE)
    text = text.replace("timestamp with time zone", "timestamptz")
    before, event_triggers, after = _RIGHTS.sub("", text).partition("CREATE EVENT TRIGGER")  # which come last
    return re.sub(r"\n+ *", "\n", before + _rights(text) + event_triggers + after).lstrip()


def _run_by_event_triggers(dump: str) -> set[str]:
    bodies = {found.group(2): found.group() for found in _FUNCTION.finditer(dump)}
    found = {name for name, body in bodies.items() if "RETURNS event_trigger" in body}
    while (
        called := {name for each in found for name in re.findall(r"pgtrickle\._\w+", bodies[each])} & {*bodies} - found
    ):
        found |= called
    return found


def _shorter(parameters: str) -> str:
    for long, short in (("integer", "int"), ("boolean", "bool")):
        parameters = parameters.replace(long, short)
    return re.sub(r" DEFAULT NULL::[a-z ]+", " DEFAULT NULL", parameters)


def _rights(dump: str) -> str:
    """The rights, in one statement for each kind and role. A function with no namesake has no arguments."""
    names = Counter(re.findall(r"^CREATE (?:FUNCTION|PROCEDURE) ([\w.]+)\(", dump, re.MULTILINE))
    rights: dict[tuple[str, str], list[str]] = {}
    for what, name, arguments, role in sorted(_RIGHTS.findall(dump), key=lambda right: right[0].startswith("GRANT")):
        rights.setdefault((what, role), []).append(name if names[name] <= 1 else name + _shorter(arguments))
    return "".join(f"{what} {', '.join(functions)} {role};\n" for (what, role), functions in rights.items())


if __name__ == "__main__":
    main(sys.argv[1])
