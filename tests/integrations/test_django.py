"""Django: a project with the files of docs/django.md migrates there and back, and its own tests run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from psycopg import conninfo

from tests.e2e.conftest import Database
from tests.e2e.documentation import page

FILE = re.compile(r"<!-- (\S+\.py) -->\n```python\n(.*?)```\n", re.DOTALL)
SETTINGS = """
DATABASES = {{"default": {{"ENGINE": "django.db.backends.postgresql", **{login!r}}}}}
INSTALLED_APPS = ["shop"]
DATABASE_ROUTERS = ["routers.StreamTables"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
"""
TESTS = """
from django.db import DatabaseError, connection, transaction
from django.test import TestCase
from shop.models import Order, Total


class Totals(TestCase):
    def test_a_refresh_sees_what_the_test_has_done(self):
        Order.objects.create(customer="a", amount=10)
        Order.objects.create(customer="a", amount=20)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pgtrickle.refresh_stream_table('totals')")
        self.assertEqual(list(Total.objects.values_list("customer", "orders", "total")), [("a", 2, 30)])

    def test_writing_is_refused_by_the_router_and_by_the_server(self):
        with self.assertRaisesMessage(DatabaseError, "Total is a stream table"):
            Total.objects.create(customer="b", orders=1, total=1)
        with self.assertRaises(DatabaseError), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("INSERT INTO totals (customer, orders, total) VALUES ('b', 1, 1)")
"""
READ = """
import json
from shop.models import Total
print(json.dumps(list(Total.objects.order_by("pk").values_list("pk", "orders"))))
"""


@pytest.fixture
def project(db: Database, tmp_path: Path) -> Path:
    options = conninfo.conninfo_to_dict(db.server.dsn(db.name))
    login = {key.upper(): options[key] for key in ("host", "user", "password")}
    login |= {"PORT": str(options["port"]), "NAME": db.name}
    files = dict(FILE.findall(page("django.md")))
    assert set(files) == {"models.py", "migrations/0002_totals.py", "routers.py"}
    (tmp_path / "shop" / "migrations").mkdir(parents=True)
    for name in ("__init__.py", "migrations/__init__.py"):
        (tmp_path / "shop" / name).touch()
    (tmp_path / "shop" / "models.py").write_text(files["models.py"])
    (tmp_path / "shop" / "tests.py").write_text(TESTS)
    (tmp_path / "routers.py").write_text(files["routers.py"])
    (tmp_path / "settings.py").write_text(SETTINGS.format(login=login))
    manage(tmp_path, "makemigrations", "shop")
    (tmp_path / "shop" / "migrations" / "0002_totals.py").write_text(files["migrations/0002_totals.py"])
    return tmp_path


def manage(project: Path, *arguments: str) -> str:
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": str(project)}
    done = subprocess.run(
        [sys.executable, "-m", "django", *arguments],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_migrations_there_and_back(project: Path, db: Database) -> None:
    manage(project, "migrate")
    assert "No changes detected" in manage(project, "makemigrations", "--check", "--dry-run")
    db.run("INSERT INTO orders (customer, amount) VALUES ('a', 10), ('a', 20), ('b', 7)")
    db.assert_refreshed("totals")
    assert json.loads(manage(project, "shell", "--no-imports", "-v0", "-c", READ)) == [["a", 2], ["b", 1]]
    manage(project, "migrate", "shop", "zero")
    assert db.rows("SELECT * FROM pgtrickle.pgt_stream_tables") == []


def test_tests_of_the_project(project: Path, db: Database) -> None:
    try:
        manage(project, "test", "--noinput", "shop")
    finally:
        db.run(f"DROP DATABASE IF EXISTS test_{db.name} WITH (FORCE)")
