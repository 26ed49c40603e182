"""Expressions of every kind that the reference names, and more, over a table with columns of many types."""

from __future__ import annotations

TABLE = r"""
CREATE SCHEMA app;
CREATE EXTENSION IF NOT EXISTS citext;
CREATE EXTENSION IF NOT EXISTS hstore;
CREATE TYPE app.mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN app.positive AS int CHECK (VALUE > 0);
CREATE TYPE app.pair AS (a int, b text);
CREATE TYPE app.span AS RANGE (subtype = float8);
CREATE COLLATION app.nocase (provider = builtin, locale = 'C.UTF-8');
CREATE FUNCTION app.plus(a int, b int DEFAULT 1, c int DEFAULT 0) RETURNS int IMMUTABLE LANGUAGE sql
  AS 'SELECT a + b + c';
CREATE FUNCTION app.total(VARIADIC v int[]) RETURNS bigint IMMUTABLE LANGUAGE sql AS 'SELECT sum(x) FROM unnest(v) x';
CREATE FUNCTION app.make(a int, b text) RETURNS app.pair IMMUTABLE LANGUAGE sql AS 'SELECT ROW(a, b)::app.pair';
CREATE FUNCTION app."Odd name"(a int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT a';
CREATE FUNCTION app.close(a int, b int) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT abs(a - b) < 2';
CREATE OPERATOR app.=~= (LEFTARG = int, RIGHTARG = int, FUNCTION = app.close);
CREATE TABLE e (
  id int PRIMARY KEY, i int, b bigint, n numeric(8,2), f float8, t text, v varchar(10), c char(4), ci citext,
  q bool, d date, ts timestamp, tz timestamptz, tm time, iv interval, ia int[], ta text[], ia2 int[][],
  j json, jb jsonb,
  m app.mood, p app.positive, pr app.pair, r int4range, mr nummultirange, sp app.span, u uuid, x bytea, inet inet,
  hs hstore, bits bit(4), xm xml, ts_v tsvector, pt point, tc text COLLATE "C");
"""

ROWS = r"""
(1, 1, 10, 1.50, 2.5, 'abc', 'A', 'ab', 'A', true, '2024-01-15', '2024-01-15 10:11:12', '2024-01-15 10:11:12Z', '10:11',
 '1 day', '{1,2,3}', '{a,b}', '{{1,2},{3,4}}', '{"a":{"b":1}}', '{"a":{"b":[5,6]},"z":1}', 'ok', 1, '(1,x)', '[1,5)',
 '{[1,2)}', '[1,2)', '00000000-0000-0000-0000-000000000000', '\x0102', '10.1.1.1', 'a=>1', '1010', NULL,
 'a:1 b:2', '(1,2)', 'zz'),
(2, 2, 0, -1, 0, 'b,%_c', 'B', NULL, 'b', false, NULL, NULL, NULL, NULL, NULL, '{}', '{}', NULL, '[1]', '{"a":7}',
 'sad', NULL, '(,)', 'empty', '{}', NULL, NULL, '', '::1', '', '0000', NULL, '', NULL, ''),
(3, 101, 5, 100, 1e10, '12', 'Z', 'zzzz', 'x', NULL, '1999-12-31', '1999-12-31 01:02:03', '1999-12-31 01:02:03Z',
 '23:59:59', '-1 mon 2 days', '{9}', '{NULL}', '{{7}}', 'null', '"a"', 'happy', 5, NULL, '[7,)', '{[,3),[4,)}', '(,)',
 'ffffffff-ffff-ffff-ffff-ffffffffffff', '\xff', '10.0.0.0/8', 'b=>NULL', '0001', NULL, NULL, '(0,0)', 'a'),
(4, 3, 3, 3, 3, '1', '1', '1', '1', true, '2024-01-16', '2024-01-16', '2024-01-16', '00:00', '0', '{3}', '{c}', '{}',
 '{}', '{}', 'ok', 3, '(3,c)', '[3,4)', '{[3,4)}', '[3,4)', NULL, '\x', '10.0.0.1', 'a=>2,z=>3', '1111', NULL,
 'c', '(3,3)', 'C')
"""

EXPRESSIONS = r"""
CASE WHEN i > 100 THEN 'high' ELSE 'low' END
CASE i WHEN 1 THEN 'active' WHEN 2 THEN 'inactive' END
CASE t WHEN 'a' THEN 1 ELSE 2 END
COALESCE(t, v, 'unknown')
NULLIF(i, 0)
GREATEST(i, b, 3)
LEAST(f, n)
t IN ('A', 'B', 'C')
t NOT IN ('A', 'B')
v IN ('A', 'B')
i IN (1, 2, 3)
i BETWEEN 10 AND 100
i NOT BETWEEN 10 AND 100
i BETWEEN SYMMETRIC 100 AND 10
i NOT BETWEEN SYMMETRIC 100 AND 10
i IS DISTINCT FROM b
i IS NOT DISTINCT FROM b
t SIMILAR TO '%pattern%'
t NOT SIMILAR TO '%p' ESCAPE '#'
t LIKE 'a%'
t NOT LIKE 'a%' ESCAPE '!'
t ILIKE 'A%'
t NOT ILIKE 'A%'
t ~ '^a'
t ~* '^A'
t !~ '^a'
t !~* '^A'
t LIKE ANY (ARRAY['a%', 'b%'])
t NOT LIKE ALL (ARRAY['a%', 'b%'])
i = ANY (ARRAY[1,2,3])
i > ALL (ARRAY[50,60])
i = ANY (ia)
q IS TRUE
q IS NOT TRUE
q IS FALSE
q IS NOT FALSE
q IS UNKNOWN
q IS NOT UNKNOWN
NOT q
NOT (q AND i > 1 OR t IS NULL)
i IS NULL
i IS NOT NULL
CURRENT_DATE
CURRENT_TIME
CURRENT_TIME(2)
CURRENT_TIMESTAMP
CURRENT_TIMESTAMP(3)
LOCALTIME
LOCALTIME(1)
LOCALTIMESTAMP
LOCALTIMESTAMP(0)
CURRENT_ROLE
CURRENT_USER
USER
SESSION_USER
SYSTEM_USER
CURRENT_CATALOG
CURRENT_SCHEMA
now()
ARRAY[i, 2, 3]
ARRAY[]::int[]
ARRAY[[1,2],[i,4]]
ARRAY[0.1, 0.9]::float8[]
ia[1]
ia[1:2]
ia[:2]
ia[2:]
ia[:]
ia2[1][2]
ia2[1:2][1:1]
(string_to_array(t, ','))[1]
ARRAY[(SELECT i), 3]
(ARRAY[(SELECT e.i WHERE e.i > 1)])[1]
ARRAY(SELECT g FROM generate_series(1, e.i % 3) AS g)
ROW(i, t, f)::text
ROW(i, t)::app.pair
(i, t) = (1, 'a')
(i, b) < (1, 2)
ROW(i, b) IS DISTINCT FROM ROW(1, 2::bigint)
(i, t) IN ((1, 'a'), (2, 'b'))
ROW(i, t) IS NULL
pr IS NOT NULL
(pr).a
(pr).b || 'x'
(app.make(i, t)).b
(e).t
e
e.*::text
(e.*) IS NOT NULL
row_to_json(e)
to_jsonb(e.*)
t COLLATE "C"
(t COLLATE "C") < 'b'
t || 'x' COLLATE app.nocase
tc < 'a'
i + 1
-i
+i
@ i
i % 3
i / 2
i ^ 2
|/ f
||/ f
i & 3
i | 3
i # 3
~ i
i << 2
i >> 1
t || i
t || t
ia || 4
ia && ARRAY[1]
ia @> ARRAY[1]
ia <@ ARRAY[1,2]
i = 1 AND q OR t = 'a'
i <> 1
i != 1
i::text
i::numeric(10,2)
n::int
t::varchar(3)
v::text
c = 'a'
c || 'b'
f::real
'1'::int + i
CAST(t AS bytea)
i::bool
tz::date
d + 1
d - DATE '2024-01-01'
ts + INTERVAL '1 day 2 hours'
ts - ts
INTERVAL '1 year' * i
iv / 2
INTERVAL '1' YEAR
iv::interval day to second(3)
tz AT TIME ZONE 'UTC'
ts AT TIME ZONE 'Europe/Berlin'
tz AT LOCAL
EXTRACT(year FROM ts)
EXTRACT(epoch FROM tz)
EXTRACT(dow FROM d)
date_part('month', ts)
date_trunc('day', ts)
date_bin('15 minutes', ts, TIMESTAMP '2001-01-01')
(d, d + 2) OVERLAPS (DATE '2024-01-01', DATE '2024-02-01')
(ts, iv) OVERLAPS (ts, ts)
age(ts)
age(ts, ts)
to_char(ts, 'YYYY-MM-DD')
to_date(b::text, 'YYYY')
make_date(2024 + i, 1, 2)
make_interval(days => i)
make_interval(hours => 2, mins => i)
tm + iv
tm::timetz
'infinity'::timestamptz
TIMESTAMP '2024-01-01 00:00:00'
TIMESTAMPTZ '2024-01-01 00:00:00+02'
DATE 'infinity'
ceil(f)
floor(n)
round(n, 1)
round(f)
trunc(n)
abs(i)
sign(n)
mod(i, 3)
div(n, 2)
power(n, 2)
sqrt(f)
exp(i)
ln(i)
log(i)
log(2, i)
pi()
width_bucket(f, 0, 10, 5)
gcd(i, 4)
factorial(5)
scale(n)
trim_scale(n)
lower(t)
upper(t)
initcap(t)
length(t)
char_length(t)
octet_length(t)
bit_length(t)
position('a' IN t)
strpos(t, 'a')
substring(t FROM 2 FOR 3)
substring(t FROM 2)
substring(t FROM '^.')
substring(t, 2, 3)
substring(t SIMILAR '%#"a#"%' ESCAPE '#')
substr(t, 2)
overlay(t PLACING 'xx' FROM 2 FOR 1)
overlay(t PLACING 'xx' FROM 2)
trim(t)
trim(BOTH 'x' FROM t)
trim(LEADING FROM t)
trim(TRAILING 'ab' FROM t)
ltrim(t, 'a')
btrim(t)
rtrim(t)
lpad(t, 5, 'x')
replace(t, 'a', 'b')
translate(t, 'ab', 'cd')
split_part(t, ',', 1)
repeat(t, 2)
reverse(t)
left(t, 2)
right(t, 2)
md5(t)
sha256(x)
encode(x, 'hex')
decode('00', 'hex')
chr(65)
ascii(t)
concat(t, i, NULL)
concat_ws(',', t, i)
format('%s-%I', t, i)
concat(VARIADIC ta)
quote_literal(t)
regexp_replace(t, 'a', 'b', 'g')
regexp_match(t, 'a')
regexp_count(t, 'a')
regexp_like(t, 'a')
regexp_substr(t, 'a')
starts_with(t, 'a')
t ^@ 'a'
normalize(t)
normalize(t, NFKC)
t IS NORMALIZED
t IS NOT NFD NORMALIZED
unistr('\0061')
string_to_array(t, ',')
array_to_string(ia, ',')
array_length(ia, 1)
cardinality(ia)
array_append(ia, 1)
array_position(ia, 1)
array_cat(ia, ia)
array_remove(ia, 1)
jb -> 'a'
jb ->> 'a'
jb #> '{a,b}'
jb #>> '{a,b}'
jb @> '{"a":1}'
jb ? 'a'
jb ?| ARRAY['a','b']
jb ?& ARRAY['a','b']
hs - 'a'::text
jsonb_build_object('a', i) #- '{a}'
jb || '{"z":1}'
jb @? '$.a'
jb @@ '$.a > 1'
jb['a']
jb['a']['b']
jb['a'][0]
j -> 'a' ->> 'b'
j ->> 0
(jsonb_build_object('a', i) ->> 'a')::int
jsonb_build_object('a', i, 'b', t)
json_build_array(i, t)
jsonb_set(jsonb_build_object('a', i), '{a}', '1')
jsonb_path_query_first(jb, '$.a')
jsonb_path_exists(jb, '$.a ? (@ > $x)', '{"x":1}')
jsonb_typeof(jb)
jsonb_pretty(jb)
jsonb_strip_nulls(jb)
to_json(t)
array_to_json(ia)
t IS JSON
t IS NOT JSON
jb IS JSON OBJECT
t IS JSON ARRAY
t IS JSON SCALAR
t IS JSON VALUE
t IS JSON OBJECT WITH UNIQUE KEYS
t IS NOT JSON WITH UNIQUE KEYS
JSON_OBJECT('name' : t, 'age' : i)
JSON_OBJECT('name' VALUE t, 'age' VALUE i ABSENT ON NULL)
JSON_OBJECT('name' : t WITH UNIQUE KEYS)
JSON_OBJECT('name' : t ABSENT ON NULL WITH UNIQUE KEYS RETURNING jsonb)
JSON_OBJECT('name' : t RETURNING jsonb)
JSON_OBJECT('a' : JSON_OBJECT('b' : i), 'c' : j::text FORMAT JSON)
JSON_OBJECT()
json_object('{a,b}', '{1,2}')
JSON_ARRAY(i, t, f)
JSON_ARRAY(i, t NULL ON NULL)
JSON_ARRAY(i RETURNING jsonb)
JSON_ARRAY(RETURNING jsonb)
JSON_ARRAY()
JSON(jb::text)
JSON(jb::text WITH UNIQUE KEYS)
JSON_SCALAR(i)
JSON_SERIALIZE(j)
JSON_SERIALIZE(jb RETURNING bytea)
JSON_VALUE(jb, '$.a')
JSON_VALUE(jb, '$.a' RETURNING int)
JSON_VALUE(jb, '$.a' RETURNING int DEFAULT 0 ON EMPTY DEFAULT -1 ON ERROR)
JSON_VALUE(jb, '$.q' NULL ON EMPTY ERROR ON ERROR)
JSON_VALUE(jb, '$.a ? (@ > $x)' PASSING i AS x RETURNING int)
JSON_QUERY(jb, '$.a')
JSON_QUERY(jb, '$.a[*]' WITH WRAPPER)
JSON_QUERY(jb, '$.a' WITH CONDITIONAL WRAPPER)
JSON_QUERY(jb, '$.a' OMIT QUOTES)
JSON_QUERY(jb, '$.a' RETURNING text KEEP QUOTES EMPTY ARRAY ON EMPTY EMPTY OBJECT ON ERROR)
JSON_QUERY(jb, '$.a' RETURNING app.pair)
JSON_EXISTS(jb, '$.a')
JSON_EXISTS(jb, '$.a ? (@ > $x)' PASSING 1 AS x TRUE ON ERROR)
m
m = 'ok'
m > 'sad'
m::text
'ok'::app.mood
p + 1
p::app.positive
i::app.positive
m IN ('ok', 'sad')
r
r @> 1
r && int4range(1, 5)
lower(r)
upper(r)
isempty(r)
r * int4range(1, 3)
r - int4range(1, 3)
r -|- int4range(1, 3)
r << int4range(1,3)
int4range(i, i + 1, '[]')
numrange(n, NULL)
mr @> 1.5
mr + nummultirange(numrange(1,2))
range_merge(mr)
sp
app.span(f, f + 1)
upper_inf(r)
tstzrange(tz, NULL) @> tz
multirange(r)
u
u = '00000000-0000-0000-0000-000000000000'
x || '\x00'
inet << '10.0.0.0/8'
host(inet)
ci = 'a'
ci || 'x'
ci IN ('a', 'b')
ci IS DISTINCT FROM 'b'
NULLIF(ci, 'x')
CASE ci WHEN 'a' THEN 1 END
GREATEST(ci, 'b')
hs -> 'a'
hs ? 'a'
hs || 'a=>1'
bits & B'0101'
bits || B'1'
B'1010'
X'1F'
length(bits)
app.plus(i)
app.plus(i, c => 5)
app.plus(a => i, b => 2)
app.plus(i, 2, 3)
app.total(i, 2, 3)
app.total(VARIADIC ia)
app."Odd name"(i)
i OPERATOR(app.=~=) 3
i OPERATOR(pg_catalog.+) 1
NOT i OPERATOR(app.=~=) 3
to_tsvector('english', t)
ts_v @@ to_tsquery('english', 'a & b')
ts_v @@ plainto_tsquery('simple', t)
ts_rank(ts_v, to_tsquery('a'))
pt <-> point(0,0)
pt[0]
point(1,2) <@ box(point(0,0), point(3,3))
xmlconcat(xm, xm)
xmlroot(xm, version '1.0')
xmlserialize(CONTENT xm AS text)
xm IS DOCUMENT
xpath('/a', xm)
xmlexists('/a' PASSING xm)
pg_typeof(i)
'e'::regclass::text
i::regclass
hashtext(t)
num_nonnulls(i, t)
coalesce(i, 0) + coalesce(b, 0)
E'a\nb'
E'back\\slash'
U&'\0061'
$$it's$$
NULL::text
NULL::int
1
1.50
-1
1e10
9999999999
'a'
TRUE
'{1,2}'::int[]
1::bigint
'NaN'::float8
'1 day'::interval
-5 % 3
- (-i)
(- 5)::text
2 * (i + 3) - 4 / 2
(i < 3) IS TRUE
to_timestamp(f)
int4(b::numeric)
pg_size_pretty(b)
timezone('UTC', tz)
isfinite(tz)
justify_hours(iv)
collation for (t)
""".strip().splitlines()
