-- What stream tables are computed from is shown to those who may read them: the table of all rows is nobody's to read, and
-- pgt_stream_tables becomes a view of it (functions/09_definitions.sql).

-- Their functions look for the table under the name that it is about to lose. superuser/90_event_triggers.sql makes them again.
DO $$
DECLARE
    tracker name;
BEGIN
    FOR tracker IN SELECT e.evtname FROM pg_catalog.pg_event_trigger e WHERE e.evtname ~ '^pg_trickle_.*_tracker$' LOOP
        EXECUTE pg_catalog.format('ALTER EVENT TRIGGER %I DISABLE', tracker);
    END LOOP;
END $$;

ALTER TABLE pgtrickle.pgt_stream_tables RENAME TO pgt_definitions;
ALTER SEQUENCE pgtrickle.pgt_stream_tables_pgt_id_seq RENAME TO pgt_definitions_pgt_id_seq;
REVOKE ALL ON pgtrickle.pgt_definitions FROM PUBLIC;

-- They are of the table's row type, which is not the view's.
DROP FUNCTION IF EXISTS pgtrickle._own_stream_table(bigint);
DROP FUNCTION IF EXISTS pgtrickle._check_state(pgtrickle.pgt_definitions);
DROP FUNCTION IF EXISTS pgtrickle._alert(text, pgtrickle.pgt_definitions, text);
