-- Hooks run with the rights of the role that attached them: see functions/62_hooks.sql.

ALTER TABLE pgque.queue ADD COLUMN queue_extra_maint_roles regrole[];

-- Until now it was the owner of the hook.
UPDATE pgque.queue q SET queue_extra_maint_roles = array(
    SELECT (SELECT p.proowner::regrole
              FROM pg_proc p
              JOIN pg_namespace n ON n.oid = p.pronamespace
              JOIN pg_roles r ON r.oid = p.proowner
             WHERE n.nspname || '.' || p.proname = h.hook AND p.pronargs = 1 AND p.proargtypes[0] = 'text'::regtype
               AND p.prosecdef AND NOT r.rolsuper
               AND p.proowner <> (SELECT own.nspowner FROM pg_namespace own WHERE own.nspname = 'pgque'))
      FROM unnest(q.queue_extra_maint) WITH ORDINALITY AS h (hook, number) ORDER BY h.number)
 WHERE q.queue_extra_maint IS NOT NULL;
