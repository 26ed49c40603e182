SELECT b.auction, b.price, b.bidder, b.date_time, b.extra
FROM bid AS b
JOIN (
    SELECT max(price) AS maxprice, date_bin('10 seconds', date_time, '2026-01-01') + interval '10 seconds' AS end_time
    FROM bid
    GROUP BY 2
) AS b1 ON b.price = b1.maxprice
WHERE b.date_time >= b1.end_time - interval '10 seconds' AND b.date_time < b1.end_time
