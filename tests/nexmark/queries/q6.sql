SELECT q.seller,
       avg(q.final) OVER (PARTITION BY q.seller ORDER BY q.date_time, q.id ROWS BETWEEN 10 PRECEDING AND CURRENT ROW)
FROM (
    SELECT DISTINCT ON (a.id) a.id, a.seller, b.price AS final, b.date_time
    FROM auction AS a JOIN bid AS b ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires
    ORDER BY a.id, b.price DESC, b.date_time
) AS q
