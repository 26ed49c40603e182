-- Circles: stream tables that read each other, and are refreshed to a fixed point in one transaction (engine/refresh/circle.py).
--
-- A circle is a strongly connected component of what stream tables read, and its number (scc_id) the lowest id among its members. It
-- follows from pgt_dependencies: _settle_circle writes it down whenever these change.


-- The stream tables that read one and are read by it, directly or through others, itself among them, by id; NULL if there is no other.
CREATE OR REPLACE FUNCTION pgtrickle._circle_of(pgt_id bigint) RETURNS bigint[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE below AS (
        SELECT s.pgt_id, s.pgt_relid FROM pgtrickle.pgt_definitions s WHERE s.pgt_id = _circle_of.pgt_id
        UNION
        SELECT s.pgt_id, s.pgt_relid
        FROM below b
        JOIN pgtrickle.pgt_dependencies d ON d.source_relid = b.pgt_relid
        JOIN pgtrickle.pgt_definitions s ON s.pgt_id = d.pgt_id
    ), circle AS (
        SELECT b.pgt_id, b.pgt_relid FROM below b WHERE b.pgt_id = _circle_of.pgt_id
        UNION
        SELECT b.pgt_id, b.pgt_relid
        FROM circle c JOIN pgtrickle.pgt_dependencies d ON d.pgt_id = c.pgt_id JOIN below b ON b.pgt_relid = d.source_relid
    )
    SELECT array_agg(c.pgt_id ORDER BY c.pgt_id) FROM circle c HAVING count(*) > 1
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._circle_of(bigint) FROM PUBLIC;


-- The members of a circle, by its number.
CREATE OR REPLACE FUNCTION pgtrickle._circle_members(scc_id int) RETURNS bigint[]
LANGUAGE sql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
    SELECT array_agg(s.pgt_id ORDER BY s.pgt_id) FROM pgtrickle.pgt_definitions s WHERE s.scc_id = _circle_members.scc_id
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._circle_members(int) FROM PUBLIC;


-- Write down which circle a stream table is a member of, after what it reads has changed; and those that were in one with it. Members
-- wait for each other: nobody makes a circle with stream tables of roles that the owner may not act for, unless they have been
-- in one with it (within).
CREATE OR REPLACE FUNCTION pgtrickle._settle_circle(pgt_id bigint, within boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    st record;
    circle bigint[] := pgtrickle._circle_of(pgt_id);
    others bigint[];
BEGIN
    SELECT s.scc_id, s.pgt_owner INTO st FROM pgtrickle.pgt_definitions s WHERE s.pgt_id = _settle_circle.pgt_id;
    IF NOT within AND EXISTS (SELECT FROM pgtrickle.pgt_definitions s
                              WHERE s.pgt_id = ANY (circle) AND (s.scc_id = st.scc_id) IS NOT TRUE
                                AND NOT pgtrickle._may_become(st.pgt_owner, s.pgt_owner)) THEN
        circle := NULL;
    END IF;
    IF circle IS NOT DISTINCT FROM pgtrickle._circle_members(st.scc_id) THEN
        RETURN;
    END IF;
    UPDATE pgtrickle.pgt_definitions s SET scc_id = circle[1]::int, last_fixpoint_iterations = NULL WHERE s.pgt_id = ANY (circle);
    WITH former AS (
        UPDATE pgtrickle.pgt_definitions s SET scc_id = NULL, last_fixpoint_iterations = NULL
        WHERE s.scc_id = st.scc_id AND s.pgt_id <> ALL (coalesce(circle, '{}')) RETURNING s.pgt_id
    )
    SELECT array_agg(f.pgt_id) INTO others FROM former f;
    PERFORM pgtrickle._settle_circle(o, true) FROM unnest(others) AS o WHERE o <> pgt_id;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._settle_circle(bigint, boolean) FROM PUBLIC;


-- When a transaction is committed in which a stream table has come to read another one: raises 40001 if that closes a circle with what
-- another transaction has done, which this one did not see when it looked for one.
CREATE OR REPLACE FUNCTION pgtrickle._check_circle_known() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    LOCK TABLE pgtrickle.pgt_circles_lock IN EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM pgtrickle.pgt_definitions s JOIN pgtrickle.pgt_definitions o ON o.pgt_id = NEW.pgt_id
               WHERE s.pgt_id = ANY (pgtrickle._circle_of(NEW.pgt_id)) AND (s.scc_id = o.scc_id) IS NOT TRUE) THEN
        PERFORM pgtrickle._raise('40001', 'could not serialize access due to a concurrent change of what stream tables read',
            format('Stream table "%s" would be computed from itself.',
                   (SELECT s.pgt_name FROM pgtrickle.pgt_definitions s WHERE s.pgt_id = NEW.pgt_id)),
            'Try again.');
    END IF;
    RETURN NULL;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._check_circle_known() FROM PUBLIC;
DROP TRIGGER IF EXISTS circle_known ON pgtrickle.pgt_dependencies;
CREATE CONSTRAINT TRIGGER circle_known AFTER INSERT ON pgtrickle.pgt_dependencies DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.source_type = 'STREAM_TABLE') EXECUTE FUNCTION pgtrickle._check_circle_known();


-- A stream table that goes leaves its circle.
CREATE OR REPLACE FUNCTION pgtrickle._leave_circle() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._settle_circle(m, true) FROM unnest(pgtrickle._circle_members(OLD.scc_id)) AS m;
    RETURN NULL;
END $$;
REVOKE EXECUTE ON FUNCTION pgtrickle._leave_circle() FROM PUBLIC;

CREATE OR REPLACE TRIGGER leave_circle AFTER DELETE ON pgtrickle.pgt_definitions
    FOR EACH ROW WHEN (OLD.scc_id IS NOT NULL) EXECUTE FUNCTION pgtrickle._leave_circle();


-- The name of a source outside of its circle that has lost rows, as far as a stream table reads their columns, by changes that its
-- frontier has not seen; or, where a frontier before is given, by those that it has seen since. NULL if there is none. What was taken away
-- and given back is not lost. Raises 42501 unless the caller may act for the owner.
CREATE OR REPLACE FUNCTION pgtrickle._rows_went(pgt_id bigint, before jsonb DEFAULT NULL) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    went boolean;
    d record;
BEGIN
    PERFORM pgtrickle._owner_of(_rows_went.pgt_id);
    FOR d IN
        SELECT to_regclass('pgtrickle_changes.changes_' || p.source_relid) AS buffer, p.source_relid, p.columns_used,
               CASE WHEN _rows_went.before IS NULL THEN s.frontier ELSE _rows_went.before END AS since,
               CASE WHEN _rows_went.before IS NOT NULL THEN s.frontier END AS until
        FROM pgtrickle.pgt_dependencies p JOIN pgtrickle.pgt_definitions s ON s.pgt_id = p.pgt_id
        WHERE p.pgt_id = _rows_went.pgt_id AND p.cdc_mode IS NOT NULL
          AND NOT EXISTS (SELECT FROM pgtrickle.pgt_definitions m WHERE m.pgt_relid = p.source_relid AND m.scc_id = s.scc_id)
    LOOP
        CONTINUE WHEN d.buffer IS NULL OR d.since->>'snapshot' IS NULL;
        EXECUTE format($q$
            SELECT EXISTS (
                SELECT FROM (
                    SELECT i.weight, i.written, i.image *= first_value(i.image) OVER (PARTITION BY i.written) AS alike
                    FROM (SELECT c."__pgt_w" AS weight, %1$s AS image, (%1$s)::text COLLATE "C" AS written
                          FROM %2$s c WHERE %3$s AND ($4 IS NULL OR NOT (%4$s))) AS i) AS n
                GROUP BY n.written
                HAVING sum(n.weight) < 0 OR bool_or(n.weight = 0) OR NOT bool_and(n.alike))$q$,
            pgtrickle._image(d.buffer, d.columns_used), d.buffer, pgtrickle._unseen('$1', '$2', '$3'),
            pgtrickle._unseen('$4', '$5', '$6'))
        INTO went
        USING (d.since->>'snapshot')::pg_snapshot, (d.since->>'xid')::xid8, coalesce((d.since->>'change_id')::bigint, 0),
              (d.until->>'snapshot')::pg_snapshot, (d.until->>'xid')::xid8, coalesce((d.until->>'change_id')::bigint, 0);
        IF went THEN
            RETURN pgtrickle._qualified(d.source_relid);
        END IF;
    END LOOP;
    RETURN NULL;
END $$;


-- The row image in a buffer, as a record of these captured columns (NULL: of all), of an alias c.
CREATE OR REPLACE FUNCTION pgtrickle._image(buffer regclass, columns text[] DEFAULT NULL) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('ROW(%s)', string_agg(format('c.%I', a.attname), ', ' ORDER BY a.attnum))
    FROM pg_attribute a
    WHERE a.attrelid = buffer AND a.attnum > 0 AND NOT a.attisdropped
      AND a.attname NOT IN ('__pgt_change_id', '__pgt_xid', '__pgt_w') AND (columns IS NULL OR a.attname = ANY (columns))
$$;
REVOKE EXECUTE ON FUNCTION pgtrickle._image(regclass, text[]) FROM PUBLIC;


-- Begin the refresh of stream tables that read each other: the number of the last statement whose changes were captured before. Raises
-- 42501 unless the caller may act for their owners.
CREATE OR REPLACE FUNCTION pgtrickle._begin_circle(members bigint[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._owner_of(m) FROM unnest(members) AS m;
    RETURN (SELECT CASE WHEN q.is_called THEN q.last_value ELSE 0 END FROM pgtrickle_changes.change_id_seq q);
END $$;


-- Remove what has been captured of a stream table by this transaction, after a change, and cancels out: readers are to find what has
-- become different in it, and not the way there. To be called while nobody has a frontier in between. Raises 42501 unless the
-- caller may act for the owner.
CREATE OR REPLACE FUNCTION pgtrickle._consolidate_changes(pgt_id bigint, after bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    buffer regclass;
    image text;
BEGIN
    PERFORM pgtrickle._owner_of(_consolidate_changes.pgt_id);
    buffer := to_regclass(format('pgtrickle_changes.%I', 'changes_' || pgtrickle._storage_of(_consolidate_changes.pgt_id)));
    IF buffer IS NULL THEN
        RETURN;
    END IF;
    image := pgtrickle._image(buffer);
    -- Images are brought together by their texts; where those of one text are not all the same to the byte, they stay.
    EXECUTE format($q$
        WITH mine AS (
            SELECT c.ctid AS tid, c."__pgt_w" AS weight, c."__pgt_change_id" AS change_id, %1$s AS image,
                   (%1$s)::text COLLATE "C" AS written
            FROM %2$s c
            WHERE c."__pgt_xid" = pg_current_xact_id() AND c."__pgt_change_id" > $1 AND c."__pgt_w" <> 0
        ), counted AS (
            SELECT m.tid, m.written, m.image *= first_value(m.image) OVER (PARTITION BY m.written) AS alike,
                   row_number() OVER (PARTITION BY m.written, m.weight ORDER BY m.change_id) AS place,
                   count(*) FILTER (WHERE m.weight = -1) OVER (PARTITION BY m.written) AS went,
                   count(*) FILTER (WHERE m.weight = 1) OVER (PARTITION BY m.written) AS came
            FROM mine m
        ), judged AS (
            SELECT c.tid, c.place <= least(c.went, c.came) AND bool_and(c.alike) OVER (PARTITION BY c.written) AS superfluous
            FROM counted c
        )
        DELETE FROM %2$s d WHERE d.ctid = ANY (ARRAY(SELECT j.tid FROM judged j WHERE j.superfluous))$q$, image, buffer)
    USING after;
END $$;


-- Write down that stream tables that read each other have come to a fixed point, after so many rounds. Raises 42501 unless the caller
-- may act for their owners.
CREATE OR REPLACE FUNCTION pgtrickle._finish_circle(members bigint[], iterations int) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle._owner_of(m) FROM unnest(members) AS m;
    UPDATE pgtrickle.pgt_definitions s SET last_fixpoint_iterations = iterations
    WHERE s.pgt_id = ANY (members) AND s.scc_id IS NOT NULL;
END $$;
