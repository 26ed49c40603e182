CREATE TABLE person (
    id bigint PRIMARY KEY, name text NOT NULL, email text NOT NULL, credit_card text NOT NULL, city text NOT NULL,
    state text NOT NULL, date_time timestamp NOT NULL, extra text
);
CREATE TABLE auction (
    id bigint PRIMARY KEY, item text NOT NULL, description text NOT NULL, initial bigint NOT NULL,
    reserve bigint NOT NULL, date_time timestamp NOT NULL, expires timestamp NOT NULL, seller bigint NOT NULL,
    category bigint NOT NULL, extra text
);
CREATE TABLE bid (
    auction bigint NOT NULL, bidder bigint NOT NULL, price bigint NOT NULL, channel text NOT NULL, url text,
    date_time timestamp NOT NULL, extra text
);
CREATE INDEX ON auction (seller);
CREATE INDEX ON bid (auction);
CREATE INDEX ON bid (date_time);
