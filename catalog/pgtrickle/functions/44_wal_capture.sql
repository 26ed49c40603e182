-- Change capture from the write-ahead log: PostgreSQL decodes it (pgoutput), the server puts what it says into the buffers
-- (engine/capture/wal/), under the transaction ids that the writers had. So all that reads buffers stays as it is, but for
-- one thing: changes come later than the source shows them. Who reads source and buffer in one snapshot waits until the log
-- is decoded as far as that snapshot sees (_await_wal), and reads what came after it by a later one (_late).
--
-- One slot and one publication serve all sources of a database. A source is captured by triggers or from the log, never by
-- both: one transaction that keeps its writers out exchanges them, so that each change is captured exactly once.


-- The replication slot of this database, and its publication.
CREATE OR REPLACE FUNCTION pgtrickle._wal_slot() RETURNS name
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT ('pgtrickle_' || d.oid)::name FROM pg_database d WHERE d.datname = current_database()
$$;


-- Why the write-ahead log of this server cannot be read, and what to do; NULL if it can.
CREATE OR REPLACE FUNCTION pgtrickle._wal_unavailable(OUT reason text, OUT hint text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    engine record;
BEGIN
    SELECT r.rolname, r.rolsuper, r.rolreplication,
           has_database_privilege(r.oid, current_database(), 'CREATE') AS creates INTO engine
    FROM pg_roles r WHERE r.rolname = current_user;
    IF current_setting('wal_level') <> 'logical' THEN
        reason := format('wal_level of PostgreSQL is "%s"', current_setting('wal_level'));
        hint := 'ALTER SYSTEM SET wal_level = logical, and restart PostgreSQL.';
    ELSIF pg_is_in_recovery() THEN
        reason := 'PostgreSQL is a standby';
        hint := 'Connect to the primary.';
    ELSIF getdatabaseencoding() <> 'UTF8' THEN
        reason := format('the encoding of the database is %s', getdatabaseencoding());
        hint := 'It must be UTF8.';
    ELSIF NOT engine.rolsuper AND NOT engine.rolreplication THEN
        reason := format('the server''s role "%s" may not use replication', engine.rolname);
        hint := format('ALTER ROLE %I REPLICATION.', engine.rolname);
    ELSIF NOT engine.rolsuper AND NOT engine.creates THEN
        reason := format('the server''s role "%s" may not create publications', engine.rolname);
        hint := format('GRANT CREATE ON DATABASE %I TO %I.', current_database(), engine.rolname);
    ELSIF current_setting('max_replication_slots')::int = 0 OR current_setting('max_wal_senders')::int = 0 THEN
        reason := 'PostgreSQL allows no replication slots';
        hint := 'Set max_replication_slots and max_wal_senders, and restart PostgreSQL.';
    END IF;
END $$;


-- Raises 55000 where the log cannot be read. A standby refuses all requests, and says so by itself (_request).
CREATE OR REPLACE FUNCTION pgtrickle._check_wal_available() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    culprit record;
BEGIN
    SELECT * INTO culprit FROM pgtrickle._wal_unavailable();
    IF culprit.reason IS NOT NULL AND NOT pg_is_in_recovery() THEN
        PERFORM pgtrickle._raise('55000', 'changes cannot be captured from the write-ahead log: ' || culprit.reason, NULL,
                                 concat_ws(' ', culprit.hint, 'Or use cdc_mode => ''auto'', which goes on with triggers.'));
    END IF;
END $$;


-- Why values of a type are not read from their text by the server, whose rights a check of a user's would have then: a domain in
-- an array, a composite or a range type can bring one in. NULL where there is no such thing.
CREATE OR REPLACE FUNCTION pgtrickle._wal_type_obstacle(typid oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN t.oid < 16384 OR t.typtype = 'e' OR t.typtype = 'b' AND t.typcategory <> 'A'
                     OR t.typcategory = 'A' AND e.typtype IN ('b', 'e') AND e.typcategory <> 'A' THEN NULL
                ELSE format('type %s', format_type(t.oid, NULL)) END
    FROM pgtrickle._below_domains(typid, -1) AS b
    JOIN pg_type t ON t.oid = b.typid LEFT JOIN pg_type e ON e.oid = t.typelem
$$;


-- Why the log does not tell of a table, a partition or a child; NULL if it does. A publication holds logged tables, and to put
-- one into it takes its owner's rights.
CREATE OR REPLACE FUNCTION pgtrickle._wal_relation_obstacle(relation oid) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r pg_class;
    title text := pgtrickle._qualified(relation);
BEGIN
    SELECT * INTO r FROM pg_class c WHERE c.oid = relation;
    RETURN CASE
        WHEN r.oid IS NULL THEN format('relation with OID %s does not exist', relation)
        WHEN r.relkind NOT IN ('r', 'p') THEN format('"%s" is no table', title)
        WHEN r.relpersistence <> 'p' THEN format('"%s" is not logged', title)
        WHEN r.relnamespace = 'pgtrickle_changes'::regnamespace
             OR EXISTS (SELECT FROM pgtrickle.pgt_definitions s WHERE s.pgt_relid = relation)
            THEN format('"%s" is written by the server itself', title)
        WHEN NOT pg_has_role(current_user, r.relowner, 'USAGE')
            THEN format('the server''s role "%s" is no member of "%s", who owns "%s"', current_user, pg_get_userbyid(r.relowner), title)
    END;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._wal_relation_obstacle(oid) FROM PUBLIC;


-- Why PostgreSQL would refuse UPDATE and DELETE of some relations once they are published with REPLICA IDENTITY FULL, or NULL:
-- virtual generated columns are never published, and stored ones must be by all publications (from PostgreSQL 18 on); nor
-- may a publication hold some columns only.
CREATE OR REPLACE FUNCTION pgtrickle._wal_identity_obstacle(relations oid[]) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    culprit record;
    checked CONSTANT boolean := current_setting('server_version_num')::int >= 180000;
BEGIN
    SELECT a.attrelid, a.attname INTO culprit FROM pg_attribute a
    WHERE a.attrelid = ANY (relations) AND a.attgenerated = 'v' AND NOT a.attisdropped ORDER BY a.attrelid, a.attnum LIMIT 1;
    IF FOUND THEN
        RETURN format('column "%s" of "%s" is generated and virtual, which PostgreSQL does not publish',
                      culprit.attname, pgtrickle._qualified(culprit.attrelid));
    END IF;
    SELECT p.pubname, r.prrelid INTO culprit FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
    WHERE r.prrelid = ANY (relations) AND r.prattrs IS NOT NULL AND (p.pubupdate OR p.pubdelete)
      AND p.pubname <> 'pgtrickle_cdc'
    ORDER BY p.oid LIMIT 1;
    IF FOUND THEN
        RETURN format('publication "%s" holds some columns of "%s" only, which does not go with REPLICA IDENTITY FULL',
                      culprit.pubname, pgtrickle._qualified(culprit.prrelid));
    END IF;
    SELECT p.pubname, c.oid INTO culprit FROM pg_publication p, pg_class c
    WHERE checked AND c.oid = ANY (relations)
      AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attgenerated = 's' AND NOT a.attisdropped)
      AND to_jsonb(p)->>'pubgencols' <> 's' AND (p.pubupdate OR p.pubdelete) AND p.pubname <> 'pgtrickle_cdc'
      AND (p.puballtables
           OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = ANY (relations))
           OR EXISTS (SELECT FROM pg_publication_namespace n WHERE n.pnpubid = p.oid AND n.pnnspid = c.relnamespace))
    ORDER BY p.oid, c.oid LIMIT 1;
    IF FOUND THEN
        RETURN format('publication "%s" leaves out the generated columns of "%s", which does not go with REPLICA IDENTITY FULL',
                      culprit.pubname, pgtrickle._qualified(culprit.oid));
    END IF;
    RETURN NULL;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._wal_identity_obstacle(oid[]) FROM PUBLIC;


-- Why changes of these columns of a source cannot be captured from the log, or NULL if they can.
CREATE OR REPLACE FUNCTION pgtrickle._wal_obstacle(source oid, columns text[]) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    relations CONSTANT oid[] := pgtrickle._relations(source);
    title text := pgtrickle._qualified(source);
    reason text;
    culprit record;
BEGIN
    SELECT o.reason INTO reason
    FROM unnest(relations) AS r(oid), pgtrickle._wal_relation_obstacle(r.oid) AS o(reason)
    WHERE o.reason IS NOT NULL ORDER BY r.oid <> source, r.oid LIMIT 1;
    IF FOUND THEN
        RETURN reason;
    END IF;
    SELECT a.attname, a.attgenerated, pgtrickle._wal_type_obstacle(a.atttypid) AS kind INTO culprit
    FROM pg_attribute a
    WHERE a.attrelid = source AND a.attnum > 0 AND NOT a.attisdropped AND a.attname = ANY (columns)
      AND (a.attgenerated = 's' AND current_setting('server_version_num')::int < 180000
           OR pgtrickle._wal_type_obstacle(a.atttypid) IS NOT NULL)
    ORDER BY a.attnum LIMIT 1;
    IF FOUND THEN
        RETURN format('column "%s" of "%s" %s', culprit.attname, title, coalesce(
            'is of ' || culprit.kind, 'is generated, which PostgreSQL publishes from version 18 on'));
    END IF;
    RETURN pgtrickle._wal_identity_obstacle(relations);
END $$;

REVOKE EXECUTE ON FUNCTION pgtrickle._wal_obstacle(oid, text[]) FROM PUBLIC;


-- Raises 0A000 if a stream table asks for its sources to be captured from the log, and one cannot be.
CREATE OR REPLACE FUNCTION pgtrickle._check_wal_sources(pgt_id bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    st record;
    culprit record;
BEGIN
    PERFORM pgtrickle._owner_of(pgt_id);
    SELECT s.requested_cdc_mode INTO st
    FROM pgtrickle.pgt_definitions s WHERE s.pgt_id = _check_wal_sources.pgt_id;
    IF st.requested_cdc_mode IS DISTINCT FROM 'wal' THEN
        RETURN;
    END IF;
    SELECT d.source_relid, pgtrickle._wal_obstacle(d.source_relid, k.captured_columns) AS obstacle INTO culprit
    FROM pgtrickle.pgt_dependencies d JOIN pgtrickle.pgt_captures k USING (source_relid)
    WHERE d.pgt_id = _check_wal_sources.pgt_id AND d.source_type = 'TABLE' AND d.cdc_mode IS NOT NULL
      AND pgtrickle._wal_obstacle(d.source_relid, k.captured_columns) IS NOT NULL
    ORDER BY d.source_relid LIMIT 1;
    IF FOUND THEN
        PERFORM pgtrickle._raise('0A000', format('changes of "%s" cannot be captured from the write-ahead log',
                                                 pgtrickle._qualified(culprit.source_relid)),
                                 culprit.obstacle || '.', 'Use cdc_mode => ''auto'' or ''trigger''.');
    END IF;
END $$;


-- The publication that the slot reads, if it is as it is to be: its OID and row version. Partitions are published as themselves:
-- under the name of their root PostgreSQL leaves out TRUNCATE of a partition, and does not say that the old row of one whose
-- REPLICA IDENTITY is not FULL has its key only.
CREATE OR REPLACE FUNCTION pgtrickle._wal_publication() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT concat_ws(' ', p.oid, p.xmin) FROM pg_publication p
    WHERE p.pubname = 'pgtrickle_cdc' AND p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate AND NOT p.pubviaroot
      AND coalesce(to_jsonb(p)->>'pubgencols', 's') = 's'  -- from PostgreSQL 18 on
$$;


-- Those of some relations that have rows of their own: partitions, not what is partitioned.
CREATE OR REPLACE FUNCTION pgtrickle._with_rows(relations oid[]) RETURNS SETOF oid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT c.oid FROM pg_class c WHERE c.oid = ANY (relations) AND c.relkind <> 'p' ORDER BY c.oid
$$;


-- Identity of what captures a source from the log, as _trigger_state is of its triggers: another one as soon as anything may
-- have been missed. It begins with "wal:".
DROP FUNCTION IF EXISTS pgtrickle._wal_state(oid);  -- of an earlier version
CREATE OR REPLACE FUNCTION pgtrickle._wal_state(relations oid[]) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT 'wal:' || coalesce((
        SELECT md5(concat_ws(' ', pgtrickle._wal_publication(), w.slot_id, string_agg(concat_ws(' ', r.oid, r.xmin), ',' ORDER BY t.relid)))
        FROM pgtrickle.pgt_wal_progress w
        CROSS JOIN pgtrickle._with_rows(relations) AS t(relid)
        LEFT JOIN pg_class c ON c.oid = t.relid AND c.relreplident = 'f'
        LEFT JOIN (pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid AND p.pubname = 'pgtrickle_cdc')
            ON r.prrelid = t.relid AND r.prqual IS NULL AND r.prattrs IS NULL
        WHERE pgtrickle._wal_publication() IS NOT NULL
          AND EXISTS (SELECT FROM pg_get_replication_slots() s
                      WHERE s.slot_name = pgtrickle._wal_slot() AND s.plugin = 'pgoutput' AND s.wal_status <> 'lost')
        GROUP BY w.slot_id
        HAVING bool_and(c.oid IS NOT NULL AND r.oid IS NOT NULL)),
        'nothing')
$$;


-- Whether this transaction may have written to any of some relations: it has a lock as for that.
DROP FUNCTION IF EXISTS pgtrickle._has_written(oid);  -- of an earlier version
CREATE OR REPLACE FUNCTION pgtrickle._has_written(relations oid[]) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM pg_locks l
                   WHERE l.locktype = 'relation' AND l.pid = pg_backend_pid() AND l.granted AND l.relation = ANY (relations)
                     AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
                     AND l.mode IN ('RowExclusiveLock', 'AccessExclusiveLock'))
$$;

REVOKE EXECUTE ON FUNCTION pgtrickle._has_written(oid[]) FROM PUBLIC;


-- Raises 55006 where this transaction has written to a source that is captured from the log, which says so after the commit only.
CREATE OR REPLACE FUNCTION pgtrickle._refuse_own_changes(source oid) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pgtrickle._has_written(pgtrickle._relations(source)) THEN
        PERFORM pgtrickle._raise('55006', format('table "%s" has been changed by this transaction, which is captured when it has committed',
                                                 pgtrickle._qualified(source)),
                                 NULL, 'Commit first. Or use cdc_mode => ''trigger''.');
    END IF;
END $$;

REVOKE EXECUTE ON FUNCTION pgtrickle._refuse_own_changes(oid) FROM PUBLIC;


-- Wait until all that has committed by now is decoded and in the buffers. Changes of transactions that a snapshot sees which was
-- taken before the call are: a commit is in the log before anybody sees it. Raises 55P03 if that takes longer than so many
-- seconds, or nobody decodes.
--
-- Where the log is not on disk yet, which PostgreSQL decodes from there, it is put there (from PostgreSQL 17 on; up to 16 the
-- pump does so every 0.2 s).
CREATE OR REPLACE FUNCTION pgtrickle._await_wal(seconds double precision DEFAULT 30) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    slot name := pgtrickle._wal_slot();
    target pg_lsn := pg_current_wal_insert_lsn();
    confirmed pg_lsn;
    deadline timestamptz := clock_timestamp() + make_interval(secs => least(seconds, 60));
BEGIN
    SELECT s.confirmed_flush_lsn INTO confirmed FROM pg_get_replication_slots() s WHERE s.slot_name = slot;
    IF confirmed >= target THEN
        RETURN true;
    ELSIF pg_current_wal_flush_lsn() < target AND current_setting('server_version_num')::int >= 170000 THEN
        EXECUTE 'SELECT pg_logical_emit_message(false, ''headwater'', '''', true)';
    END IF;
    LOOP
        SELECT s.confirmed_flush_lsn INTO confirmed FROM pg_get_replication_slots() s
        WHERE s.slot_name = slot AND s.wal_status <> 'lost';
        EXIT WHEN confirmed >= target;
        IF confirmed IS NULL OR clock_timestamp() > deadline THEN
            RAISE EXCEPTION USING ERRCODE = '55P03',
                MESSAGE = CASE WHEN confirmed IS NULL THEN format('replication slot "%s" is gone', slot)
                          ELSE format('the write-ahead log was not decoded within %s s', round(seconds)) END,
                HINT = 'See pgtrickle.check_cdc_health().';
        END IF;
        PERFORM pg_sleep(0.001);
    END LOOP;
    RETURN true;
END $$;


-- The number of the last delivery that the snapshot of the calling statement sees; NULL where it sees the source as captured
-- by triggers.
CREATE OR REPLACE FUNCTION pgtrickle._delivered(source oid) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT w.change_id FROM pgtrickle.pgt_captures k CROSS JOIN pgtrickle.pgt_wal_progress w
            WHERE k.source_relid = source AND k.mode = 'WAL');
END $$;


-- What a buffer (the table of the model's type) has got after the `known` delivery, of transactions that a snapshot sees. For
-- statements at READ COMMITTED: as a volatile function it reads with a snapshot of its own, which is later than that of the
-- statement; `awaited` has it called after _await_wal. It has the caller's rights: columns that he may not read are NULL. Raises
-- 40001 where what was decoded meanwhile has ended the capture (_interrupt_wal): it does not tell all then.
CREATE OR REPLACE FUNCTION pgtrickle._late(model anyelement, known bigint, snapshot pg_snapshot, awaited boolean)
RETURNS SETOF anyelement
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    buffer oid := (SELECT t.typrelid FROM pg_type t WHERE t.oid = pg_typeof(model));
    columns text;
BEGIN
    IF known IS NULL OR awaited IS NOT TRUE THEN
        RETURN;
    ELSIF EXISTS (SELECT FROM pgtrickle.pgt_captures k
                  WHERE 'changes_' || k.source_relid = (SELECT b.relname FROM pg_class b WHERE b.oid = buffer)
                    AND k.trigger_state = 'wal:interrupted') THEN
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = format('capture into %s was interrupted', buffer::regclass);
    END IF;
    SELECT string_agg(CASE WHEN has_column_privilege(current_user, buffer, a.attnum, 'SELECT') THEN format('c.%I', a.attname)
                           ELSE format('NULL::%s', format_type(a.atttypid, a.atttypmod)) END, ', ' ORDER BY a.attnum)
    INTO columns FROM pg_attribute a WHERE a.attrelid = buffer AND a.attnum > 0 AND NOT a.attisdropped;
    RETURN QUERY EXECUTE format('SELECT %s FROM %s c WHERE c."__pgt_change_id" > $1 AND NOT (%s)', columns, buffer::regclass,
                                pgtrickle._unseen('$2'))
    USING known, snapshot;
END $$;


-- Whether there is anything to be done about the log: a stream table may want it, a source is captured from it, or there is a
-- slot left. Asked every second.
CREATE OR REPLACE FUNCTION pgtrickle._wal_in_use() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT NOT pg_is_in_recovery() AND (
        EXISTS (SELECT FROM pgtrickle.pgt_captures k WHERE k.mode = 'WAL' OR k.wal_started_at IS NOT NULL)
        OR EXISTS (SELECT FROM pg_get_replication_slots() s WHERE s.slot_name = pgtrickle._wal_slot())
        OR (pgtrickle._setting('pg_trickle.cdc_mode', 'trigger') IN ('auto', 'wal')
            OR EXISTS (SELECT FROM pgtrickle.pgt_definitions s WHERE s.requested_cdc_mode IN ('auto', 'wal')))
           AND EXISTS (SELECT FROM pgtrickle._wal_sources() w WHERE w.wanted AND w.obstacle IS NULL))
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._wal_in_use() FROM PUBLIC;


-- What is to be done about the log: for each source that somebody wants captured from it, or that is.
--   "wanted": all stream tables that need it would have it so; "obstacle": why it cannot be.
CREATE OR REPLACE FUNCTION pgtrickle._wal_sources(
    OUT source oid, OUT mode text, OUT wanted boolean, OUT obstacle text, OUT intact boolean
) RETURNS SETOF record
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    usual text := pgtrickle._setting('pg_trickle.cdc_mode', 'trigger');
    unavailable text := (SELECT u.reason FROM pgtrickle._wal_unavailable() u);
BEGIN
    RETURN QUERY
    SELECT f.source, f.mode, f.wanted,
           CASE WHEN f.wanted THEN coalesce(unavailable, pgtrickle._wal_obstacle(f.source, f.captured_columns),
               CASE WHEN f.subscribed THEN 'a subscription or a history follows it'
                    WHEN f.wal_retry_at > clock_timestamp() THEN f.wal_failure END) END,
           f.mode = 'WAL' AND f.trigger_state = pgtrickle._trigger_state(f.source, f.relations)
    FROM (SELECT k.source_relid AS source, k.mode, k.captured_columns, k.relations, k.trigger_state, k.wal_retry_at, k.wal_failure,
                 coalesce(bool_and(coalesce(s.requested_cdc_mode, usual) IN ('auto', 'wal')), false) AS wanted,
                 EXISTS (SELECT FROM pgtrickle.pgt_subscription_sources u
                         WHERE u.source_relid = k.source_relid AND u.capture_generation IS NOT NULL) AS subscribed
          FROM pgtrickle.pgt_captures k
          LEFT JOIN (pgtrickle.pgt_dependencies d JOIN pgtrickle.pgt_definitions s USING (pgt_id))
              ON d.source_relid = k.source_relid AND d.cdc_mode IS NOT NULL
          WHERE pgtrickle._source_type(k.source_relid) = 'TABLE'
          GROUP BY k.source_relid) AS f
    WHERE f.mode = 'WAL' OR f.wanted
    ORDER BY f.source;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._wal_sources() FROM PUBLIC;


-- Tell whoever listens that a source is captured in another way now.
CREATE OR REPLACE FUNCTION pgtrickle._tell_transition(source oid, from_mode text, to_mode text) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT pg_notify(channel, jsonb_build_object('source_oid', source::bigint, 'source_table', pgtrickle._qualified(source),
                                                 'from', from_mode, 'to', to_mode)::text)
    FROM unnest(ARRAY['pgtrickle_cdc_transition', 'pg_trickle_cdc_transition']) AS channel
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._tell_transition(oid, text, text) FROM PUBLIC;


-- The publication that the slot reads, which holds no table yet. For the engine.
CREATE OR REPLACE FUNCTION pgtrickle._make_publication() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    owner oid := (SELECT p.pubowner FROM pg_publication p WHERE p.pubname = 'pgtrickle_cdc');
BEGIN
    IF owner IS NULL THEN
        CREATE PUBLICATION pgtrickle_cdc;
    ELSIF owner <> to_regrole(quote_ident(current_user))::oid THEN
        PERFORM pgtrickle._raise('42501', 'publication "pgtrickle_cdc" belongs to another role', NULL, 'Drop it, or give it another name.');
    END IF;
    ALTER PUBLICATION pgtrickle_cdc SET (publish = 'insert, update, delete, truncate', publish_via_partition_root = false);
    IF current_setting('server_version_num')::int >= 180000 THEN
        ALTER PUBLICATION pgtrickle_cdc SET (publish_generated_columns = stored);
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._make_publication() FROM PUBLIC;


-- Drop the publication again, where it is ours and holds no table. For the engine.
CREATE OR REPLACE FUNCTION pgtrickle._drop_publication() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_publication p
               WHERE p.pubname = 'pgtrickle_cdc' AND p.pubowner = to_regrole(quote_ident(current_user))::oid
                 AND NOT p.puballtables AND NOT EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid)) THEN
        DROP PUBLICATION pgtrickle_cdc;
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._drop_publication() FROM PUBLIC;


-- Note that a slot was made just now: what an earlier one has not delivered is lost. For the engine.
CREATE OR REPLACE FUNCTION pgtrickle._note_slot() RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO pgtrickle.pgt_wal_progress AS w (change_id) VALUES (nextval('pgtrickle_changes.change_id_seq'))
    ON CONFLICT (is_only) DO UPDATE
    SET slot_id = excluded.slot_id, delivered_lsn = '0/0', change_id = nextval('pgtrickle_changes.change_id_seq')
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._note_slot() FROM PUBLIC;


-- Note that a source waits to be captured from the log.
CREATE OR REPLACE FUNCTION pgtrickle._note_transition(source oid) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE pgtrickle.pgt_captures k SET wal_started_at = clock_timestamp() WHERE k.source_relid = source AND k.wal_started_at IS NULL;
    IF FOUND THEN
        UPDATE pgtrickle.pgt_dependencies d
        SET cdc_mode = 'TRANSITIONING', slot_name = pgtrickle._wal_slot(), transition_started_at = clock_timestamp()
        WHERE d.source_relid = source AND d.cdc_mode = 'TRIGGER';
        PERFORM pgtrickle._tell_transition(source, 'TRIGGER', 'TRANSITIONING');
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._note_transition(oid) FROM PUBLIC;


-- A source that waits to be captured from the log stays with its triggers: what stood in the way lasted longer than
-- pg_trickle.wal_transition_timeout seconds (300). It is tried again after as long. Returns whether that is so now.
CREATE OR REPLACE FUNCTION pgtrickle._give_up_transition(source oid, why text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    patience interval := make_interval(secs => pgtrickle._seconds('pg_trickle.wal_transition_timeout', 300));
BEGIN
    UPDATE pgtrickle.pgt_captures k
    SET wal_started_at = NULL, wal_failure = why, wal_retry_at = clock_timestamp() + patience
    WHERE k.source_relid = source AND k.wal_started_at < clock_timestamp() - patience;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE pgtrickle.pgt_dependencies d SET cdc_mode = 'TRIGGER', slot_name = NULL, transition_started_at = NULL
    WHERE d.source_relid = source AND d.cdc_mode = 'TRANSITIONING';
    PERFORM pgtrickle._tell_transition(source, 'TRANSITIONING', 'TRIGGER');
    RETURN true;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._give_up_transition(oid, text) FROM PUBLIC;


-- Sources that waited to be captured from the log, and are not to be any more, stay with their triggers.
CREATE OR REPLACE FUNCTION pgtrickle._forget_transitions() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source oid;
BEGIN
    FOR source IN
        UPDATE pgtrickle.pgt_captures k SET wal_started_at = NULL
        WHERE k.wal_started_at IS NOT NULL AND k.mode = 'TRIGGER'
          AND k.source_relid NOT IN (SELECT w.source FROM pgtrickle._wal_sources() w WHERE w.wanted AND w.obstacle IS NULL)
        RETURNING k.source_relid
    LOOP
        UPDATE pgtrickle.pgt_dependencies d SET cdc_mode = 'TRIGGER', slot_name = NULL, transition_started_at = NULL
        WHERE d.source_relid = source AND d.cdc_mode = 'TRANSITIONING';
        PERFORM pgtrickle._tell_transition(source, 'TRANSITIONING', 'TRIGGER');
    END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._forget_transitions() FROM PUBLIC;


-- Have the log tell of a table with its old rows. Returns what its REPLICA IDENTITY was, as ALTER TABLE takes it. The caller has it
-- locked; it knows it by its name, which can become another's: the state is NULL then (_wal_state).
CREATE OR REPLACE FUNCTION pgtrickle._publish(relation oid) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    target text := pgtrickle._qualified(relation);
    former text;
BEGIN
    SELECT CASE c.relreplident WHEN 'd' THEN 'DEFAULT' WHEN 'n' THEN 'NOTHING' WHEN 'i' THEN
               coalesce('USING INDEX ' || (SELECT quote_ident(x.relname) FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
                                           WHERE i.indrelid = c.oid AND i.indisreplident), 'NOTHING') ELSE 'FULL' END
    INTO former FROM pg_class c WHERE c.oid = relation;
    EXECUTE format('ALTER TABLE ONLY %s REPLICA IDENTITY FULL', target);
    IF NOT EXISTS (SELECT FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
                   WHERE p.pubname = 'pgtrickle_cdc' AND r.prrelid = relation) THEN
        EXECUTE format('ALTER PUBLICATION pgtrickle_cdc ADD TABLE ONLY %s', target);
    END IF;
    RETURN former;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._publish(oid) FROM PUBLIC;


-- Have the log tell of a table no longer, and its REPLICA IDENTITY be what it was. Nobody who writes to it is left behind, whose
-- changes would be decoded after this.
CREATE OR REPLACE FUNCTION pgtrickle._unpublish(relation oid, former text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    target text := pgtrickle._qualified(relation);
BEGIN
    EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', target);
    IF EXISTS (SELECT FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
               WHERE p.pubname = 'pgtrickle_cdc' AND r.prrelid = relation) THEN
        EXECUTE format('ALTER PUBLICATION pgtrickle_cdc DROP TABLE ONLY %s', target);
    END IF;
    IF former <> 'FULL' AND EXISTS (SELECT FROM pg_class c WHERE c.oid = relation AND c.relreplident = 'f') THEN
        BEGIN
            EXECUTE format('ALTER TABLE ONLY %s REPLICA IDENTITY %s', target, former);
        EXCEPTION WHEN undefined_object OR wrong_object_type OR object_not_in_prerequisite_state THEN
            EXECUTE format('ALTER TABLE ONLY %s REPLICA IDENTITY DEFAULT', target);  -- the index has gone
        END;
    END IF;
    -- Both knew it by its name, which can have become another's.
    IF EXISTS (SELECT FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
               WHERE p.pubname = 'pgtrickle_cdc' AND r.prrelid = relation)
       OR former <> 'FULL' AND EXISTS (SELECT FROM pg_class c WHERE c.oid = relation AND c.relreplident = 'f') THEN
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = format('relation with OID %s was renamed meanwhile', relation);
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._unpublish(oid, text) FROM PUBLIC;


-- Why the triggers of a source, which is locked against everybody, cannot be exchanged for the log just now; NULL if they can.
CREATE OR REPLACE FUNCTION pgtrickle._wal_hindrance(capture pgtrickle.pgt_captures) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    other oid;
BEGIN
    IF capture.source_relid IS NULL THEN
        RETURN 'it is not captured by triggers';
    ELSIF capture.system <> pgtrickle._system() THEN
        RETURN 'the database was restored';  -- the refresh that follows captures it anew
    END IF;
    -- A table that has become a partition: its own capture ends first.
    SELECT k.source_relid INTO other FROM pgtrickle.pgt_captures k
    WHERE k.source_relid <> capture.source_relid AND k.relations && capture.relations LIMIT 1;
    IF FOUND THEN
        RETURN format('"%s" is still captured by itself', pgtrickle._qualified(other));
    END IF;
    RETURN pgtrickle._capture_gap(capture.source_relid, true, capture.relations, capture.trigger_state, true);
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._wal_hindrance(pgtrickle.pgt_captures) FROM PUBLIC;


-- Exchange the triggers of a source for the log, while nobody writes to it: so no transaction is captured by both, or by
-- none. Refreshes of what reads it are kept out as well, since they have their statements made for either. Returns NULL, or
-- why it cannot be done just now. For the engine, in a READ COMMITTED transaction of its own.
CREATE OR REPLACE FUNCTION pgtrickle._begin_wal(source oid) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms' AS $$
DECLARE
    k pgtrickle.pgt_captures;
    hindrance text;
    former jsonb;
BEGIN
    IF NOT pgtrickle._own_source(source) THEN
        RETURN 'somebody is just starting to read its changes';
    END IF;
    PERFORM FROM pgtrickle.pgt_definitions s
    WHERE s.pgt_id IN (SELECT d.pgt_id FROM pgtrickle.pgt_dependencies d WHERE d.source_relid = source)
    ORDER BY s.pgt_id FOR UPDATE;
    IF pgtrickle._qualified(source) IS NULL THEN
        RETURN 'it was dropped';
    END IF;
    -- With its partitions, or children.
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', pgtrickle._qualified(source));
    SELECT * INTO k FROM pgtrickle.pgt_captures c WHERE c.source_relid = source AND c.mode = 'TRIGGER';
    hindrance := pgtrickle._wal_hindrance(k);
    IF hindrance IS NOT NULL THEN
        RETURN hindrance;
    END IF;
    PERFORM pgtrickle._drop_capture_triggers(source, relation) FROM unnest(k.relations) AS relation;
    SELECT jsonb_object_agg(relation, pgtrickle._publish(relation)) INTO former FROM pgtrickle._with_rows(k.relations) AS relation;
    -- Deliveries from now on have greater numbers than what triggers have left.
    UPDATE pgtrickle.pgt_wal_progress w SET change_id = nextval('pgtrickle_changes.change_id_seq');
    UPDATE pgtrickle.pgt_captures c
    SET mode = 'WAL', switched = c.switched + 1, slot_name = pgtrickle._wal_slot(), former_identities = coalesce(former, '{}'),
        trigger_state = pgtrickle._wal_state(k.relations), wal_started_at = NULL, wal_failure = NULL, wal_retry_at = NULL
    WHERE c.source_relid = source;
    IF pgtrickle._wal_state(k.relations) = 'wal:nothing' THEN
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = format('relation with OID %s was renamed meanwhile', source);
    END IF;
    UPDATE pgtrickle.pgt_dependencies d SET cdc_mode = 'WAL', slot_name = pgtrickle._wal_slot(), transition_started_at = NULL
    WHERE d.source_relid = source AND d.cdc_mode IS NOT NULL;
    -- A transaction with an older snapshot cannot lock them any more.
    UPDATE pgtrickle.pgt_definitions s SET updated_at = clock_timestamp()
    WHERE s.pgt_id IN (SELECT d.pgt_id FROM pgtrickle.pgt_dependencies d WHERE d.source_relid = source);
    PERFORM pgtrickle._tell_transition(source, 'TRANSITIONING', 'WAL');
    RETURN NULL;
EXCEPTION WHEN lock_not_available OR deadlock_detected OR serialization_failure OR insufficient_privilege THEN
    RETURN SQLERRM;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._begin_wal(oid) FROM PUBLIC;


-- Capture a source from the log no longer; the caller has it locked against everybody, and puts triggers on it. Returns
-- whether nothing was missed: it was intact until now, and all that has been committed is in the buffer.
CREATE OR REPLACE FUNCTION pgtrickle._end_wal(source oid, intact boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    former CONSTANT jsonb := (SELECT k.former_identities FROM pgtrickle.pgt_captures k WHERE k.source_relid = source);
BEGIN
    IF intact THEN
        BEGIN
            PERFORM pgtrickle._await_wal(3);
        EXCEPTION WHEN lock_not_available THEN
            intact := false;
        END;
    END IF;
    UPDATE pgtrickle.pgt_captures k
    SET mode = 'TRIGGER', switched = k.switched + 1, slot_name = NULL, former_identities = NULL, trigger_state = '',
        wal_started_at = NULL
    WHERE k.source_relid = source;
    -- Also of what has ceased to be a partition, or child.
    PERFORM pgtrickle._unpublish(f.relation::oid, f.identity) FROM jsonb_each_text(former) AS f(relation, identity)
    WHERE pgtrickle._qualified(f.relation::oid) IS NOT NULL;
    UPDATE pgtrickle.pgt_dependencies d SET cdc_mode = 'TRIGGER', slot_name = NULL, transition_started_at = NULL
    WHERE d.source_relid = source AND d.cdc_mode IS NOT NULL;
    PERFORM pgtrickle._tell_transition(source, 'WAL', 'TRIGGER');
    RETURN intact;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._end_wal(oid, boolean) FROM PUBLIC;


-- Capture a source by triggers again, in the place of the log. Returns NULL, or why it cannot be done just now. For the engine, in
-- a READ COMMITTED transaction of its own.
CREATE OR REPLACE FUNCTION pgtrickle._back_to_triggers(source oid) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms' AS $$
DECLARE
    k pgtrickle.pgt_captures;
BEGIN
    PERFORM pgtrickle._share_source(source);
    IF pgtrickle._qualified(source) IS NULL THEN
        RETURN 'it was dropped';
    END IF;
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', pgtrickle._qualified(source));
    SELECT * INTO k FROM pgtrickle.pgt_captures c WHERE c.source_relid = source AND c.mode = 'WAL';
    IF FOUND THEN
        PERFORM pgtrickle._capture_by_triggers(k, pgtrickle._end_wal(
            source, pgtrickle._capture_gap(source, true, k.relations, k.trigger_state, true) IS NULL));
    END IF;
    RETURN NULL;
EXCEPTION WHEN lock_not_available OR deadlock_detected OR serialization_failure OR insufficient_privilege THEN
    RETURN SQLERRM;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._back_to_triggers(oid) FROM PUBLIC;


-- Put triggers on a source that is locked, for what it was captured for from the log. Unless nothing was missed whoever reads it
-- starts anew.
CREATE OR REPLACE FUNCTION pgtrickle._capture_by_triggers(capture pgtrickle.pgt_captures, complete boolean) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    source oid := capture.source_relid;
    relations oid[] := pgtrickle._relations(source);
BEGIN
    PERFORM pgtrickle._write_capture_functions(source, pgtrickle._capturable(source, capture.captured_columns));
    PERFORM pgtrickle._pin_columns(source, pgtrickle._capturable(source, capture.captured_columns));
    PERFORM pgtrickle._place_capture_triggers(source, relations);
    UPDATE pgtrickle.pgt_captures c
    SET relations = relations, trigger_state = pgtrickle._trigger_state(source, relations),
        generation = CASE WHEN complete THEN c.generation ELSE gen_random_uuid() END
    WHERE c.source_relid = source;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._capture_by_triggers(pgtrickle.pgt_captures, boolean) FROM PUBLIC;


-- What was captured of a source from the log cannot be trusted from here on: the next refresh captures it by triggers and starts
-- anew. The log is tried again after pg_trickle.wal_transition_timeout. For the engine.
CREATE OR REPLACE FUNCTION pgtrickle._interrupt_wal(source oid, why text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE pgtrickle.pgt_captures k
    SET trigger_state = 'wal:interrupted', generation = gen_random_uuid(), wal_failure = why,
        wal_retry_at = clock_timestamp() + make_interval(secs => pgtrickle._seconds('pg_trickle.wal_transition_timeout', 300))
    WHERE k.source_relid = source AND k.mode = 'WAL';
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._interrupt_wal(oid, text) FROM PUBLIC;


-- Begin a delivery: until its transaction ends nobody changes the buffers, and it alone numbers changes from the log. Raises
-- 55000 unless the process holds the lease. Returns {"change_id", "next_xid", "delivered_lsn", "targets": [{"source",
-- "relations" (OIDs of the tables that have its rows), "columns": [[name, OIDs of types that it may have in the log, type modifier (NULL: any)]]}]}.
CREATE OR REPLACE FUNCTION pgtrickle._begin_delivery(holder int) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    number bigint;
    buffer text;
BEGIN
    IF pgtrickle._lease_holder('wal') IS DISTINCT FROM holder THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'another server decodes the write-ahead log';
    END IF;
    UPDATE pgtrickle.pgt_wal_progress w SET change_id = nextval('pgtrickle_changes.change_id_seq') RETURNING w.change_id INTO number;
    FOR buffer IN
        SELECT format('pgtrickle_changes.%I', 'changes_' || k.source_relid) FROM pgtrickle.pgt_captures k
        WHERE k.mode = 'WAL' AND k.trigger_state <> 'wal:interrupted' ORDER BY k.source_relid
    LOOP
        BEGIN
            EXECUTE format('LOCK TABLE %s IN ROW EXCLUSIVE MODE', buffer);
        EXCEPTION WHEN undefined_table THEN
            NULL;  -- its last reader has gone
        END;
    END LOOP;
    RETURN (
        SELECT jsonb_build_object(
            'change_id', number, 'next_xid', pg_snapshot_xmax(pg_current_snapshot())::text,
            'delivered_lsn', (SELECT w.delivered_lsn::text FROM pgtrickle.pgt_wal_progress w),
            'targets', coalesce(jsonb_agg(jsonb_build_object(
                'source', k.source_relid::bigint, 'columns', c.columns,
                'relations', ARRAY(SELECT r::bigint FROM unnest(k.relations) AS r))), '[]'))
        FROM pgtrickle.pgt_captures k
        CROSS JOIN LATERAL (
            SELECT jsonb_agg(jsonb_build_array(b.attname, CASE WHEN t.typid = b.atttypid
                                                               THEN jsonb_build_array(b.atttypid::bigint, a.atttypid::bigint)
                                                               ELSE jsonb_build_array(b.atttypid::bigint) END,
                                               CASE WHEN a.atttypid = b.atttypid THEN b.atttypmod END) ORDER BY b.attnum) AS columns
            FROM pg_attribute b
            LEFT JOIN pg_attribute a ON a.attrelid = k.source_relid AND a.attname = b.attname AND a.attnum > 0 AND NOT a.attisdropped
            LEFT JOIN LATERAL pgtrickle._below_domains(a.atttypid, a.atttypmod) AS t ON a.attrelid IS NOT NULL
            WHERE b.attrelid = to_regclass('pgtrickle_changes.changes_' || k.source_relid) AND b.attnum > 0 AND NOT b.attisdropped
              AND b.attname = ANY (k.captured_columns)) AS c
        WHERE k.mode = 'WAL' AND k.trigger_state <> 'wal:interrupted'
          AND to_regclass('pgtrickle_changes.changes_' || k.source_relid) IS NOT NULL);
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._begin_delivery(int) FROM PUBLIC;


-- The replication slot of captures from the write-ahead log, once for each source that is captured by it.
CREATE OR REPLACE FUNCTION pgtrickle.slot_health()
RETURNS TABLE (slot_name text, source_relid bigint, active bool, retained_wal_bytes bigint, wal_status text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT k.slot_name, k.source_relid::bigint, coalesce(s.active, false),
           pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END,
                           s.restart_lsn)::bigint,
           coalesce(s.wal_status, 'missing')
    FROM pgtrickle.pgt_captures k LEFT JOIN pg_replication_slots s ON s.slot_name = k.slot_name
    WHERE k.mode = 'WAL' ORDER BY k.source_relid
$$;


-- How each source is captured, and what is wrong with that, if anything.
CREATE OR REPLACE FUNCTION pgtrickle.check_cdc_health()
RETURNS TABLE (source_relid bigint, source_table text, cdc_mode text, slot_name text, lag_bytes bigint,
               confirmed_lsn text, alert text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT k.source_relid::bigint, pgtrickle._qualified(k.source_relid),
           CASE WHEN k.mode = 'WAL' THEN 'WAL' WHEN k.wal_started_at IS NOT NULL THEN 'TRANSITIONING' ELSE 'TRIGGER' END,
           k.slot_name, l.lag::bigint, s.confirmed_flush_lsn::text,
           CASE WHEN k.mode = 'TRIGGER' THEN coalesce('wal_not_possible: ' || w.obstacle, CASE WHEN
                        k.trigger_state <> pgtrickle._trigger_state(k.source_relid, k.relations) THEN 'capture_interrupted' END)
                WHEN pg_is_in_recovery() THEN NULL  -- the slot is the primary's
                WHEN s.slot_name IS NULL THEN 'replication_slot_missing'
                WHEN s.wal_status = 'lost' THEN 'replication_slot_lost'
                WHEN NOT w.intact THEN concat_ws(': ', 'capture_interrupted', k.wal_failure)
                WHEN l.lag > pgtrickle._seconds('pg_trickle.slot_lag_critical_threshold_mb', 1024) * 1048576
                    THEN 'slot_lag_exceeds_threshold'
                WHEN NOT s.active THEN 'replication_slot_inactive' END
    FROM pgtrickle.pgt_captures k
    LEFT JOIN pg_replication_slots s ON s.slot_name = k.slot_name
    LEFT JOIN pgtrickle._wal_sources() w ON w.source = k.source_relid
    CROSS JOIN LATERAL (
        SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_wal_lsn_diff(pg_current_wal_lsn(), s.confirmed_flush_lsn) END AS lag) AS l
    ORDER BY k.source_relid;
END $$;
