"""Queries over the sources of `conftest`, one or more for each construct that is maintained incrementally."""

from __future__ import annotations

QUERIES: dict[str, str] = {
    "scan with key": "SELECT * FROM item",
    "scan without key": "SELECT * FROM tag",
    "scan of quoted names": 'SELECT * FROM "Select"',
    "key left out": "SELECT grp, amount, free FROM item",
    "key repeated and renamed": "SELECT id AS a, id AS b, val FROM item",
    "expressions": "SELECT id, val + 1 AS v, upper(label) AS u, coalesce(amount, 0) AS m,"
    " CASE WHEN val > 2 THEN 'big' ELSE label END AS c FROM item",
    "filter": "SELECT id, val FROM item WHERE val > 2 AND label IS NOT NULL",
    "filter on null": "SELECT label, grp FROM item WHERE grp IS NULL",
    "composite key": "SELECT x, y, v, at FROM cell WHERE v < 3",
    "join": 'SELECT i.id, s."from", i.amount, s."a ""b" FROM item i JOIN "Select" s ON i.val = s."from"',
    "join without keys": "SELECT i.label, t.note, t.rank FROM item i JOIN tag t ON i.grp = t.grp",
    "join using": "SELECT grp, id, rank FROM item JOIN tag USING (grp)",
    "self-join": "SELECT a.id, b.id AS other, b.free FROM item a JOIN item b ON a.grp = b.grp AND a.id <> b.id",
    "self-join without keys": "SELECT a.rank, b.note FROM tag a, tag b WHERE a.grp = b.grp",
    "non-equi join": "SELECT i.id, t.rank FROM item i JOIN tag t ON i.val < t.rank",
    "cross join": 'SELECT t.grp, s.person FROM tag t CROSS JOIN "Select" s',
    "three-way join": 'SELECT i.id, t.rank, s.person FROM item i JOIN tag t USING (grp) JOIN "Select" s'
    ' ON s."from" = t.rank WHERE i.val IS NOT NULL',
    "four-way join": "SELECT a.id, b.rank, c.x, d.id AS other FROM item a, tag b, cell c, item d"
    " WHERE a.grp = b.grp AND c.x = b.rank AND d.val = c.y",
    "counts": "SELECT grp, count(*) AS n, count(val) AS v, count(label) FILTER (WHERE val > 1) AS f,"
    " count(*) FILTER (WHERE label IS NULL) AS g FROM item GROUP BY grp",
    "sums": "SELECT grp, sum(val) AS v, sum(amount) AS a, sum(wide) AS w, sum(val) FILTER (WHERE amount > 1) AS f"
    " FROM item GROUP BY grp",
    "averages": "SELECT grp, avg(val) AS v, avg(amount) AS a, avg(wide) AS w, avg(free) AS f FROM item GROUP BY grp",
    "sum of any scale": "SELECT grp, sum(free) AS f, sum(amount * free) AS af, sum(amount * amount) AS aa,"
    " avg(round(free, 1)) AS r FROM item GROUP BY grp",
    "sum of floats": "SELECT x, sum(v) AS s, avg(v) AS a FROM cell GROUP BY x",
    "extrema": "SELECT grp, min(val) AS lo, max(val) AS hi, max(label) AS l, min(free) AS f,"
    " max(amount) FILTER (WHERE val > 1) AS m FROM item GROUP BY grp",
    "extrema of times": "SELECT y, min(at) AS first, max(at) AS last, max(v) AS v FROM cell GROUP BY y",
    "distinct aggregates": "SELECT grp, count(DISTINCT val) AS n, sum(DISTINCT amount) AS s, count(*) AS c"
    " FROM item GROUP BY grp",
    "having": "SELECT grp, count(*) AS n, sum(val) AS s FROM item GROUP BY grp HAVING count(*) > 1",
    "key not in output": "SELECT count(*) AS n, max(val) AS m FROM item GROUP BY grp",
    "grouped by expressions": "SELECT val % 2 AS odd, lower(label) AS l, count(*) AS n FROM item"
    " GROUP BY val % 2, lower(label)",
    "grouped by numeric": "SELECT free, count(*) AS n FROM item GROUP BY free",
    "grouped by citext": 'SELECT person, count(*) AS n, max("from") AS m FROM "Select" GROUP BY person',
    "grouped by key": "SELECT i.id, i.label, i.amount, count(*) AS n FROM item i JOIN tag t USING (grp) GROUP BY i.id",
    "expressions over aggregates": "SELECT grp, sum(val) * 2 + count(*) AS e, round(avg(amount), 1) AS r,"
    " grp + 1 AS g FROM item GROUP BY grp",
    "no group by": "SELECT count(*) AS n, sum(val) AS s, min(label) AS m, avg(free) AS a FROM item",
    "no group by with filter": "SELECT count(*) AS n, sum(rank) AS s FROM tag WHERE grp = 1",
    "no group by with having": "SELECT sum(val) AS s FROM item HAVING count(*) > 2",
    "no group by over floats": "SELECT sum(v) AS s, count(*) AS n FROM cell",
    "aggregate over join": "SELECT t.rank, count(*) AS n, sum(i.amount) AS s, min(i.val) AS lo"
    " FROM item i JOIN tag t USING (grp) GROUP BY t.rank",
    "aggregate over self-join": "SELECT a.grp, count(*) AS n, max(b.val) AS m FROM item a JOIN item b USING (grp)"
    " GROUP BY a.grp",
    "distinct": "SELECT DISTINCT grp, rank FROM tag",
    "distinct of unfaithful types": "SELECT DISTINCT free, amount FROM item",
    "distinct over join": "SELECT DISTINCT i.label, t.rank FROM item i JOIN tag t USING (grp)",
    "distinct over aggregate": "SELECT DISTINCT count(*) AS n FROM item GROUP BY grp",
    "union all": "SELECT grp, rank FROM tag UNION ALL SELECT grp, val FROM item",
    "union all of types": "SELECT grp, rank FROM tag UNION ALL SELECT x, v FROM cell UNION ALL SELECT id, free"
    " FROM item",
    "union all of joins": "SELECT i.id, t.rank FROM item i JOIN tag t USING (grp)"
    " UNION ALL SELECT a.id, b.val FROM item a JOIN item b ON a.val = b.grp",
    "aggregate over union all": "SELECT u.k, count(*) AS n, sum(u.v) AS s FROM (SELECT grp AS k, rank AS v FROM tag"
    " UNION ALL SELECT grp, amount FROM item) u GROUP BY u.k",
    "derived table": "SELECT d.g, d.m + 1 AS m FROM (SELECT grp AS g, val * 2 AS m FROM item WHERE val > 0) d"
    " WHERE d.m < 9",
    "aggregate of aggregate": "SELECT d.n, count(*) AS groups, sum(d.s) AS s FROM (SELECT grp, count(*) AS n,"
    " sum(val) AS s"
    " FROM item GROUP BY grp) d GROUP BY d.n",
    "join with aggregate": "SELECT t.rank, d.s, d.a FROM tag t JOIN (SELECT grp, sum(val) AS s, avg(amount) AS"
    " a FROM item"
    " GROUP BY grp) d ON d.grp = t.grp",
    "join of aggregates": "SELECT a.grp, a.n, b.m FROM (SELECT grp, count(*) AS n FROM tag GROUP BY grp) a"
    " JOIN (SELECT grp, max(val) AS m FROM item GROUP BY grp) b USING (grp)",
    "join with distinct": "SELECT i.id, d.rank FROM item i JOIN (SELECT DISTINCT grp, rank FROM tag) d ON d.grp"
    " = i.grp",
    "join with total": "SELECT i.id, i.val, d.total FROM item i CROSS JOIN (SELECT sum(val) AS total FROM item) d",
    "join with groups of unfaithful keys": "SELECT d.free, d.n, t.rank FROM (SELECT free, count(*) AS n FROM item"
    " GROUP BY free) d JOIN tag t ON t.rank = d.n",
    "join with sums of floats": "SELECT t.rank, d.s, d.m FROM (SELECT x, sum(v) AS s, max(v) AS m FROM cell"
    " GROUP BY x) d JOIN tag t ON t.grp = d.x",
    "having over key not in output": "SELECT sum(v) AS s, max(v) AS m FROM cell GROUP BY x HAVING count(*) > 1",
    "cte used twice": "WITH g AS (SELECT grp, count(*) AS n FROM item GROUP BY grp)"
    " SELECT a.grp, a.n, b.grp AS other FROM g a JOIN g b ON a.n = b.n",
    "cte of cte": "WITH a AS (SELECT id, grp, val FROM item WHERE val > 0), b(k, s) AS (SELECT grp, sum(val)"
    " FROM a GROUP BY grp)"
    " SELECT a.id, b.s FROM a JOIN b ON b.k = a.grp",
    "variances": "SELECT grp, stddev(val) AS a, var_pop(amount) AS b, variance(wide) AS c, stddev_pop(free) AS d"
    " FROM item GROUP BY grp",
    "variances of integers": "SELECT stddev_samp(val) AS a, var_pop(val) AS b FROM item",
    "booleans and bits": "SELECT grp, every(val > 1) AS e, bool_or(val > 2) AS o, bit_and(val) AS b, bit_or(val) AS c,"
    " bit_xor(wide) AS x FROM item GROUP BY grp",
    "ordered aggregates": "SELECT grp, string_agg(label, ',' ORDER BY label, id) AS s, array_agg(id ORDER BY id) AS a,"
    " percentile_disc(0.5) WITHIN GROUP (ORDER BY val) AS p FROM item GROUP BY grp",
    "rollup": "SELECT grp, val, count(*) AS n, sum(amount) AS s, grouping(val) AS g FROM item"
    " GROUP BY ROLLUP (grp, val)",
    "count of nothing but rows": "SELECT count(*) AS n FROM tag, item",
    "order by is discarded": "SELECT id, val FROM item ORDER BY val DESC, id",
}

LOOSE = frozenset(
    {
        "extrema",
        "extrema of times",
        "grouped by numeric",
        "grouped by citext",
        "join with groups of unfaithful keys",
        "join with sums of floats",
        "having over key not in output",
        "distinct of unfaithful types",
    }
)
"""Queries whose result PostgreSQL does not determine in all its looks: max of 0 and -0, the group of 1.0 and 1.00."""
