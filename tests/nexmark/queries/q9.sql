SELECT id, item, description, initial, reserve, opened, expires, seller, category,
       auction, bidder, price, bid_time, bid_extra
FROM (
    SELECT a.id, a.item, a.description, a.initial, a.reserve, a.date_time AS opened, a.expires, a.seller, a.category,
           b.auction, b.bidder, b.price, b.date_time AS bid_time, b.extra AS bid_extra,
           row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.date_time ASC, b.bidder) AS rownum
    FROM auction AS a JOIN bid AS b ON a.id = b.auction
    WHERE b.date_time BETWEEN a.date_time AND a.expires
) AS ranked
WHERE rownum <= 1
