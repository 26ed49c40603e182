-- What inserts events is generated into the public functions: see functions/15_dispatch.sql.

DROP FUNCTION IF EXISTS pgque._insert_event(text, text, text, text, text, text, text);
DROP FUNCTION IF EXISTS pgque._insert_events(text, text, text[]);
DROP FUNCTION IF EXISTS pgque._lock_queues();
DROP FUNCTION IF EXISTS pgque._decision(integer[], text);
