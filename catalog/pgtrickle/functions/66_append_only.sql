-- Stream tables whose rows are expected only to come.


-- Whether a source of a stream table has changes that its frontier has not seen, and that are no new rows. Raises 42501 unless
-- the caller may act for its owner.
CREATE OR REPLACE FUNCTION pgtrickle._rows_go(pgt_id bigint) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    goes boolean := false;
    d record;
BEGIN
    PERFORM pgtrickle._owner_of(_rows_go.pgt_id);
    FOR d IN
        SELECT to_regclass('pgtrickle_changes.changes_' || p.source_relid) AS buffer, s.frontier
        FROM pgtrickle.pgt_dependencies p JOIN pgtrickle.pgt_definitions s ON s.pgt_id = p.pgt_id
        WHERE p.pgt_id = _rows_go.pgt_id AND p.cdc_mode IS NOT NULL
    LOOP
        CONTINUE WHEN d.buffer IS NULL OR d.frontier IS NULL;
        EXECUTE format('SELECT EXISTS (SELECT FROM %s c WHERE c."__pgt_w" <> 1 AND %s)', d.buffer,
                       pgtrickle._unseen('$1', '$2', '$3'))
        INTO goes USING (d.frontier->>'snapshot')::pg_snapshot, (d.frontier->>'xid')::xid8,
                        coalesce((d.frontier->>'change_id')::bigint, 0);
        EXIT WHEN goes;
    END LOOP;
    RETURN goes;
END $$;
