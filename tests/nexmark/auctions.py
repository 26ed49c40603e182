"""Nexmark: an online auction. Persons register, sellers open auctions, bidders bid; and then they change their minds.

Of 50 events one is a person, three are auctions and 46 bids, 10 events a second, as in the generator of the Nexmark
papers (Tucker, Tufte, Papadimos, Maier, 2002). Nexmark only appends; here auctions are extended, people move, bids are
withdrawn, raised and entered twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import psycopg

HERE = Path(__file__).parent
SCHEMA = (HERE / "schema.sql").read_text()
QUERIES = {path.stem: path.read_text().strip() for path in sorted((HERE / "queries").glob("q*.sql"))}

START = datetime(2026, 1, 1)
STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]
CITIES = ["Phoenix", "Los Angeles", "Boise", "Portland", "Seattle", "Cheyenne", "Bend"]
NAMES = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"]
CHANNELS = ["Google", "Facebook", "Baidu", "Apple"]


class Auctions:
    """The generator: events in order, numbered through."""

    def __init__(self, seed: int):
        self._random = Random(seed)
        self._number = 0
        self._persons = 0
        self._auctions = 0

    def events(self, connection: psycopg.Connection[Any], number: int) -> None:
        """Insert the next events, of each kind by one COPY."""
        rows: dict[str, list[tuple[Any, ...]]] = {"person": [], "auction": [], "bid": []}
        for _ in range(number):
            table, row = self._event()
            rows[table].append(row)
        with connection.transaction():
            for table, some in rows.items():
                with connection.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN") as copy:
                    for row in some:
                        copy.write_row(row)

    def _event(self) -> tuple[str, tuple[Any, ...]]:
        pick, at = self._random, START + timedelta(milliseconds=100 * self._number)
        place = self._number % 50
        self._number += 1
        if place == 0:
            self._persons += 1
            name = f"{pick.choice(NAMES)} {self._persons % 7}"
            mail, card = f"{name.replace(' ', '.')}@example.org", f"{pick.randrange(10**4):04}"
            return "person", (self._persons, name, mail, card, pick.choice(CITIES), pick.choice(STATES), at, None)
        seen = max(1, self._persons - 20)
        if place <= 3:
            self._auctions += 1
            closes = at + timedelta(seconds=pick.choice([2, 5, 10, 20]))
            seller, category = pick.randint(seen, self._persons), 10 + pick.randrange(5)
            price = pick.randint(1, 50)
            return "auction", (
                *(self._auctions, f"item {self._auctions}", "as new", price, price * 2, at, closes),
                *(seller, category, pick.choice([None, "x"])),
            )
        auction = pick.randint(max(1, self._auctions - 12), self._auctions)
        bidder = pick.randint(seen, self._persons)
        return "bid", (auction, bidder, pick.randint(1, 40) * 25, pick.choice(CHANNELS), None, at, None)

    def second_thoughts(self) -> Iterator[str]:
        """Statements that change what is there already."""
        n = self._random.randrange(1000)
        late = f"'{START + timedelta(milliseconds=100 * self._number - 30_000)}'"
        yield f"UPDATE auction SET expires = expires + interval '3 seconds' WHERE id % 11 = {n % 11}"
        yield f"UPDATE auction SET category = 10 + (category - 9) % 5, seller = seller + 1 WHERE id % 17 = {n % 17}"
        yield f"UPDATE person SET state = 'OR', name = name || ' jr.' WHERE id % 9 = {n % 9}"
        yield f"DELETE FROM bid WHERE date_time > {late} AND bidder % 13 = {n % 13}"
        yield f"UPDATE bid SET price = price + 25 WHERE date_time > {late} AND auction % 7 = {n % 7}"
        yield f"UPDATE bid SET date_time = date_time + interval '5 s' WHERE date_time > {late} AND auction % 19 < 2"
        yield f"INSERT INTO bid SELECT * FROM bid WHERE date_time > {late} AND auction % 5 = {n % 5}"
        yield "DELETE FROM bid WHERE ctid = (SELECT max(ctid) FROM bid)"
        yield f"DELETE FROM auction WHERE id % 23 = {n % 23}"
        yield f"DELETE FROM person WHERE id % 29 = {n % 29}"
