-- Row hashes: xxHash64 (Y. Collet, specification version 0.1.1) with the seed 0x517cc1b727220a95, over UTF-8.
--
-- PostgreSQL has no unsigned integers. Every value is the bigint with the same 64 bits; shifts to the right are masked,
-- products and sums are taken modulo 2^64 in numeric.


-- A number of any size modulo 2^64, as the bigint with the same bits. (This and the next function pin no search_path, so
-- that PostgreSQL can inline them into the one function that calls them. Their bodies were parsed when they were made.)
CREATE OR REPLACE FUNCTION pgtrickle._wrap64(n numeric) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN (((n + 9223372036854775808) % 18446744073709551616 + 18446744073709551616) % 18446744073709551616
            - 9223372036854775808)::bigint;


-- Rotate 64 bits to the left.
CREATE OR REPLACE FUNCTION pgtrickle._rotate64(x bigint, by int) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN (x << by) | ((x >> (64 - by)) & ~((-1)::bigint << by));


-- n bytes (4 or 8) at an offset, the lowest first.
CREATE OR REPLACE FUNCTION pgtrickle._little_endian(input bytea, at int, n int) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    value bigint := 0;
BEGIN
    FOR i IN REVERSE n - 1..0 LOOP
        value := (value << 8) | get_byte(input, at + i);
    END LOOP;
    RETURN value;
END $$;


-- xxHash64 of bytes. The names of the primes are the specification's.
CREATE OR REPLACE FUNCTION pgtrickle._xxhash64(input bytea, seed bigint) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    prime1 CONSTANT numeric := 11400714785074694791;
    prime2 CONSTANT numeric := 14029467366897019727;
    prime3 CONSTANT numeric := 1609587929392839161;
    prime4 CONSTANT numeric := 9650029242287828579;
    prime5 CONSTANT numeric := 2870177450012600261;
    size int := octet_length(input);
    at int := 0;
    lanes bigint[];
    h bigint;
BEGIN
    IF size >= 32 THEN
        lanes := ARRAY[pgtrickle._wrap64(seed + prime1 + prime2), pgtrickle._wrap64(seed + prime2), seed,
                       pgtrickle._wrap64(seed - prime1)];
        WHILE at + 32 <= size LOOP
            FOR i IN 1..4 LOOP
                lanes[i] := pgtrickle._wrap64(pgtrickle._rotate64(pgtrickle._wrap64(
                    lanes[i] + pgtrickle._little_endian(input, at, 8) * prime2), 31) * prime1);
                at := at + 8;
            END LOOP;
        END LOOP;
        h := pgtrickle._wrap64(pgtrickle._rotate64(lanes[1], 1)::numeric + pgtrickle._rotate64(lanes[2], 7)
                               + pgtrickle._rotate64(lanes[3], 12) + pgtrickle._rotate64(lanes[4], 18));
        FOR i IN 1..4 LOOP
            h := h # pgtrickle._wrap64(pgtrickle._rotate64(pgtrickle._wrap64(lanes[i] * prime2), 31) * prime1);
            h := pgtrickle._wrap64(h * prime1 + prime4);
        END LOOP;
    ELSE
        h := pgtrickle._wrap64(seed + prime5);
    END IF;
    h := pgtrickle._wrap64(h::numeric + size);
    WHILE at + 8 <= size LOOP
        h := h # pgtrickle._wrap64(pgtrickle._rotate64(pgtrickle._wrap64(
                 pgtrickle._little_endian(input, at, 8) * prime2), 31) * prime1);
        h := pgtrickle._wrap64(pgtrickle._rotate64(h, 27) * prime1 + prime4);
        at := at + 8;
    END LOOP;
    IF at + 4 <= size THEN
        h := h # pgtrickle._wrap64(pgtrickle._little_endian(input, at, 4) * prime1);
        h := pgtrickle._wrap64(pgtrickle._rotate64(h, 23) * prime2 + prime3);
        at := at + 4;
    END IF;
    WHILE at < size LOOP
        h := h # pgtrickle._wrap64(get_byte(input, at) * prime5);
        h := pgtrickle._wrap64(pgtrickle._rotate64(h, 11) * prime1);
        at := at + 1;
    END LOOP;
    h := pgtrickle._wrap64((h # ((h >> 33) & 2147483647)) * prime2);
    h := pgtrickle._wrap64((h # ((h >> 29) & 34359738367)) * prime3);
    RETURN h # ((h >> 32) & 4294967295);
END $$;


-- A 64-bit row identity of a text. NULL for NULL.
CREATE OR REPLACE FUNCTION pgtrickle.pg_trickle_hash(input text) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT pgtrickle._xxhash64(convert_to(input, 'UTF8'), 5871781006564002453)
$$;


-- A 64-bit row identity of several texts, which are separated by 0x1E; NULL is 0x00 'NULL' 0x00.
CREATE OR REPLACE FUNCTION pgtrickle.pg_trickle_hash_multi(inputs text[]) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT pgtrickle._xxhash64(coalesce(string_agg(coalesce(convert_to(value, 'UTF8'), E'\\x004e554c4c00'::bytea),
                                                   E'\\x1e'::bytea ORDER BY place), ''::bytea), 5871781006564002453)
    FROM unnest(inputs) WITH ORDINALITY AS u(value, place)
$$;
