SELECT p.id, p.name, p.start_time
FROM (
    SELECT id, name, date_bin('10 seconds', date_time, '2026-01-01') AS start_time
    FROM person
    GROUP BY id, name, date_bin('10 seconds', date_time, '2026-01-01')
) AS p
JOIN (
    SELECT seller, date_bin('10 seconds', date_time, '2026-01-01') AS start_time
    FROM auction
    GROUP BY seller, date_bin('10 seconds', date_time, '2026-01-01')
) AS a ON p.id = a.seller AND p.start_time = a.start_time
