-- COPY from files that Spark reads.


-- Request that `COPY table FROM 'scheme://…'` be carried out. The server sends this in the place of such a statement.
CREATE OR REPLACE FUNCTION pgtrickle._request_copy(statement text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgtrickle._request('copy', pg_catalog.jsonb_build_object('statement', statement),
        pg_catalog.current_setting('search_path'));
END $$;
