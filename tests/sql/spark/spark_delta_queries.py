"""Tables of types that Spark has, queries over them for each operator, and random changes."""

from __future__ import annotations

import random

TABLES = """
CREATE TABLE item (id int PRIMARY KEY, grp int, val int, amount numeric(8,2), label text COLLATE "C", day date);
CREATE TABLE tag (grp int, rank int, label text COLLATE "C");
CREATE TABLE kind (code int PRIMARY KEY, label text COLLATE "C", rate numeric(4,2) NOT NULL);
"""
NAMES = ("item", "tag", "kind")

QUERIES: dict[str, str] = {
    "keyed": "SELECT id, grp, amount, label FROM item",
    "bag": "SELECT grp, label FROM tag",
    "filter": "SELECT id, val + 1 AS v FROM item WHERE val > 1 AND label IS NOT NULL",
    "join": "SELECT i.id, k.code, i.amount * k.rate AS cost FROM item i JOIN kind k ON i.val = k.code",
    "join of bags": "SELECT i.label, t.rank FROM item i JOIN tag t ON i.grp = t.grp",
    "self-join": "SELECT a.id, b.id AS other FROM item a JOIN item b ON a.grp = b.grp AND a.id < b.id",
    "three-way join": "SELECT i.id, t.rank, k.rate FROM item i JOIN tag t USING (grp) JOIN kind k ON k.code = t.rank",
    "non-equi join": "SELECT i.id, t.rank FROM item i JOIN tag t ON i.val < t.rank",
    "left join": "SELECT i.id, t.rank FROM item i LEFT JOIN tag t ON i.grp = t.grp",
    "left join with condition": "SELECT i.id, t.rank, t.label FROM item i LEFT JOIN tag t"
    " ON i.grp = t.grp AND t.rank > i.val",
    "full join": "SELECT i.id, t.rank FROM item i FULL JOIN tag t ON i.grp = t.grp",
    "left joins": "SELECT i.id, k.label, t.rank FROM item i LEFT JOIN kind k ON k.code = i.val"
    " LEFT JOIN tag t ON t.label = k.label",
    "exists": "SELECT i.id FROM item i WHERE EXISTS (SELECT FROM tag t WHERE t.grp = i.grp AND t.rank > 1)",
    "exists without correlation": "SELECT i.id FROM item i WHERE EXISTS (SELECT FROM tag t WHERE t.rank > 3)",
    "not exists": "SELECT i.id FROM item i WHERE NOT EXISTS (SELECT FROM tag t WHERE t.grp = i.grp)",
    "not exists of inequality": "SELECT i.id FROM item i WHERE NOT EXISTS (SELECT FROM tag t WHERE t.rank > i.val)",
    "in": "SELECT i.id FROM item i WHERE i.grp IN (SELECT t.grp FROM tag t)",
    "not in": "SELECT i.id FROM item i WHERE i.val NOT IN (SELECT t.rank FROM tag t)",
    "count": "SELECT grp, count(*) AS n, count(val) AS v, sum(val) AS s FROM item GROUP BY grp",
    "sum of numeric": "SELECT grp, sum(amount) AS a, count(*) FILTER (WHERE val > 1) AS n FROM item GROUP BY grp",
    "average": "SELECT grp, avg(val) AS v, avg(amount) AS a FROM item GROUP BY grp",
    "extrema": "SELECT grp, min(val) AS lo, max(amount) AS hi, max(label) AS l FROM item GROUP BY grp",
    "lists": "SELECT grp, string_agg(label, ',' ORDER BY val DESC, label) AS l,"
    " array_agg(val ORDER BY amount, val) AS v, string_agg(DISTINCT label, '|') AS d FROM item GROUP BY grp",
    "numbers from texts": "SELECT grp, sum((val::text || 'e-1')::numeric(8,2)) AS s FROM item GROUP BY grp",
    "numerics of any scale": "SELECT grp, sum(amount::text::numeric) AS s, avg(val::text::numeric) AS a"
    " FROM item GROUP BY grp",
    "having": "SELECT grp, count(*) AS n FROM item GROUP BY grp HAVING count(*) > 1",
    "no group by": "SELECT count(*) AS n, sum(amount) AS s FROM item",
    "no group by over extrema": "SELECT min(val) AS lo, max(day) AS hi FROM item",
    "aggregate over join": "SELECT t.rank, sum(i.amount * k.rate) AS s, count(*) AS n FROM item i"
    " JOIN tag t USING (grp) JOIN kind k ON k.code = i.val GROUP BY t.rank",
    "key not in output": "SELECT count(*) AS n FROM item GROUP BY grp, label",
    "grouped by a function in Python": "SELECT to_char(day, 'YYYY-MM') AS m, count(*) AS n, avg(amount) AS a FROM item"
    " GROUP BY to_char(day, 'YYYY-MM') HAVING to_char(day, 'YYYY-MM') > '' COLLATE \"C\"",
    "cases of letters": "SELECT upper(label) AS l, count(*) AS n FROM item WHERE label ILIKE '%B%'"
    " GROUP BY upper(label)",
    "grouped by date": "SELECT day, count(*) AS n, max(val) AS m FROM item GROUP BY day",
    "distinct aggregates": "SELECT grp, count(DISTINCT val) AS n, sum(amount) AS s FROM item GROUP BY grp",
    "distinct": "SELECT DISTINCT grp, rank FROM tag",
    "distinct over join": "SELECT DISTINCT i.label, t.rank FROM item i JOIN tag t USING (grp)",
    "union all": "SELECT grp, rank FROM tag UNION ALL SELECT grp, val FROM item",
    "union": "SELECT grp, rank FROM tag UNION SELECT grp, val FROM item",
    "intersect": "SELECT grp, rank FROM tag INTERSECT SELECT grp, val FROM item",
    "intersect all": "SELECT grp, rank FROM tag INTERSECT ALL SELECT grp, val FROM item",
    "except": "SELECT grp, val FROM item EXCEPT SELECT grp, rank FROM tag",
    "except all": "SELECT grp, val FROM item EXCEPT ALL SELECT grp, rank FROM tag",
    "aggregate of aggregate": "SELECT d.n, count(*) AS groups, sum(d.s) AS s FROM (SELECT grp, count(*) AS n,"
    " sum(val) AS s FROM item GROUP BY grp) d GROUP BY d.n",
    "join with aggregate": "SELECT t.rank, d.s FROM tag t JOIN (SELECT grp, sum(amount) AS s FROM item GROUP BY grp) d"
    " ON d.grp = t.grp",
    "join with extrema": "SELECT t.rank, d.m FROM tag t JOIN (SELECT grp, max(val) AS m FROM item GROUP BY grp) d"
    " ON d.grp = t.grp",
    "sums of some groups": "SELECT t.rank, d.s, d.n FROM tag t JOIN (SELECT grp, sum(amount) AS s, count(*) AS n"
    " FROM item GROUP BY grp) d ON d.grp = t.grp WHERE t.rank < 3",
    "extrema of some groups": "SELECT t.rank, d.m FROM tag t LEFT JOIN (SELECT grp, min(amount) AS m FROM item"
    " GROUP BY grp) d ON d.grp = t.grp AND d.m > 1 WHERE t.rank > 1",
    "averages of some groups": "SELECT i.id, k.rate FROM item i JOIN kind k ON k.code = i.grp WHERE k.label = 'a'"
    " AND i.val > (SELECT avg(j.val) FROM item j WHERE j.grp = k.code)",
    "in some groups": "SELECT t.grp, t.rank FROM tag t WHERE t.rank >= 2 AND t.grp IN (SELECT grp FROM item"
    " GROUP BY grp HAVING sum(amount) > 2)",
    "lists of some groups": "SELECT k.code, d.l FROM kind k JOIN (SELECT grp, string_agg(label, ',' ORDER BY id) AS l"
    " FROM item GROUP BY grp) d ON d.grp = k.code WHERE k.label IS NOT NULL",
    "join with distinct": "SELECT i.id, d.rank FROM item i JOIN (SELECT DISTINCT grp, rank FROM tag) d"
    " ON d.grp = i.grp",
    "join with total": "SELECT i.id, d.total FROM item i CROSS JOIN (SELECT sum(val) AS total FROM item) d",
    "correlated aggregate": "SELECT i.id FROM item i"
    " WHERE i.val > (SELECT min(t.rank) FROM tag t WHERE t.grp = i.grp)",
    "scalar subquery": "SELECT i.id, (SELECT max(k.rate) FROM kind k WHERE k.code <= i.val) AS r FROM item i",
    "grouping sets": "SELECT grp, val, count(*) AS n, sum(amount) AS s FROM item GROUP BY ROLLUP (grp, val)",
    "grouping sets by a constant": "SELECT grouping(length('x'::text)) AS x, val, count(*) AS n FROM item"
    " GROUP BY ROLLUP (length('x'::text), val)",
    "distinct on": "SELECT DISTINCT ON (grp) grp, id, label FROM item ORDER BY grp, val DESC, id",
    "window": "SELECT id, row_number() OVER (PARTITION BY grp ORDER BY val, id) AS r,"
    " sum(val) OVER (PARTITION BY grp) AS s FROM item",
    "rank": "SELECT label, rank() OVER (PARTITION BY grp ORDER BY rank) AS r FROM tag",
    "first rows": "SELECT id, val FROM item ORDER BY val DESC NULLS LAST, id LIMIT 3",
    "first groups": "SELECT grp, sum(amount) AS s FROM item GROUP BY grp"
    " ORDER BY sum(amount) DESC NULLS LAST, grp LIMIT 2",
    "first rows within": "SELECT q.grp, count(*) AS n FROM (SELECT grp, id FROM item ORDER BY id LIMIT 4) q"
    " GROUP BY q.grp",
    "first rows of each": "SELECT k.code, l.id FROM kind k CROSS JOIN LATERAL (SELECT i.id FROM item i"
    " WHERE i.val = k.code ORDER BY i.amount DESC NULLS LAST, i.id LIMIT 2) l",
    "variance": "SELECT grp, var_pop(val) AS v FROM item GROUP BY grp",
    "booleans": "SELECT grp, bool_and(val > 1) AS a, bool_or(val > 2) AS o FROM item GROUP BY grp",
    "case": "SELECT grp, sum(CASE WHEN label = 'a' THEN amount ELSE 0 END) AS s FROM item GROUP BY grp",
    "cte used twice": "WITH t AS (SELECT grp, count(*) AS n FROM item GROUP BY grp)"
    " SELECT a.grp, a.n, b.n AS next FROM t a JOIN t b ON b.grp = a.grp + 1",
}  # fmt: skip

_LABELS = ["NULL", "'a'", "'b'", "'A'", "''", "'z z'"]


def random_changes(random: random.Random, number: int) -> list[str]:
    """Statements that change the tables."""

    def small() -> str:
        return random.choice(["NULL", "0", "1", "2", "3", "4"])

    def label() -> str:
        return random.choice(_LABELS)

    def amount() -> str:
        return random.choice(["NULL", "0", "1.50", "2.25", "-1.5", "100000.01"])

    def day() -> str:
        return random.choice(["NULL", "'2024-02-29'", "'1999-12-31'"])

    def insert() -> str:
        table = random.choice(NAMES)
        rows = []
        for _ in range(random.randint(1, 5)):
            if table == "item":
                values = [str(random.randint(1, 15)), small(), small(), amount(), label(), day()]
            elif table == "tag":
                values = [small(), small(), label()]
            else:
                values = [str(random.randint(0, 5)), label(), random.choice(["0", "0.25", "1.10"])]
            rows.append(f"({', '.join(values)})")
        return f"INSERT INTO {table} VALUES {', '.join(rows)} ON CONFLICT DO NOTHING"

    def change() -> str:
        where = f"WHERE {random.choice(['grp', 'val'])} = {random.randint(0, 4)}"
        return random.choice(
            [
                f"UPDATE item SET val = {small()} {where}",
                f"UPDATE item SET grp = {small()} {where}",
                f"UPDATE item SET amount = {amount()} {where}",
                f"UPDATE item SET label = {label()} {where}",
                f"DELETE FROM item {where}",
                f"UPDATE tag SET rank = {small()} WHERE grp = {random.randint(0, 4)}",
                f"UPDATE tag SET grp = {small()} WHERE rank = {random.randint(0, 4)}",
                f"DELETE FROM tag WHERE rank = {random.randint(0, 4)}",
                f"UPDATE kind SET rate = rate + 1 WHERE code = {random.randint(0, 5)}",
                f"DELETE FROM kind WHERE code = {random.randint(0, 5)}",
            ]
        )

    return [random.choice([insert, insert, change])() for _ in range(number)]
