"""The examples of docs/python.md, from the first to the last: each prints what stands below it."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from typing import Any

from tests.e2e.conftest import Database
from tests.e2e.documentation import page

EXAMPLE = re.compile(r"```python\n(.*?)```\n(?:```\n(.*?)```\n)?", re.DOTALL)


def test_examples_of_the_documentation_are_true(live_db: Database) -> None:
    text = page("python.md")
    examples = EXAMPLE.findall(text)
    assert len(examples) == text.count("```python")
    live_db.run(f"ALTER DATABASE {live_db.name} SET TimeZone = 'UTC'")
    names: dict[str, Any] = {"dsn": live_db.server.dsn(live_db.name), "__name__": __name__}
    for program, expected in examples:
        with redirect_stdout(io.StringIO()) as printed:
            exec(compile(program, "python.md", "exec", dont_inherit=True), names)
        assert printed.getvalue() == expected, program
    assert live_db.rows("SELECT order_id, total FROM invoices ORDER BY 1") == [(43, 5), (45, None)]
    retried = live_db.rows("SELECT ev_data FROM pgque.retry_queue")
    assert retried == [('{"order_id":44,"total":"unknown"}',)]
