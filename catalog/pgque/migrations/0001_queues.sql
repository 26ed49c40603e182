-- The catalog of queues: queues, ticks, consumers, subscriptions, retries, dead letters, and the shape of events.
--
-- A queue is a parent table `event_<id>` with three children `event_<id>_0` to `_2`. Events are only ever inserted, into
-- the child that `queue_cur_table` names; a child is emptied by TRUNCATE once every consumer has passed its events.
-- A tick is a snapshot. A batch is what became visible between two ticks.

CREATE SCHEMA IF NOT EXISTS pgque;

CREATE TABLE pgque.schema_version (
    version text PRIMARY KEY,
    description text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE pgque.config (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    tick_period_ms int4 NOT NULL DEFAULT 100 CHECK (tick_period_ms BETWEEN 1 AND 1000 AND 1000 % tick_period_ms = 0),
    ticker_job_id bigint,
    retry_job_id bigint,
    maint_job_id bigint,
    step2_job_id bigint,
    clock_stopped boolean NOT NULL DEFAULT false,
    installed_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO pgque.config DEFAULT VALUES;

CREATE TABLE pgque.queue (
    queue_id serial PRIMARY KEY,
    queue_name text NOT NULL UNIQUE,
    queue_ntables int4 NOT NULL DEFAULT 3,
    queue_cur_table int4 NOT NULL DEFAULT 0,
    queue_rotation_period interval NOT NULL DEFAULT '2 hours',
    queue_switch_step1 xid8 NOT NULL DEFAULT pg_current_xact_id(),
    queue_switch_step2 xid8 DEFAULT pg_current_xact_id(),
    queue_switch_time timestamptz NOT NULL DEFAULT now(),
    queue_external_ticker boolean NOT NULL DEFAULT false,
    queue_disable_insert boolean NOT NULL DEFAULT false,
    queue_ticker_paused boolean NOT NULL DEFAULT false,
    queue_ticker_max_count int4 NOT NULL DEFAULT 500,
    queue_ticker_max_lag interval NOT NULL DEFAULT '1 millisecond',
    queue_ticker_idle_period interval NOT NULL DEFAULT '1 minute',
    queue_data_pfx text NOT NULL,
    queue_event_seq text NOT NULL,
    queue_tick_seq text NOT NULL,
    queue_extra_maint text[],
    queue_max_retries int4 NOT NULL DEFAULT 5
);

CREATE TABLE pgque.tick (
    tick_queue int4 NOT NULL REFERENCES pgque.queue (queue_id) ON DELETE CASCADE,
    tick_id bigint NOT NULL,
    tick_time timestamptz NOT NULL DEFAULT now(),
    tick_snapshot pg_snapshot NOT NULL DEFAULT pg_current_snapshot(),
    tick_event_seq bigint NOT NULL,
    PRIMARY KEY (tick_queue, tick_id)
);

CREATE TABLE pgque.consumer (
    co_id serial PRIMARY KEY,
    co_name text NOT NULL UNIQUE
);

CREATE SEQUENCE pgque.batch_id_seq;

-- sub_role and sub_main: a group of cooperative consumers has one row 'coop_main', which holds the group's position, and
-- a row 'coop_member' for each subconsumer, which names the main row and has ticks only while it has a batch.
CREATE TABLE pgque.subscription (
    sub_id serial PRIMARY KEY,
    sub_queue int4 NOT NULL REFERENCES pgque.queue (queue_id),
    sub_consumer int4 NOT NULL REFERENCES pgque.consumer (co_id),
    sub_last_tick bigint,
    sub_active timestamptz NOT NULL DEFAULT now(),
    sub_batch bigint UNIQUE,
    sub_next_tick bigint,
    sub_role text NOT NULL DEFAULT 'normal' CHECK (sub_role IN ('normal', 'coop_main', 'coop_member')),
    sub_main int4 REFERENCES pgque.subscription (sub_id),
    UNIQUE (sub_queue, sub_consumer),
    CHECK ((sub_role = 'coop_member') = (sub_main IS NOT NULL)),
    CHECK (sub_last_tick IS NOT NULL OR sub_role = 'coop_member')
) WITH (fillfactor = 50);
CREATE INDEX subscription_main_idx ON pgque.subscription (sub_main) WHERE sub_main IS NOT NULL;

-- The shape of events. ev_owner is the subscription to which a retried event belongs; null: everybody's.
CREATE TABLE pgque.event_template (
    ev_id bigint NOT NULL,
    ev_time timestamptz NOT NULL,
    ev_txid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    ev_owner int4,
    ev_retry int4,
    ev_type text,
    ev_data text,
    ev_extra1 text,
    ev_extra2 text,
    ev_extra3 text,
    ev_extra4 text
);

-- What is to be given again. While the batch that asked for it is active, an event that has been moved back into its
-- queue stays here, due at infinity: asking twice must not give it twice.
CREATE TABLE pgque.retry_queue (
    ev_retry_after timestamptz NOT NULL,
    ev_queue int4 NOT NULL REFERENCES pgque.queue (queue_id) ON DELETE CASCADE,
    LIKE pgque.event_template,
    ev_batch bigint,
    PRIMARY KEY (ev_owner, ev_id)
);
ALTER TABLE pgque.retry_queue ALTER ev_owner SET NOT NULL, ALTER ev_txid DROP NOT NULL;
CREATE INDEX retry_queue_moved_idx ON pgque.retry_queue (ev_batch) WHERE ev_retry_after = 'infinity';
CREATE INDEX retry_queue_due_idx ON pgque.retry_queue (ev_queue, ev_retry_after);

-- An event is dead once for a consumer: that is what makes a repeated nack harmless.
CREATE TABLE pgque.dead_letter (
    dl_id bigserial PRIMARY KEY,
    dl_queue_id int4 NOT NULL REFERENCES pgque.queue (queue_id) ON DELETE CASCADE,
    dl_consumer_id int4 NOT NULL REFERENCES pgque.consumer (co_id) ON DELETE CASCADE,
    dl_time timestamptz NOT NULL DEFAULT now(),
    dl_reason text,
    ev_id bigint NOT NULL,
    ev_time timestamptz NOT NULL,
    ev_txid xid8,
    ev_retry int4,
    ev_type text,
    ev_data text,
    ev_extra1 text,
    ev_extra2 text,
    ev_extra3 text,
    ev_extra4 text,
    UNIQUE (dl_queue_id, dl_consumer_id, ev_id)
);
CREATE INDEX dead_letter_newest_idx ON pgque.dead_letter (dl_queue_id, dl_time DESC, dl_id DESC);

-- Events that are to be sent later.
CREATE TABLE pgque.delayed_events (
    de_id bigserial PRIMARY KEY,
    de_queue_id int4 NOT NULL REFERENCES pgque.queue (queue_id) ON DELETE CASCADE,
    de_deliver_at timestamptz NOT NULL,
    de_type text,
    de_payload text
);
CREATE INDEX delayed_events_due_idx ON pgque.delayed_events (de_deliver_at);

CREATE TYPE pgque.message AS (
    msg_id bigint,
    batch_id bigint,
    type text,
    payload text,
    retry_count int4,
    created_at timestamptz,
    extra1 text,
    extra2 text,
    extra3 text,
    extra4 text
);

-- An active batch, as functions hand it to each other. `owner` is the subscription to which retried events belong, and
-- `consumer_id` its consumer: for a member of a group, the group's.
CREATE TYPE pgque._batch_state AS (
    batch_id bigint,
    queue_id integer,
    queue_name text,
    data_table text,
    max_retries integer,
    sub_id integer,
    owner integer,
    consumer_id integer,
    consumer_name text,
    prev_tick_id bigint,
    next_tick_id bigint,
    prev_snapshot pg_snapshot,
    next_snapshot pg_snapshot
);

-- A tick that is due.
CREATE TYPE pgque._due_tick AS (
    queue_id integer,
    queue_name text,
    tick_seq regclass,
    tick_id bigint,
    counted bigint,
    has_events boolean
);
