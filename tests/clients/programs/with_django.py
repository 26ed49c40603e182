"""What `test_clients.py` asks of every client, by Django's ORM: `with_django.py URL` prints what it saw."""

import io
import json
import sys
from decimal import Decimal
from urllib.parse import unquote, urlsplit

import django
from django.conf import settings

url = urlsplit(sys.argv[1])
settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": url.hostname,
            "PORT": url.port,
            "USER": url.username,
            "PASSWORD": unquote(url.password),
            "NAME": url.path[1:],
        }
    },
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth"],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    USE_TZ=True,
)
django.setup()

from django.core.management import call_command  # noqa: E402 - Django wants its settings first
from django.db import Error, connection, models, transaction  # noqa: E402


class Order(models.Model):
    customer = models.TextField()
    amount = models.DecimalField(max_digits=10, decimal_places=2)

    class Meta:
        app_label = "shop"
        db_table = "orders"


class Number(models.Model):
    n = models.IntegerField(primary_key=True)

    class Meta:
        app_label = "shop"
        db_table = "numbers"


class Total(models.Model):
    """A stream table."""

    customer = models.TextField(primary_key=True)
    orders = models.BigIntegerField()
    total = models.DecimalField(max_digits=20, decimal_places=2)

    class Meta:
        app_label = "shop"
        db_table = "totals"
        managed = False


seen = {}


def value(statement, parameters=None):
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchone()[0]


call_command("migrate", verbosity=0)
with connection.schema_editor() as editor:
    editor.create_model(Order)
    editor.create_model(Number)
Order.objects.bulk_create([Order(customer="a", amount=Decimal("10.25")), Order(customer="a", amount=Decimal("20.25"))])
TOTALS = Order.objects.values("customer").annotate(orders=models.Count("*"), total=models.Sum("amount"))
value("SELECT pgtrickle.create_stream_table(name => %s, query => %s)", ("totals", str(TOTALS.query)))
with transaction.atomic():
    Order.objects.create(customer="b", amount=1)
    value("SELECT pgtrickle.refresh_stream_table(%s)", ("totals",))
seen["refreshed"] = [[t.customer, t.orders, str(t.total)] for t in Total.objects.order_by("customer")]

with transaction.atomic():
    value("SELECT pgtrickle.create_stream_table(%s, %s)", ("passing", "SELECT customer FROM orders"))
    transaction.set_rollback(True)
seen["rolled back"] = value("SELECT count(*) FROM pgtrickle.pgt_status() WHERE name = 'public.passing'")
try:
    value("SELECT pgtrickle.create_stream_table(%s, %s)", ("broken", "SELECT x FROM nowhere"))
except Error as error:
    seen["failed"] = error.__cause__.sqlstate
seen["usable"] = value("SELECT 1")

value("SELECT pgtrickle.create_stream_table('sums', 'SELECT count(*) AS c, sum(n) AS s FROM numbers')")
with transaction.atomic():
    Number.objects.bulk_create([Number(n=n) for n in range(1000)])
    value("SELECT pgtrickle.refresh_stream_table('sums')")
seen["batch"] = [int(value("SELECT c FROM sums")), int(value("SELECT s FROM sums"))]
seen["fetched"] = sum(n * 1 for n in Number.objects.values_list("n", flat=True).iterator(chunk_size=100))

inspected = io.StringIO()
call_command("inspectdb", "totals", stdout=inspected)
seen["inspected"] = "class Totals(models.Model)" in inspected.getvalue()
print(json.dumps(seen))
