-- Guards: administrators may write to the tables. What would leave a queue broken is refused, with what to do instead.


-- Whether the role that is at work is the one that these functions belong to.
CREATE OR REPLACE FUNCTION pgque._is_own_role() RETURNS boolean
LANGUAGE sql STABLE RETURN (SELECT pg_get_userbyid(n.nspowner) = current_user FROM pg_namespace n WHERE n.nspname = 'pgque');


CREATE OR REPLACE FUNCTION pgque._refuse(what text, instead text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = what, HINT = instead;
END $$;


-- A queue is a row and its tables: they come and go together. Whoever attaches a hook is written down with it.
CREATE OR REPLACE FUNCTION pgque._guard_queue() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF to_regclass(OLD.queue_data_pfx) IS NOT NULL THEN
            PERFORM pgque._refuse(format('queue "%s" has tables, and cannot be deleted', OLD.queue_name), 'Call pgque.drop_queue().');
        END IF;
        RETURN OLD;
    ELSIF TG_OP = 'INSERT' THEN
        IF NOT pgque._is_own_role() AND to_regclass(NEW.queue_data_pfx) IS NULL THEN
            PERFORM pgque._refuse(format('queue "%s" would have no tables', NEW.queue_name), 'Call pgque.create_queue().');
        END IF;
    ELSIF (NEW.queue_id, NEW.queue_cluster) IS DISTINCT FROM (OLD.queue_id, OLD.queue_cluster) AND NOT pgque._is_own_role() THEN
        PERFORM pgque._refuse('queue_id and queue_cluster tell which tables and transactions are a queue''s, and cannot be changed',
                              'Create another queue.');
    END IF;
    IF NEW.queue_extra_maint IS NULL THEN
        NEW.queue_extra_maint_roles := NULL;
    ELSIF TG_OP = 'INSERT' THEN
        NEW.queue_extra_maint_roles := array_fill(quote_ident(current_user)::regrole, ARRAY[cardinality(NEW.queue_extra_maint)]);
    ELSE
        NEW.queue_extra_maint_roles := array(
            SELECT CASE WHEN array_position(OLD.queue_extra_maint, h.hook) IS NULL THEN quote_ident(current_user)::regrole
                        ELSE OLD.queue_extra_maint_roles[array_position(OLD.queue_extra_maint, h.hook)] END
              FROM unnest(NEW.queue_extra_maint) WITH ORDINALITY AS h (hook, number) ORDER BY h.number);
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER guard_queue
    BEFORE INSERT OR UPDATE OR DELETE ON pgque.queue
    FOR EACH ROW EXECUTE FUNCTION pgque._guard_queue();


CREATE OR REPLACE FUNCTION pgque._guard_truncate() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgque._refuse(format('table pgque.%I cannot be emptied: queues would be left that cannot be read', TG_TABLE_NAME),
                          'Call pgque.drop_queue() for each queue.');
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER guard_queue_truncate
    BEFORE TRUNCATE ON pgque.queue FOR EACH STATEMENT EXECUTE FUNCTION pgque._guard_truncate();

CREATE OR REPLACE TRIGGER guard_tick_truncate
    BEFORE TRUNCATE ON pgque.tick FOR EACH STATEMENT EXECUTE FUNCTION pgque._guard_truncate();


-- A consumer's batch is bounded by ticks.
CREATE OR REPLACE FUNCTION pgque._guard_tick_delete() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    needed record;
BEGIN
    SELECT g.tick_id, q.queue_name, c.co_name INTO needed
      FROM gone g
      JOIN pgque.subscription s ON s.sub_queue = g.tick_queue AND g.tick_id IN (s.sub_last_tick, s.sub_next_tick)
      JOIN pgque.queue q ON q.queue_id = g.tick_queue
      JOIN pgque.consumer c ON c.co_id = s.sub_consumer
     LIMIT 1;
    IF FOUND THEN
        PERFORM pgque._refuse(format('tick %s of queue "%s" cannot be deleted: consumer "%s" stands there',
                                     needed.tick_id, needed.queue_name, needed.co_name),
                              'Rotation deletes ticks that nobody needs.');
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER guard_tick_delete
    AFTER DELETE ON pgque.tick REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION pgque._guard_tick_delete();


CREATE OR REPLACE FUNCTION pgque._guard_tick_update() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT pgque._is_own_role() THEN
        PERFORM pgque._refuse('a tick says which events are before it, and cannot be changed', 'Only its tick_time can be.');
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER guard_tick_update
    AFTER UPDATE OF tick_queue, tick_id, tick_snapshot, tick_event_seq ON pgque.tick
    FOR EACH STATEMENT EXECUTE FUNCTION pgque._guard_tick_update();


-- The members of a group, and nobody else, belong to a subscription. Not a CHECK, which PostgreSQL would read from its text at each batch.
CREATE OR REPLACE FUNCTION pgque._guard_role() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NEW.sub_role NOT IN ('normal', 'coop_main', 'coop_member') OR (NEW.sub_role = 'coop_member') <> (NEW.sub_main IS NOT NULL) THEN
        RAISE EXCEPTION 'subscription % cannot have role "%"', NEW.sub_id, NEW.sub_role
            USING ERRCODE = '23514', SCHEMA = 'pgque', TABLE = 'subscription', CONSTRAINT = 'guard_subscription_role',
                  DETAIL = 'It is one of normal, coop_main, coop_member; a coop_member has a sub_main.',
                  HINT = 'Call pgque.register_subconsumer() or pgque.unregister_subconsumer().';
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER guard_subscription_role
    AFTER INSERT OR UPDATE OF sub_role, sub_main ON pgque.subscription FOR EACH ROW EXECUTE FUNCTION pgque._guard_role();


-- Who gets batches of his own stands at a tick; the others have a main row, which has no batch. It runs twice for each batch: qualified names
-- cost nothing, a SET clause as much as all else in it, and a CHECK, which PostgreSQL reads from its text, half as much again.
CREATE OR REPLACE FUNCTION pgque._guard_batch() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.sub_last_tick IS NULL AND NEW.sub_main IS NULL
       OR NEW.sub_batch IS NOT NULL AND NEW.sub_role OPERATOR(pg_catalog.=) 'coop_main' THEN
        RAISE EXCEPTION USING
            ERRCODE := '23514', MESSAGE := 'new row for relation "subscription" violates check constraint "subscription_check"',
            DETAIL := 'A consumer stands at a tick; a group of subconsumers has no batch, its members have.';
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER guard_subscription_batch
    AFTER INSERT OR UPDATE OF sub_batch, sub_last_tick, sub_role, sub_main ON pgque.subscription
    FOR EACH ROW EXECUTE FUNCTION pgque._guard_batch();


-- Whether a function of this schema is somebody's, neither its owner's nor a superuser's.
CREATE OR REPLACE FUNCTION pgque._is_others(owner oid) RETURNS boolean
LANGUAGE sql STABLE RETURN NOT EXISTS (
    SELECT FROM pg_roles r WHERE r.oid = owner
       AND (r.rolsuper OR r.oid = (SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = 'pgque')));


-- Why a function of somebody's may not be in this schema; null where it may. Whoever creates one may ask.
CREATE OR REPLACE FUNCTION pgque._name_objection(function oid) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE
        WHEN p.prokind <> 'f' THEN 'schema pgque is for plain functions'
        WHEN p.proname ~ '^_' THEN 'names in schema pgque that begin with an underscore are the server''s'
        WHEN EXISTS (SELECT FROM pg_proc o WHERE o.pronamespace = p.pronamespace AND o.proname = p.proname
                      AND NOT pgque._is_others(o.proowner)) THEN
            format('schema pgque has a function %s already, which this could be taken for', p.proname)
        END
      FROM pg_proc p WHERE p.oid = function
$$;
