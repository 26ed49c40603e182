WITH hops AS (
    SELECT b.auction, w.start_time
    FROM bid AS b,
         generate_series(
             date_bin('2 seconds', b.date_time, '2026-01-01') - interval '8 seconds',
             date_bin('2 seconds', b.date_time, '2026-01-01'),
             interval '2 seconds'
         ) AS w (start_time)
),
counts AS (
    SELECT auction, start_time, count(*) AS num FROM hops GROUP BY auction, start_time
)
SELECT c.auction, c.num, c.start_time
FROM counts AS c JOIN (SELECT max(num) AS most, start_time FROM counts GROUP BY start_time) AS m
     ON c.start_time = m.start_time AND c.num >= m.most
