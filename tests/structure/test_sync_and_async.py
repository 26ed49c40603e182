"""What is written twice, for synchronous programs and for asynchronous ones, is the same twice."""

from __future__ import annotations

import ast

import pytest

from tests.structure.figures import ROOT

RENAMED = {
    "AsyncBatch": "Batch",
    "AsyncConnection": "Connection",
    "AsyncHandler": "Handler",
    "AsyncIterator": "Iterator",
    "asynccontextmanager": "contextmanager",
    "make_async": "make",
    "async_batches": "batches",
}


class Synchronous(ast.NodeTransformer):
    """Makes of an asynchronous module what it would be without `async` and `await`."""

    def visit_Await(self, node: ast.Await) -> ast.expr:
        return self.visit(node.value)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self.generic_visit(ast.FunctionDef(**dict(ast.iter_fields(node))))

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AST:
        return self.generic_visit(ast.For(**dict(ast.iter_fields(node))))

    def visit_AsyncWith(self, node: ast.AsyncWith) -> ast.AST:
        return self.generic_visit(ast.With(**dict(ast.iter_fields(node))))


def statements(path: str) -> list[str]:
    """The definitions of a module, without what is asynchronous, imports and docstrings."""
    tree = Synchronous().visit(ast.parse((ROOT / path).read_text()))
    found = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            for inner in ast.walk(node):
                body = getattr(inner, "body", None)
                if isinstance(body, list) and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
                    del body[0]
            text = ast.unparse(ast.fix_missing_locations(node))
            for name, other in RENAMED.items():
                text = text.replace(name, other)
            found.append(text)
    return found


def test_consumers() -> None:
    notifications = "connection.notifies(timeout=part, stop_after=1)"
    differences = {
        "asyncio.sleep": "time.sleep",
        "AsyncGenerator[Batch, None]": "Iterator[Batch]",  # so that it can be closed, which is not done by itself
        "psycopg.Connection.connect": "psycopg.connect",
        f"[n async for n in {notifications}]": f"list({notifications})",
    }
    asynchronous = statements("headwater/queues/async_batches.py")
    for is_async, is_sync in differences.items():
        assert any(is_async in text for text in asynchronous), is_async
        asynchronous = [text.replace(is_async, is_sync) for text in asynchronous]
    assert asynchronous == statements("headwater/queues/batches.py")


@pytest.mark.parametrize(
    ("path", "name"),
    [("headwater/registers/clients.py", "RegisterClient"), ("headwater/queues/producers.py", "Producer")],
)
def test_clients(path: str, name: str) -> None:
    classes = [text for text in statements(path) if text.startswith("class ")]
    synchronous, asynchronous = classes
    assert synchronous.startswith(f"class {name}")
    assert asynchronous.replace(f"Async{name}", name) == synchronous
