"""What `test_clients.py` asks of every client, by SQLAlchemy: `with_sqlalchemy.py URL` prints what it saw."""

import json
import sys
from decimal import Decimal

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

engine = sa.create_engine(sys.argv[1].replace("postgresql://", "postgresql+psycopg://"))
seen = {}


class Base(DeclarativeBase):
    """All tables."""


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(sa.BigInteger, sa.Identity(always=True), primary_key=True)
    customer: Mapped[str]
    amount: Mapped[Decimal] = mapped_column(sa.Numeric(10, 2))


class Number(Base):
    __tablename__ = "numbers"
    n: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


Base.metadata.create_all(engine)
create = sa.func.pgtrickle.create_stream_table
refresh = sa.func.pgtrickle.refresh_stream_table

with engine.connect() as connection:
    values = (42, "Grüße, 世界", None, b"\x00\xff", Decimal("12345678901234567890.123456789"), True)
    literals = [sa.cast(sa.literal(v), sa.Text) if v is None else sa.literal(v) for v in values]
    number, text, null, data, numeric, truth = connection.execute(sa.select(*literals)).one()
    seen["values"] = [number, text, null, bytes(data).hex(), str(numeric), truth]

with Session(engine) as session:
    session.add_all([Order(customer="a", amount=Decimal("10.25")), Order(customer="a", amount=Decimal("20.25"))])
    session.commit()
    totals = sa.select(
        Order.customer, sa.func.count().label("orders"), sa.func.sum(Order.amount).label("total")
    ).group_by(Order.customer)
    session.execute(sa.select(create("totals", str(totals.compile(engine)))))
    session.commit()
    session.add(Order(customer="b", amount=Decimal(1)))
    session.flush()
    session.execute(sa.select(refresh("totals")))
    session.commit()

# A stream table is reflected as a table is.
reflected = sa.Table("totals", sa.MetaData(), autoload_with=engine)
with Session(engine) as session:
    shown = [reflected.c.customer, reflected.c.orders, reflected.c.total]
    seen["refreshed"] = [[c, n, str(t)] for c, n, t in session.execute(sa.select(*shown).order_by(shown[0]))]
    session.execute(sa.select(create("passing", "SELECT customer FROM orders")))
    session.rollback()
    seen["rolled back"] = session.scalar(
        sa.text("SELECT count(*) FROM pgtrickle.pgt_status() WHERE name = 'public.passing'")
    )
    try:
        session.execute(sa.select(create("broken", "SELECT x FROM nowhere")))
    except sa.exc.DBAPIError as error:
        seen["failed"] = error.orig.sqlstate
        session.rollback()
    seen["usable"] = session.scalar(sa.select(1))
    session.execute(sa.select(create("sums", "SELECT count(*) AS c, sum(n) AS s FROM numbers")))
    session.add_all([Number(n=n) for n in range(1000)])
    session.flush()
    session.execute(sa.select(refresh("sums")))
    session.commit()
    seen["batch"] = [int(value) for value in session.execute(sa.text("SELECT c, s FROM sums")).one()]

with engine.connect() as connection:
    streaming = connection.execution_options(yield_per=1000)
    numbers = streaming.execute(sa.text("SELECT n FROM generate_series(1, 10000) AS n"))
    seen["fetched"] = sum(numbers.scalars())

with engine.begin() as connection:
    connection.exec_driver_sql(
        "DECLARE c CURSOR FOR SUBSCRIBE (SELECT id::text AS id FROM orders WHERE customer = 'a')"
    )
    seen["subscribed"] = [row[2] for row in connection.exec_driver_sql("FETCH 2 c")]

with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
    connection.execute(sa.text("SELECT pgque.create_queue('orders'), pgque.subscribe('orders', 'billing')"))
    payload = sa.cast({"order_id": 42}, sa.dialects.postgresql.JSONB)
    connection.execute(sa.select(sa.func.pgque.send("orders", "order.created", payload)))
    connection.execute(sa.text("SELECT pgque.force_next_tick('orders'), pgque.ticker('orders')"))
    seen["event"] = connection.scalar(sa.text("SELECT payload::jsonb FROM pgque.receive('orders', 'billing', 10)"))
print(json.dumps(seen))
