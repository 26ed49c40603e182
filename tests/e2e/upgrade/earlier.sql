-- A database of revision e5694a2 of 2026-11-22; made by make_earlier.py.
SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET transaction_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
CREATE SCHEMA accum;
COMMENT ON SCHEMA accum IS 'Headwater registers, 0002_maintenance, functions c1d79fc83f647855';
CREATE SCHEMA alice;
ALTER SCHEMA alice OWNER TO upgrade_alice;
CREATE SCHEMA pgque;
COMMENT ON SCHEMA pgque IS 'Headwater queues, 0004_sending, functions 1765069131f3b5fd';
CREATE SCHEMA pgtrickle;
COMMENT ON SCHEMA pgtrickle IS 'Headwater stream tables, 0011_history, functions 78606e34c8cdc3fb';
CREATE SCHEMA pgtrickle_changes;
CREATE SCHEMA pgtrickle_roles;
CREATE SCHEMA pgtrickle_staging;
CREATE SCHEMA shop;
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
CREATE TYPE pgque._due_tick AS (
	queue_id integer,
	queue_name text,
	tick_seq regclass,
	tick_id bigint,
	counted bigint,
	has_events boolean
);
CREATE TYPE pgque.message AS (
	msg_id bigint,
	batch_id bigint,
	type text,
	payload text,
	retry_count integer,
	created_at timestamptz,
	extra1 text,
	extra2 text,
	extra3 text,
	extra4 text
);
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE accum._registers (
name text NOT NULL,
kind text NOT NULL,
dimensions jsonb NOT NULL,
resources jsonb NOT NULL,
totals_period text NOT NULL,
partition_by text NOT NULL,
high_write boolean NOT NULL,
recorder_type text NOT NULL,
created_at timestamptz DEFAULT now() NOT NULL,
CONSTRAINT _registers_kind_check CHECK ((kind = ANY (ARRAY['balance'::text, 'turnover'::text]))),
CONSTRAINT _registers_partition_by_check CHECK ((partition_by = ANY (ARRAY['day'::text, 'month'::text, 'quarter'::text, 'year'::text]))),
CONSTRAINT _registers_totals_period_check CHECK ((totals_period = ANY (ARRAY['day'::text, 'month'::text, 'year'::text])))
);
CREATE FUNCTION accum._add_columns(r accum._registers, dimensions jsonb, resources jsonb) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._agree(resources jsonb, expected jsonb, actual jsonb) RETURNS bool LANGUAGE sql AS '';
CREATE FUNCTION accum._alive_sql(r accum._registers) RETURNS text LANGUAGE sql AS '';
CREATE FUNCTION accum._apply_sql(r accum._registers, rows text) RETURNS text LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._as_movements_sql(r accum._registers, rows text) RETURNS text LANGUAGE sql AS '';
CREATE FUNCTION accum._attach_triggers(r accum._registers, relation regclass) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._balance_stock(dimensions jsonb, at_date timestamptz) RETURNS jsonb LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._begin_epoch(r accum._registers) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._behind(until timestamptz) RETURNS timestamptz LANGUAGE sql AS '';
CREATE FUNCTION accum._bucket(totals_period text, moment text) RETURNS text LANGUAGE sql AS '';
CREATE FUNCTION accum._check_columns(r accum._registers) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._column_type(role text, type text) RETURNS text LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._columns(role text, declared jsonb) RETURNS jsonb LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._count(r accum._registers) RETURNS bigint LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._create_balance(r accum._registers) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._create_balance_at_each(r accum._registers, known text, header text) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._create_delta_buffer(r accum._registers) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._create_delta_views(r accum._registers) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._create_derived(r accum._registers, kind text) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._create_functions(r accum._registers) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._create_key(r accum._registers, kind text) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._create_movements(r accum._registers) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._create_partitions_for(r accum._registers) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._create_posting_functions(r accum._registers) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._create_reading_functions(r accum._registers) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._create_trigger_functions(r accum._registers) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._create_triggers(r accum._registers) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._delta_apply_sql(r accum._registers, rows text) RETURNS text LANGUAGE sql AS '';
CREATE FUNCTION accum._derived(r accum._registers) RETURNS text[] LANGUAGE sql AS '';
CREATE FUNCTION accum._derived_view_sql(r accum._registers, kind text) RETURNS text LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._detach_partition(r accum._registers, partition regclass) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._discard_delta_buffer(r accum._registers) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._drop_delta_buffer(r accum._registers) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._drop_quietly(statement text) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._each(columns jsonb, pattern text, separator text DEFAULT ''::text) RETURNS text LANGUAGE sql AS '';
CREATE FUNCTION accum._election_lock() RETURNS bigint LANGUAGE sql AS '';
CREATE FUNCTION accum._ever_recorded_sql(r accum._registers, kind text) RETURNS text LANGUAGE sql AS '';
CREATE FUNCTION accum._expected_sql(r accum._registers, kind text) RETURNS text LANGUAGE sql AS '';
CREATE FUNCTION accum._explain_failure(p_data jsonb, fields jsonb, optional text[]) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._expressions(r accum._registers, relation regclass, resource text, others jsonb) RETURNS text LANGUAGE sql AS '';
CREATE FUNCTION accum._extend_detached(r accum._registers) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._fill(r accum._registers, template text) RETURNS text LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._filter(register text, dimensions jsonb, given jsonb) RETURNS text LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._finite(resources jsonb) RETURNS text LANGUAGE sql AS '';
CREATE FUNCTION accum._force_delta_merge(p_max_age interval DEFAULT '00:00:00'::interval, p_batch_size int DEFAULT 1000000) RETURNS bigint LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._forget_detached_totals(r accum._registers) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._give(r accum._registers, kind text, object text) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._grains(totals_period text) RETURNS text[] LANGUAGE sql AS '';
CREATE FUNCTION accum._groups(register text, dimensions jsonb, group_by jsonb) RETURNS jsonb LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._hash_of(dimensions jsonb, pattern text) RETURNS text LANGUAGE sql AS '';
CREATE FUNCTION accum._hash_stock(product text, warehouse int) RETURNS bigint LANGUAGE sql AS '';
CREATE FUNCTION accum._index_dimensions(r accum._registers, kind text, dimensions jsonb) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._insert_body(r accum._registers) RETURNS text LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._is_alive(r accum._registers) RETURNS bool LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._keep_partitions(r accum._registers, ahead int) RETURNS int LANGUAGE sql AS '';
CREATE FUNCTION accum._key_name(r accum._registers, kind text) RETURNS text LANGUAGE sql AS '';
CREATE FUNCTION accum._lock_sql(r accum._registers) RETURNS text LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._lost_versions() RETURNS bigint LANGUAGE sql AS '';
CREATE FUNCTION accum._maintain_deltas(p_name text, p_delay int, p_batch_size int) RETURNS jsonb LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._maintain_partitions(p_name text, p_ahead int) RETURNS int LANGUAGE sql AS '';
CREATE FUNCTION accum._maintained(OUT register text, OUT owner text, OUT high_write bool, OUT written bigint) RETURNS SETOF record LANGUAGE sql AS '';
CREATE FUNCTION accum._maintenance_due(OUT workers int, OUT merges bool, OUT partitions_in double precision) RETURNS record LANGUAGE sql AS '';
CREATE FUNCTION accum._maintenance_status(OUT pid int, OUT worker_name text, OUT state text, OUT query text, OUT started_at timestamptz) RETURNS SETOF record LANGUAGE sql AS '';
CREATE FUNCTION accum._make_partition(r accum._registers, start timestamp without time zone) RETURNS bool LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._merge_deltas(r accum._registers, max_age interval, batch_size bigint) RETURNS bigint LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._moment(moment timestamp without time zone) RETURNS text LANGUAGE sql AS '';
CREATE FUNCTION accum._move_grants(source regclass, target regclass) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._name(name text) RETURNS text LANGUAGE sql AS '';
CREATE FUNCTION accum._note_maintenance(p_task text, p_started timestamptz) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION accum._one_of(argument text, value text, choices text[]) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._owns(register text) RETURNS bool LANGUAGE sql AS '';
CREATE FUNCTION accum._partition_length(partition_by text) RETURNS interval LANGUAGE sql AS '';
CREATE FUNCTION accum._partition_name(r accum._registers, start timestamp without time zone) RETURNS text LANGUAGE sql AS '';
CREATE FUNCTION accum._partition_start(partition_by text, at timestamptz) RETURNS timestamp without time zone LANGUAGE sql AS '';
CREATE FUNCTION accum._post_stock(p_data jsonb) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._qualified(columns jsonb) RETURNS jsonb LANGUAGE sql AS '';
CREATE FUNCTION accum._range_sql(register text, totals_period text, dimensions jsonb, resources jsonb, sources jsonb, given jsonb, kept jsonb, since timestamptz, until timestamptz, coarsest text DEFAULT 'year'::text, bucket text DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._rebuild(r accum._registers, kind text) RETURNS bigint LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._recorded_in_sql(r accum._registers, movements text) RETURNS text LANGUAGE sql AS '';
CREATE FUNCTION accum._recorded_sql(r accum._registers) RETURNS text LANGUAGE sql AS '';
CREATE UNLOGGED TABLE accum.stock_balance_cache_delta (
id bigint NOT NULL,
dim_hash bigint NOT NULL,
product text,
warehouse integer,
day date,
quantity numeric(18,4) DEFAULT 0 NOT NULL,
version bigint DEFAULT 1 NOT NULL,
last_movement_at timestamptz,
last_movement_id uuid,
created_at timestamptz DEFAULT now() NOT NULL
);
CREATE FUNCTION accum._recorded_stock(epoch uuid) RETURNS SETOF accum.stock_balance_cache_delta LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._recorder_literal(register text, recorder text) RETURNS text LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._recorder_type(type text) RETURNS text LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._refuse_dependents(r accum._registers) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._register(p_name text) RETURNS accum._registers LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._repair_delta_buffer(r accum._registers) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._repost_stock(p_recorder text, p_data jsonb) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._segments(totals_period text, since timestamptz, until timestamptz, coarsest text DEFAULT 'year'::text) RETURNS TABLE(grain text, first timestamp without time zone, behind timestamp without time zone) LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._setting(setting text) RETURNS int LANGUAGE sql AS '';
CREATE FUNCTION accum._settle(r accum._registers) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._settle_delta_buffer(r accum._registers) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION accum._signed_sql(r accum._registers, movements text, sign text) RETURNS text LANGUAGE sql AS '';
CREATE FUNCTION accum._source(r accum._registers, kind text) RETURNS text LANGUAGE sql AS '';
CREATE FUNCTION accum._sources(r accum._registers) RETURNS jsonb LANGUAGE sql AS '';
CREATE FUNCTION accum._stored_name(r accum._registers, kind text) RETURNS text LANGUAGE sql AS '';
CREATE FUNCTION accum._trg_stock_delete() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._trg_stock_hash() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._trg_stock_insert() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._trg_stock_truncate() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._trg_stock_update() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._unpost_stock(p_recorder text) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION accum._upserts_sql(r accum._registers, rows text, versions text DEFAULT '1'::text) RETURNS text LANGUAGE plpgsql AS '';
CREATE FUNCTION accum.register_alter(p_name text, add_dimensions jsonb DEFAULT NULL, add_resources jsonb DEFAULT NULL, high_write bool DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum.register_create(name text, dimensions jsonb, resources jsonb, kind text DEFAULT 'balance'::text, totals_period text DEFAULT 'day'::text, partition_by text DEFAULT 'month'::text, high_write bool DEFAULT false, recorder_type text DEFAULT 'text'::text) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum.register_create_partitions(p_name text, p_count int DEFAULT NULL) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION accum.register_create_partitions(p_name text, p_interval interval) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION accum.register_detach_partitions(p_name text, p_older_than date) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION accum.register_drop(p_name text, force bool DEFAULT false) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION accum.register_info(p_name text) RETURNS jsonb LANGUAGE plpgsql AS '';
CREATE FUNCTION accum.register_list() RETURNS TABLE(name text, kind text, dimensions int, resources int, movements_count bigint, created_at timestamptz) LANGUAGE sql AS '';
CREATE FUNCTION accum.register_post(p_register text, p_data jsonb) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION accum.register_rebuild_cache(p_name text) RETURNS bigint LANGUAGE plpgsql AS '';
CREATE FUNCTION accum.register_rebuild_totals(p_name text) RETURNS bigint LANGUAGE plpgsql AS '';
CREATE FUNCTION accum.register_repost(p_register text, p_recorder anynonarray, p_data jsonb) RETURNS int LANGUAGE sql AS '';
CREATE FUNCTION accum.register_repost(p_register text, p_recorder text, p_data jsonb) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION accum.register_unpost(p_register text, p_recorder anynonarray) RETURNS int LANGUAGE sql AS '';
CREATE FUNCTION accum.register_unpost(p_register text, p_recorder text) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION accum.register_verify(p_name text) RETURNS TABLE(check_type text, dim_hash bigint, period date, expected jsonb, actual jsonb, status text) LANGUAGE plpgsql AS '';
CREATE FUNCTION accum.stock_balance(dimensions jsonb DEFAULT NULL, at_date timestamptz DEFAULT NULL) RETURNS jsonb LANGUAGE plpgsql AS '';
CREATE FUNCTION accum.stock_balance_at_each(period text DEFAULT 'month'::text, from_date timestamptz DEFAULT NULL, to_date timestamptz DEFAULT NULL, dimensions jsonb DEFAULT NULL) RETURNS TABLE(period_start date, turnover jsonb, balance jsonb) LANGUAGE plpgsql AS '';
CREATE FUNCTION accum.stock_movements(p_recorder text DEFAULT NULL, from_date timestamptz DEFAULT NULL, to_date timestamptz DEFAULT NULL, dimensions jsonb DEFAULT NULL, include_audit bool DEFAULT false) RETURNS SETOF jsonb LANGUAGE plpgsql AS '';
CREATE FUNCTION accum.stock_turnover(from_date timestamptz DEFAULT NULL, to_date timestamptz DEFAULT NULL, dimensions jsonb DEFAULT NULL, group_by jsonb DEFAULT NULL) RETURNS SETOF jsonb LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._adopt(id int) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._base_type(type oid) RETURNS oid LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._batch(batch_id bigint) RETURNS pgque._batch_state LANGUAGE plpgsql AS '';
CREATE TABLE pgque.event_template (
ev_id bigint NOT NULL,
ev_time timestamptz NOT NULL,
ev_txid xid8 DEFAULT pg_current_xact_id() NOT NULL,
ev_owner integer,
ev_retry integer,
ev_type text,
ev_data text,
ev_extra1 text,
ev_extra2 text,
ev_extra3 text,
ev_extra4 text
);
CREATE FUNCTION pgque._batch_event(batch pgque._batch_state, event_id bigint) RETURNS pgque.event_template LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._batch_query(batch pgque._batch_state, columns text) RETURNS text LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._buckets(period interval, bucket_size interval) RETURNS SETOF timestamptz LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._check_trigger(name text, level text, op text, arguments int) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._clock(OUT tick bool, OUT tick_period_ms int) RETURNS record LANGUAGE sql AS '';
CREATE TABLE pgque.subscription (
sub_id integer NOT NULL,
sub_queue integer NOT NULL,
sub_consumer integer NOT NULL,
sub_last_tick bigint,
sub_active timestamptz DEFAULT now() NOT NULL,
sub_batch bigint,
sub_next_tick bigint,
sub_role text DEFAULT 'normal'::text NOT NULL,
sub_main integer,
CONSTRAINT subscription_check CHECK (((sub_role = 'coop_member'::text) = (sub_main IS NOT NULL))),
CONSTRAINT subscription_check1 CHECK (((sub_last_tick IS NOT NULL) OR (sub_role = 'coop_member'::text))),
CONSTRAINT subscription_sub_role_check CHECK ((sub_role = ANY (ARRAY['normal'::text, 'coop_main'::text, 'coop_member'::text])))
)
WITH (fillfactor='50');
CREATE FUNCTION pgque._coop_lock(queue text, consumer text) RETURNS pgque.subscription LANGUAGE sql AS '';
CREATE FUNCTION pgque._coop_member(main pgque.subscription, consumer text, subconsumer text) RETURNS pgque.subscription LANGUAGE plpgsql AS '';
CREATE TABLE pgque.queue (
queue_id integer NOT NULL,
queue_name text NOT NULL,
queue_ntables integer DEFAULT 3 NOT NULL,
queue_cur_table integer DEFAULT 0 NOT NULL,
queue_rotation_period interval DEFAULT '02:00:00'::interval NOT NULL,
queue_switch_step1 xid8 DEFAULT pg_current_xact_id() NOT NULL,
queue_switch_step2 xid8 DEFAULT pg_current_xact_id(),
queue_switch_time timestamptz DEFAULT now() NOT NULL,
queue_external_ticker boolean DEFAULT false NOT NULL,
queue_disable_insert boolean DEFAULT false NOT NULL,
queue_ticker_paused boolean DEFAULT false NOT NULL,
queue_ticker_max_count integer DEFAULT 500 NOT NULL,
queue_ticker_max_lag interval DEFAULT '00:00:00.001'::interval NOT NULL,
queue_ticker_idle_period interval DEFAULT '00:01:00'::interval NOT NULL,
queue_data_pfx text NOT NULL,
queue_event_seq text NOT NULL,
queue_tick_seq text NOT NULL,
queue_extra_maint text[],
queue_max_retries integer DEFAULT 5 NOT NULL,
queue_cluster bigint,
CONSTRAINT queue_check CHECK ((queue_data_pfx = ('pgque.event_'::text || queue_id))),
CONSTRAINT queue_check1 CHECK ((queue_event_seq = (('pgque.event_'::text || queue_id) || '_id_seq'::text))),
CONSTRAINT queue_check2 CHECK ((queue_tick_seq = (('pgque.event_'::text || queue_id) || '_tick_seq'::text))),
CONSTRAINT queue_check3 CHECK (((queue_ntables = 3) AND ((queue_cur_table >= 0) AND (queue_cur_table <= 2))))
);
CREATE FUNCTION pgque._decision(queues pgque.queue[], leaf text) RETURNS text LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._due_ticks(only_queues int[]) RETURNS SETOF pgque._due_tick LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._find_tick(queue_id int, last bigint, min_lag interval, min_count int, min_interval interval) RETURNS bigint LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._first_seen(data_table text, snapshots pg_snapshot[]) RETURNS TABLE(xid xid8, number int) LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._grant(role text, statement text) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._grant_queue(id int) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._has_cron() RETURNS bool LANGUAGE sql AS '';
CREATE FUNCTION pgque._insert_events(queue text, type text, data text[], extra1 text, extra2 text, extra3 text, extra4 text) RETURNS bigint[] LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._insert_tick(id int, wanted bigint, at timestamptz, seq bigint) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._install_roles() RETURNS text[] LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._is_at_home(id int) RETURNS bool LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._late_events(data_table text, last_snapshot pg_snapshot) RETURNS bool LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._listed_columns(argument text, names text[], relation oid) RETURNS text[] LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._lock_queues(wait bool) RETURNS bool LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._lock_subscription(queue text, consumer text) RETURNS pgque.subscription LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._lock_ticks(id int, wait bool) RETURNS bool LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._locked_batch(batch_id bigint) RETURNS pgque._batch_state LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._make_inserts() RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._make_ticks(queues int[], wait bool) RETURNS SETOF bigint LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._missing_roles() RETURNS text[] LANGUAGE sql AS '';
CREATE FUNCTION pgque._move_due(task text, queues int[], statement text) RETURNS bigint LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._nack_batch(batch bigint, consumer_id int, retry_after interval, reason text) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION pgque._portions(id int, fresh pg_snapshot, counted bigint) RETURNS TABLE(place bigint, upto pg_snapshot, seq bigint) LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._primary_key(relation oid) RETURNS text[] LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._queue_id(queue text) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._queue_retry(batch pgque._batch_state, event pgque.event_template, at timestamptz) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._queues_changed() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._register_consumer(queue text, consumer text, tick_pos bigint) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._row_columns(relation oid, OUT names text[], OUT types oid[], OUT generated "char"[], OUT overriding bool, OUT plain bool, OUT builtin bool) RETURNS record LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._row_expression(expression text, value record) RETURNS text LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._row_json(value record, names text[], types oid[], sent bool[], builtin bool) RETURNS text LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._row_sql(op text, target text, key text[], names text[], sent bool[], overriding bool, old_texts text[], new_texts text[], fragments bool) RETURNS text LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._row_texts(value record, names text[], types oid[], plain bool) RETURNS text[] LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._row_urlencoded(names text[], texts text[], sent bool[]) RETURNS text LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._server(OUT present bool, OUT ticking bool) RETURNS record LANGUAGE sql AS '';
CREATE FUNCTION pgque._snapshot() RETURNS pg_snapshot LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._subscription(queue text, consumer text) RETURNS pgque.subscription LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._trigger_event(format text, queue_name text, arguments text[], op text, relation oid, target text[], old_row record, new_row record) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque._urlencode(value text) RETURNS text LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.ack(batch_id bigint) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.batch_retry(batch_id bigint, retry_seconds int) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.consumer_stats() RETURNS TABLE(queue_name text, consumer_name text, lag interval, pending_events bigint, last_batch_start timestamptz, batch_active bool, batch_id bigint) LANGUAGE sql AS '';
CREATE FUNCTION pgque.create_queue(queue text) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.create_queue(queue text, options jsonb) RETURNS int LANGUAGE plpgsql AS '';
CREATE TABLE pgque.dead_letter (
dl_id bigint NOT NULL,
dl_queue_id integer NOT NULL,
dl_consumer_id integer NOT NULL,
dl_time timestamptz DEFAULT now() NOT NULL,
dl_reason text,
ev_id bigint NOT NULL,
ev_time timestamptz NOT NULL,
ev_txid xid8,
ev_retry integer,
ev_type text,
ev_data text,
ev_extra1 text,
ev_extra2 text,
ev_extra3 text,
ev_extra4 text
);
CREATE FUNCTION pgque.dlq_inspect(queue text, limit_count int DEFAULT 100) RETURNS SETOF pgque.dead_letter LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.dlq_purge(queue text, older_than interval DEFAULT '30 days'::interval) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.dlq_replay(dead_letter_id bigint) RETURNS bigint LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.dlq_replay_all(queue text, OUT replayed bigint, OUT failed bigint, OUT first_error text) RETURNS record LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.drop_queue(queue text) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.drop_queue(queue text, force bool) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.error_rate(queue text, period interval, bucket_size interval) RETURNS TABLE(bucket_start timestamptz, retries bigint, dead_letters bigint) LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.event_dead(batch_id bigint, event_id bigint, reason text, ev_time timestamptz, ev_txid xid8, ev_retry int, ev_type text, ev_data text, ev_extra1 text DEFAULT NULL, ev_extra2 text DEFAULT NULL, ev_extra3 text DEFAULT NULL, ev_extra4 text DEFAULT NULL) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.event_retry(batch_id bigint, event_id bigint, retry_seconds int) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.event_retry(batch_id bigint, event_id bigint, retry_time timestamptz) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.find_tick_helper(i_queue_id int, i_prev_tick_id bigint, i_prev_tick_time timestamptz, i_prev_tick_seq bigint, i_min_count bigint, i_min_interval interval, OUT next_tick_id bigint, OUT next_tick_time timestamptz, OUT next_tick_seq bigint) RETURNS record LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.finish_batch(batch_id bigint) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.force_next_tick(queue text) RETURNS bigint LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.force_tick(queue text) RETURNS bigint LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.get_batch_cursor(batch_id bigint, cursor_name text, quick_limit int, OUT ev_id bigint, OUT ev_time timestamptz, OUT ev_txid bigint, OUT ev_retry int, OUT ev_type text, OUT ev_data text, OUT ev_extra1 text, OUT ev_extra2 text, OUT ev_extra3 text, OUT ev_extra4 text) RETURNS SETOF record LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.get_batch_cursor(batch_id bigint, cursor_name text, quick_limit int, extra_where text, OUT ev_id bigint, OUT ev_time timestamptz, OUT ev_txid bigint, OUT ev_retry int, OUT ev_type text, OUT ev_data text, OUT ev_extra1 text, OUT ev_extra2 text, OUT ev_extra3 text, OUT ev_extra4 text) RETURNS SETOF record LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.get_batch_events(batch_id bigint, OUT ev_id bigint, OUT ev_time timestamptz, OUT ev_txid bigint, OUT ev_retry int, OUT ev_type text, OUT ev_data text, OUT ev_extra1 text, OUT ev_extra2 text, OUT ev_extra3 text, OUT ev_extra4 text) RETURNS SETOF record LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.get_batch_info(batch_id bigint, OUT queue_name text, OUT consumer_name text, OUT batch_start timestamptz, OUT batch_end timestamptz, OUT prev_tick_id bigint, OUT tick_id bigint, OUT lag interval, OUT seq_start bigint, OUT seq_end bigint) RETURNS record LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.get_consumer_info(OUT queue_name text, OUT consumer_name text, OUT lag interval, OUT last_seen interval, OUT last_tick bigint, OUT current_batch bigint, OUT next_tick bigint, OUT pending_events bigint) RETURNS SETOF record LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.get_consumer_info(queue text, OUT queue_name text, OUT consumer_name text, OUT lag interval, OUT last_seen interval, OUT last_tick bigint, OUT current_batch bigint, OUT next_tick bigint, OUT pending_events bigint) RETURNS SETOF record LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.get_consumer_info(queue text, consumer text, OUT queue_name text, OUT consumer_name text, OUT lag interval, OUT last_seen interval, OUT last_tick bigint, OUT current_batch bigint, OUT next_tick bigint, OUT pending_events bigint) RETURNS SETOF record LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.get_queue_info(OUT queue_name text, OUT queue_ntables int, OUT queue_cur_table int, OUT queue_rotation_period interval, OUT queue_switch_time timestamptz, OUT queue_external_ticker bool, OUT queue_ticker_paused bool, OUT queue_ticker_max_count int, OUT queue_ticker_max_lag interval, OUT queue_ticker_idle_period interval, OUT ticker_lag interval, OUT ev_per_sec double precision, OUT ev_new bigint, OUT last_tick_id bigint) RETURNS SETOF record LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.get_queue_info(queue text, OUT queue_name text, OUT queue_ntables int, OUT queue_cur_table int, OUT queue_rotation_period interval, OUT queue_switch_time timestamptz, OUT queue_external_ticker bool, OUT queue_ticker_paused bool, OUT queue_ticker_max_count int, OUT queue_ticker_max_lag interval, OUT queue_ticker_idle_period interval, OUT ticker_lag interval, OUT ev_per_sec double precision, OUT ev_new bigint, OUT last_tick_id bigint) RETURNS SETOF record LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.in_flight(queue text) RETURNS TABLE(consumer_name text, batch_id bigint, batch_age interval, estimated_events bigint) LANGUAGE sql AS '';
CREATE FUNCTION pgque.insert_event(queue_name text, ev_type text, ev_data text) RETURNS bigint LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.insert_event(queue_name text, ev_type text, ev_data text, ev_extra1 text, ev_extra2 text, ev_extra3 text, ev_extra4 text) RETURNS bigint LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.insert_event_bulk(queue_name text, ev_type text, ev_data_list text[]) RETURNS bigint[] LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.jsontriga() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.logutriga() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.maint() RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.maint_deliver_delayed() RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.maint_retry_events() RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.maint_rotate_tables_step1(queue text) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.maint_rotate_tables_step2() RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.nack(batch_id bigint, msg pgque.message, retry_after interval DEFAULT '00:01:00'::interval, reason text DEFAULT NULL) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.next_batch(queue_name text, consumer_name text) RETURNS bigint LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.next_batch(queue text, consumer text, subconsumer text, dead_interval interval DEFAULT NULL) RETURNS bigint LANGUAGE sql AS '';
CREATE FUNCTION pgque.next_batch_custom(queue_name text, consumer_name text, min_lag interval, min_count int, min_interval interval, OUT batch_id bigint, OUT cur_tick_id bigint, OUT prev_tick_id bigint, OUT cur_tick_time timestamptz, OUT prev_tick_time timestamptz, OUT cur_tick_event_seq bigint, OUT prev_tick_event_seq bigint) RETURNS record LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.next_batch_custom(queue text, consumer text, subconsumer text, min_lag interval, min_count int, min_interval interval, dead_interval interval DEFAULT NULL, OUT batch_id bigint, OUT prev_tick_id bigint, OUT next_tick_id bigint) RETURNS record LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.next_batch_info(queue_name text, consumer_name text, OUT batch_id bigint, OUT cur_tick_id bigint, OUT prev_tick_id bigint, OUT cur_tick_time timestamptz, OUT prev_tick_time timestamptz, OUT cur_tick_event_seq bigint, OUT prev_tick_event_seq bigint) RETURNS record LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.otel_metrics() RETURNS TABLE(metric_name text, metric_type text, metric_value numeric, labels jsonb) LANGUAGE sql AS '';
CREATE FUNCTION pgque.pause_queue(queue text) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.queue_health() RETURNS TABLE(queue_name text, check_name text, status text, detail text) LANGUAGE sql AS '';
CREATE FUNCTION pgque.queue_stats() RETURNS TABLE(queue_name text, queue_id int, depth bigint, oldest_msg_age interval, consumers int, events_per_sec numeric, cur_table int, rotation_age interval, rotation_period interval, ticker_paused bool, last_tick_time timestamptz, last_tick_id bigint, dlq_count bigint) LANGUAGE sql AS '';
CREATE FUNCTION pgque.receive(queue text, consumer text, max_return int DEFAULT 100) RETURNS SETOF pgque.message LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.receive_coop(queue text, consumer text, subconsumer text, max_return int DEFAULT 100, dead_interval interval DEFAULT NULL) RETURNS SETOF pgque.message LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.register_consumer(queue_name text, consumer_id text) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.register_consumer_at(queue_name text, consumer_name text, tick_pos bigint) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.register_subconsumer(queue text, consumer text, subconsumer text, convert_normal bool DEFAULT false) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.resume_queue(queue text) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.send(queue_name text, payload jsonb) RETURNS bigint LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.send(queue_name text, payload text) RETURNS bigint LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.send(queue_name text, type_name text, payload jsonb) RETURNS bigint LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.send(queue_name text, type_name text, payload text) RETURNS bigint LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.send_at(queue text, type text, payload jsonb, deliver_at timestamptz) RETURNS bigint LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.send_batch(queue_name text, payloads jsonb[]) RETURNS bigint[] LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.send_batch(queue_name text, payloads text[]) RETURNS bigint[] LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.send_batch(queue_name text, type_name text, payloads jsonb[]) RETURNS bigint[] LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.send_batch(queue_name text, type_name text, payloads text[]) RETURNS bigint[] LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.set_queue_config(queue text, param text, value text) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.set_tick_period_ms(ms int) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.sqltriga() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.start() RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.status() RETURNS TABLE(component text, status text, detail text) LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.stop() RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.stuck_consumers(threshold interval DEFAULT '01:00:00'::interval) RETURNS TABLE(queue_name text, consumer_name text, lag interval, last_active timestamptz) LANGUAGE sql AS '';
CREATE FUNCTION pgque.subscribe(queue text, consumer text) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.subscribe_subconsumer(queue text, consumer text, subconsumer text, convert_normal bool DEFAULT false) RETURNS int LANGUAGE sql AS '';
CREATE FUNCTION pgque.throughput(queue text, period interval, bucket_size interval) RETURNS TABLE(bucket_start timestamptz, events bigint, events_per_sec numeric) LANGUAGE sql AS '';
CREATE FUNCTION pgque.ticker() RETURNS bigint LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.ticker(queue text) RETURNS bigint LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.ticker(queue text, tick_id bigint, "timestamp" timestamptz, event_seq bigint) RETURNS bigint LANGUAGE plpgsql AS '';
CREATE PROCEDURE pgque.ticker_loop() LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.touch_subconsumer(queue text, consumer text, subconsumer text) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.uninstall() RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.unregister_consumer(queue_name text, consumer_name text) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.unregister_subconsumer(queue text, consumer text, subconsumer text, batch_handling int DEFAULT 0) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.unsubscribe(queue text, consumer text) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgque.unsubscribe_subconsumer(queue text, consumer text, subconsumer text, batch_handling int DEFAULT 0) RETURNS int LANGUAGE sql AS '';
CREATE FUNCTION pgque.version() RETURNS text LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._adopt_restored() RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._advance_history(OUT relid bigint, OUT is_broken bool) RETURNS SETOF record LANGUAGE plpgsql AS '';
CREATE TABLE pgtrickle.pgt_stream_tables (
pgt_id bigint NOT NULL,
pgt_relid oid NOT NULL,
pgt_name text NOT NULL,
pgt_schema text NOT NULL,
defining_query text NOT NULL,
original_query text,
schedule text,
refresh_mode text DEFAULT 'DIFFERENTIAL'::text NOT NULL,
status text DEFAULT 'INITIALIZING'::text NOT NULL,
is_populated boolean DEFAULT false NOT NULL,
data_timestamp timestamptz,
frontier jsonb,
last_refresh_at timestamptz,
consecutive_errors integer DEFAULT 0 NOT NULL,
needs_reinit boolean DEFAULT false NOT NULL,
auto_threshold double precision,
last_full_ms double precision,
functions_used text[],
topk_limit integer,
topk_order_by text,
topk_offset integer,
diamond_consistency text DEFAULT 'none'::text NOT NULL,
diamond_schedule_policy text DEFAULT 'fastest'::text NOT NULL,
has_keyless_source boolean DEFAULT false NOT NULL,
function_hashes text,
scc_id integer,
last_fixpoint_iterations integer,
created_at timestamptz DEFAULT now() NOT NULL,
updated_at timestamptz DEFAULT now() NOT NULL,
pgt_owner oid NOT NULL,
requested_mode text DEFAULT 'AUTO'::text NOT NULL,
canonical_query text,
row_id_salt bigint DEFAULT 0 NOT NULL,
engine text DEFAULT 'auto'::text NOT NULL,
explain jsonb DEFAULT '{}'::jsonb NOT NULL,
fallback_reason text,
requested_cdc_mode text,
append_only boolean DEFAULT false NOT NULL,
plan_texts jsonb DEFAULT '{}'::jsonb NOT NULL,
executor_costs jsonb DEFAULT '{}'::jsonb NOT NULL,
CONSTRAINT pgt_stream_tables_diamond_consistency_check CHECK ((diamond_consistency = ANY (ARRAY['none'::text, 'atomic'::text]))),
CONSTRAINT pgt_stream_tables_diamond_schedule_policy_check CHECK ((diamond_schedule_policy = ANY (ARRAY['fastest'::text, 'slowest'::text]))),
CONSTRAINT pgt_stream_tables_engine_check CHECK ((engine = ANY (ARRAY['auto'::text, 'spark'::text, 'postgres'::text]))),
CONSTRAINT pgt_stream_tables_refresh_mode_check CHECK ((refresh_mode = ANY (ARRAY['FULL'::text, 'DIFFERENTIAL'::text, 'IMMEDIATE'::text]))),
CONSTRAINT pgt_stream_tables_requested_cdc_mode_check CHECK ((requested_cdc_mode = ANY (ARRAY['auto'::text, 'trigger'::text, 'wal'::text]))),
CONSTRAINT pgt_stream_tables_requested_mode_check CHECK ((requested_mode = ANY (ARRAY['AUTO'::text, 'FULL'::text, 'DIFFERENTIAL'::text, 'IMMEDIATE'::text]))),
CONSTRAINT pgt_stream_tables_status_check CHECK ((status = ANY (ARRAY['INITIALIZING'::text, 'ACTIVE'::text, 'SUSPENDED'::text, 'ERROR'::text])))
)
WITH (fillfactor='70');
CREATE FUNCTION pgtrickle._alert(event text, st pgtrickle.pgt_stream_tables, reason text) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._analysed(query text, path text, parts text[], errors_told bool) RETURNS jsonb LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._apply(statement text, parameters jsonb, data_errors bool) RETURNS jsonb LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._apply_changes(statement text, parameters jsonb) RETURNS jsonb LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._as_of(subscription_id bigint, as_of bigint, at_least bool, OUT mz_timestamp bigint, OUT snapshot text) RETURNS record LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._base_type(typid oid, typmod integer) RETURNS text
LANGUAGE plpgsql STABLE
SET search_path TO 'pg_catalog', 'pg_temp'
AS $$
BEGIN
RETURN (
WITH RECURSIVE base(typid, typmod) AS (
SELECT _base_type.typid, _base_type.typmod
UNION ALL
SELECT t.typbasetype, t.typtypmod FROM base b JOIN pg_type t ON t.oid = b.typid AND t.typtype = 'd'
)
SELECT format_type(b.typid, b.typmod)
FROM base b JOIN pg_type t ON t.oid = b.typid AND t.typtype <> 'd');
END $$;
CREATE FUNCTION pgtrickle._begin_refresh(pgt_id bigint, wait bool DEFAULT false) RETURNS jsonb LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._begin_tick(source oid, ticks bigint) RETURNS TABLE(owner text, statement text, parameters text) LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._body_hash(function oid) RETURNS text LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._buffer_fits(source oid, columns text[]) RETURNS boolean
LANGUAGE sql STABLE
SET search_path TO 'pg_catalog', 'pg_temp'
AS $$
SELECT NOT EXISTS (
SELECT FROM pg_attribute a
LEFT JOIN pg_attribute b ON b.attrelid = to_regclass('pgtrickle_changes.changes_' || source)
AND b.attname = a.attname AND NOT b.attisdropped
WHERE a.attrelid = source AND a.attnum > 0 AND NOT a.attisdropped AND a.attname = ANY (columns)
AND (format_type(b.atttypid, b.atttypmod), b.attcollation)
IS DISTINCT FROM (pgtrickle._base_type(a.atttypid, a.atttypmod), a.attcollation))
$$;
CREATE FUNCTION pgtrickle._caller() RETURNS oid LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._capture_emptying(source oid) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._capture_gap(source oid, same_generation bool, relations oid[], trigger_state text, has_children bool) RETURNS text LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._capture_obstacle(source oid) RETURNS text LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._capture_source(owner oid, source oid, columns text[], keyed bool, hint text) RETURNS jsonb LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._capture_triggers(source oid, OUT event text, OUT name text) RETURNS SETOF record
LANGUAGE sql IMMUTABLE ROWS 4
SET search_path TO 'pg_catalog', 'pg_temp'
AS $$
VALUES ('INSERT', 'pg_trickle_cdc_ins_' || source), ('UPDATE', 'pg_trickle_cdc_upd_' || source),
('DELETE', 'pg_trickle_cdc_del_' || source), ('TRUNCATE', 'pg_trickle_cdc_truncate_' || source)
$$;
CREATE FUNCTION pgtrickle._captured_value(source oid, column_name text, alias text) RETURNS text
LANGUAGE sql STABLE
SET search_path TO 'pg_catalog', 'pg_temp'
AS $$
SELECT CASE WHEN a.attgenerated = 'v'
THEN format('(%s)', (SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_attrdef d
WHERE d.adrelid = a.attrelid AND d.adnum = a.attnum))
ELSE format('%I.%I', alias, column_name) END
FROM pg_attribute a
WHERE a.attrelid = source AND a.attname = column_name AND a.attnum > 0 AND NOT a.attisdropped
$$;
CREATE FUNCTION pgtrickle._carrier(typid oid) RETURNS text LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._change_position(OUT change_position bigint, OUT settled bool) RETURNS record LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._changed_function(hashes text) RETURNS text LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._changed_since(source oid, snapshot text) RETURNS bool LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._check_left_behind(path text, known text[]) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._check_name(name text) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._check_options(diamond_consistency text, diamond_schedule_policy text, cdc_mode text, append_only bool) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._check_owner(owner oid, name text) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._check_readable(owner oid, source oid, columns text[]) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._check_refresh_mode(refresh_mode text) RETURNS text LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._check_schedule(schedule text) RETURNS text LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._check_top_level() RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._claim_stray_request() RETURNS TABLE(request_id bigint, kind text, arguments text, search_path text, requested_by text) LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._cleanup_buffers() RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._cluster() RETURNS text LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._column_snapshot(source oid, columns text[]) RETURNS jsonb LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._column_types(relid oid) RETURNS jsonb LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._columns(relid oid) RETURNS jsonb LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._copied_types(relid oid, columns text[]) RETURNS jsonb LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._create_copy(source oid, owner oid) RETURNS jsonb LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._create_view(definition jsonb) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._creation_target(name text, OUT parts text[], OUT has_schema bool, OUT is_taken bool, OUT is_stream_table bool) RETURNS record LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._dependents(schema text) RETURNS text[] LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._domain_functions(domain oid) RETURNS TABLE(oid oid) LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._drop_capture(source oid) RETURNS void
LANGUAGE plpgsql
SET search_path TO 'pg_catalog', 'pg_temp'
AS $$
DECLARE
target regprocedure;
buffer regclass := to_regclass('pgtrickle_changes.changes_' || source);
BEGIN
PERFORM pgtrickle._drop_capture_triggers(source, relid)
FROM pgtrickle.pgt_captures c, unnest(c.relations) AS relid
WHERE c.source_relid = source;
FOR target IN
SELECT to_regprocedure(format('pgtrickle_changes.%I()', t.name)) FROM pgtrickle._capture_triggers(source) t
WHERE to_regprocedure(format('pgtrickle_changes.%I()', t.name)) IS NOT NULL
LOOP
EXECUTE format('DROP FUNCTION %s', target);
END LOOP;
IF buffer IS NOT NULL THEN
EXECUTE format('DROP TABLE %s', buffer);
END IF;
DELETE FROM pgtrickle.pgt_captures c WHERE c.source_relid = source;
END $$;
CREATE FUNCTION pgtrickle._drop_capture_triggers(source oid, relation oid) RETURNS void
LANGUAGE plpgsql
SET search_path TO 'pg_catalog', 'pg_temp'
AS $$
DECLARE
trigger_name name;
BEGIN
FOR trigger_name IN
SELECT t.tgname FROM pg_trigger t
WHERE t.tgrelid = relation
AND (t.tgname IN (SELECT c.name FROM pgtrickle._capture_triggers(source) c)
OR t.tgname IN ('pg_trickle_pin_' || source, 'pg_trickle_cdc_emptied_' || source))
LOOP
EXECUTE format('DROP TRIGGER IF EXISTS %I ON %s', trigger_name, pgtrickle._qualified(relation));
END LOOP;
END $$;
CREATE FUNCTION pgtrickle._drop_copies() RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._effective_seconds(pgt_id bigint) RETURNS bigint LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._execute(parameters jsonb) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._explain(pgt_id bigint) RETURNS TABLE(property text, value text) LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._fail_history(relation oid, message text) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._fail_request(request_id bigint, sqlstate text, message text) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._fail_tick(source oid, message text) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._fingerprint(source oid, columns text[]) RETURNS text
LANGUAGE plpgsql STABLE
SET search_path TO 'pg_catalog', 'pg_temp'
AS $$
DECLARE
description text;
generated boolean;
labelled boolean;
kind "char";
key text;
BEGIN
SELECT string_agg(concat_ws(' ', a.attname, a.atttypid, a.atttypmod, a.attcollation, a.attgenerated), ',' ORDER BY a.attname),
bool_or(a.attgenerated <> ''), bool_or(a.atttypid >= 16384), (SELECT c.relkind FROM pg_class c WHERE c.oid = source),
(SELECT i.indkey::text FROM pg_index i WHERE i.indrelid = source AND i.indisprimary)
INTO description, generated, labelled, kind, key
FROM pg_attribute a
WHERE a.attrelid = source AND a.attname = ANY (columns) AND a.attnum > 0 AND NOT a.attisdropped;
IF generated THEN
description := description || (
SELECT string_agg(pg_get_expr(d.adbin, d.adrelid), ',' ORDER BY a.attname)
FROM pg_attribute a JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = source AND a.attname = ANY (columns) AND a.attgenerated <> '');
END IF;
IF labelled THEN
description := concat(description, (
WITH RECURSIVE reached(typid) AS (
SELECT a.atttypid FROM pg_attribute a
WHERE a.attrelid = source AND a.attname = ANY (columns) AND a.attnum > 0 AND NOT a.attisdropped
UNION
SELECT m.typid
FROM reached r JOIN pg_type t ON t.oid = r.typid,
LATERAL (SELECT t.typelem UNION ALL SELECT t.typbasetype UNION ALL
SELECT f.atttypid FROM pg_attribute f
WHERE f.attrelid = t.typrelid AND f.attnum > 0 AND NOT f.attisdropped) AS m(typid)
WHERE m.typid <> 0)
SELECT string_agg(format(' %s %L', e.oid, e.enumlabel), ',' ORDER BY e.oid)
FROM reached r JOIN pg_enum e ON e.enumtypid = r.typid));
END IF;
description := concat(description, ' key ', key);
IF kind IN ('v', 'm') THEN
description := coalesce(description, '') || pg_get_viewdef(source);
END IF;
RETURN encode(sha256(convert_to(coalesce(description, ''), 'UTF8')), 'hex');
END $$;
CREATE FUNCTION pgtrickle._finish_refresh(pgt_id bigint, result jsonb) RETURNS jsonb LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._finish_request(request_id bigint) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._follow_for_history(relation oid) RETURNS jsonb LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._forget_history_sources(relation oid) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._grant_buffer(source oid, owner oid, columns text[]) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._guard() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._held_from(subscription_id bigint, OUT held_from bigint, OUT lacking oid) RETURNS record LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._history_grace() RETURNS bigint LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._history_sources(relation oid, owner oid) RETURNS jsonb LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._hold_for_mirror(mirror uuid, source oid, frontier pg_snapshot, cleaned text) RETURNS bool LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._hold_sources(sources oid[]) RETURNS bool LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._install_guard(relid oid) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._is_followed(source oid) RETURNS bool LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._is_source(source oid) RETURNS bool LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._is_stale(pgt_id bigint) RETURNS bool LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._little_endian(input bytea, at int, n int) RETURNS bigint LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._live_sources() RETURNS TABLE(source bigint, seconds double precision) LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._may_act_for(owner oid) RETURNS bool LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._mentioned_functions(code text) RETURNS TABLE(oid oid) LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._mirror_has(mirror uuid, frontier pg_snapshot, log_version bigint, seconds double precision, used bool) RETURNS bool LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._mirrored_source(source oid, OUT identity text, OUT columns json, OUT cleaned text) RETURNS SETOF record LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._not_supported(what text, hint text DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._note_dependency(pgt_id bigint, source oid, columns text[], generation uuid) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._note_polls(pgt_id bigint, copies jsonb) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._note_tick(mz_timestamp bigint, snapshot text) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._nothing_to_refresh(name text, path text) RETURNS bool LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._notice(level text, message text, hint text) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._on_ddl_end() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path TO 'pg_catalog', 'pg_temp'
SET plan_cache_mode TO 'force_generic_plan'
AS $$
DECLARE
capture record;
kept text[];
BEGIN
IF NOT EXISTS (
SELECT FROM pg_event_trigger_ddl_commands() e
WHERE e.schema_name IS DISTINCT FROM 'pg_temp'
AND (e.command_tag <> 'ALTER TABLE' OR e.classid <> 'pg_class'::regclass
OR EXISTS (SELECT FROM pgtrickle.pgt_dependencies d WHERE d.source_relid = e.objid)
OR EXISTS (SELECT FROM pgtrickle.pgt_captures k WHERE e.objid = ANY (k.relations))
OR EXISTS (SELECT FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_relid = e.objid)
OR EXISTS (SELECT FROM pg_inherits h WHERE h.inhparent = e.objid))
) THEN
RETURN;
END IF;
FOR capture IN
SELECT k.source_relid, k.captured_columns, k.fingerprint
FROM pgtrickle.pgt_captures k
WHERE EXISTS (SELECT FROM pg_event_trigger_ddl_commands() e
WHERE e.classid = 'pg_class'::regclass AND e.objid = ANY (k.relations))
LOOP
kept := ARRAY(SELECT name FROM unnest(capture.captured_columns) AS name
WHERE EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = capture.source_relid AND a.attname = name
AND a.attnum > 0 AND NOT a.attisdropped)
AND pgtrickle._buffer_fits(capture.source_relid, ARRAY[name]));
IF capture.fingerprint <> pgtrickle._fingerprint(capture.source_relid, capture.captured_columns) THEN
PERFORM pgtrickle._write_capture_functions(capture.source_relid, kept);
UPDATE pgtrickle.pgt_captures k
SET captured_columns = kept, fingerprint = pgtrickle._fingerprint(k.source_relid, kept)
WHERE k.source_relid = capture.source_relid;
END IF;
END LOOP;
IF EXISTS (SELECT FROM pg_event_trigger_ddl_commands() e
WHERE e.command_tag = 'REVOKE' AND lower(e.object_type) IN ('table', 'schema')
OR e.command_tag = 'ALTER TABLE'
AND e.objid IN (SELECT unnest(k.relations) FROM pgtrickle.pgt_captures k)) THEN
PERFORM pgtrickle._revoke_buffers();
END IF;
UPDATE pgtrickle.pgt_stream_tables s
SET needs_reinit = true, updated_at = clock_timestamp()
FROM (
SELECT DISTINCT d.pgt_id
FROM pg_event_trigger_ddl_commands() e
JOIN pgtrickle.pgt_dependencies d
ON d.source_relid = e.objid
OR d.source_relid = (SELECT p.polrelid FROM pg_policy p WHERE e.classid = 'pg_policy'::regclass AND p.oid = e.objid)
OR EXISTS (SELECT FROM pgtrickle.pgt_captures k WHERE k.source_relid = d.source_relid AND e.objid = ANY (k.relations))
OR EXISTS (SELECT FROM pgtrickle.pgt_captures k JOIN pg_inherits h ON h.inhrelid = ANY (k.relations)
WHERE k.source_relid = d.source_relid AND h.inhparent = e.objid)
LEFT JOIN pgtrickle.pgt_captures k ON k.source_relid = d.source_relid
WHERE e.command_tag IN ('CREATE POLICY', 'ALTER POLICY')
OR e.command_tag IN ('ALTER TABLE', 'CREATE VIEW', 'ALTER VIEW')
AND (d.schema_fingerprint IS DISTINCT FROM
pgtrickle._fingerprint(d.source_relid, d.columns_used)
OR k.relations <> pgtrickle._relations(d.source_relid)
OR EXISTS (SELECT FROM pg_inherits h
WHERE h.inhrelid = ANY (k.relations) AND NOT h.inhparent = ANY (k.relations))
OR pgtrickle._rls_setting(d.source_relid) IS DISTINCT FROM d.column_snapshot->>'rls')
) AS affected
WHERE s.pgt_id = affected.pgt_id AND NOT s.needs_reinit;
UPDATE pgtrickle.pgt_stream_tables s
SET pgt_name = c.relname, pgt_schema = n.nspname, pgt_owner = c.relowner,
needs_reinit = s.needs_reinit OR s.pgt_owner <> c.relowner, updated_at = clock_timestamp()
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = s.pgt_relid
AND c.oid IN (SELECT e.objid FROM pg_event_trigger_ddl_commands() e WHERE e.classid = 'pg_class'::regclass)
AND (s.pgt_name, s.pgt_schema, s.pgt_owner) IS DISTINCT FROM (c.relname::text, n.nspname::text, c.relowner);
END $$;
CREATE FUNCTION pgtrickle._on_emptied() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._on_rewrite() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path TO 'pg_catalog', 'pg_temp'
AS $$
BEGIN
UPDATE pgtrickle.pgt_stream_tables s
SET needs_reinit = true, updated_at = clock_timestamp()
FROM pgtrickle.pgt_dependencies d LEFT JOIN pgtrickle.pgt_captures k ON k.source_relid = d.source_relid
WHERE d.pgt_id = s.pgt_id AND NOT s.needs_reinit
AND (d.source_relid = pg_event_trigger_table_rewrite_oid()
OR pg_event_trigger_table_rewrite_oid() = ANY (k.relations));
END $$;
CREATE FUNCTION pgtrickle._on_sql_drop() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path TO 'pg_catalog', 'pg_temp'
AS $$
DECLARE
gone oid[] := ARRAY(SELECT o.objid FROM pg_event_trigger_dropped_objects() o
WHERE o.classid = 'pg_class'::regclass AND o.objsubid = 0 AND NOT o.is_temporary
AND o.object_type IN ('table', 'view', 'materialized view', 'foreign table'));
policies text[] := ARRAY(SELECT o.address_names[1] || '.' || o.address_names[2]
FROM pg_event_trigger_dropped_objects() o WHERE o.object_type = 'policy');
BEGIN
IF cardinality(policies) > 0 THEN
UPDATE pgtrickle.pgt_stream_tables s SET needs_reinit = true, updated_at = clock_timestamp()
FROM pgtrickle.pgt_dependencies d
WHERE d.pgt_id = s.pgt_id
AND (d.column_snapshot->>'schema') || '.' || (d.column_snapshot->>'name') = ANY (policies);
END IF;
IF cardinality(gone) = 0 THEN
RETURN;
END IF;
DELETE FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_relid = ANY (gone);
UPDATE pgtrickle.pgt_stream_tables s
SET status = 'ERROR', needs_reinit = true, updated_at = clock_timestamp(),
fallback_reason = format('source %s.%s was dropped', d.column_snapshot->>'schema', d.column_snapshot->>'name')
FROM pgtrickle.pgt_dependencies d
WHERE d.pgt_id = s.pgt_id AND d.source_relid = ANY (gone);
PERFORM pgtrickle._drop_capture(c.source_relid)
FROM pgtrickle.pgt_captures c WHERE c.source_relid = ANY (gone);
PERFORM pgtrickle._revoke_buffers();
END $$;
CREATE FUNCTION pgtrickle._on_trigger() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path TO 'pg_catalog', 'pg_temp'
AS $$
BEGIN
PERFORM pgtrickle._refuse_interference(s.pgt_relid)
FROM pgtrickle.pgt_stream_tables s
WHERE s.pgt_relid IN (SELECT t.tgrelid FROM pg_event_trigger_ddl_commands() e JOIN pg_trigger t ON t.oid = e.objid
WHERE e.classid = 'pg_trigger'::regclass
UNION ALL
SELECT r.ev_class FROM pg_event_trigger_ddl_commands() e JOIN pg_rewrite r ON r.oid = e.objid
WHERE e.classid = 'pg_rewrite'::regclass);
END $$;
CREATE FUNCTION pgtrickle._own_stream_table(pgt_id bigint) RETURNS pgtrickle.pgt_stream_tables LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._owner_of(pgt_id bigint) RETURNS oid LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._path_schemas(path text) RETURNS SETOF text LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._pending(source oid, frontier jsonb) RETURNS bigint LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._pending_requests() RETURNS TABLE(request_id bigint, kind text, arguments text, search_path text, requested_by text) LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._pin() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._pin_columns(source oid, columns text[]) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._plain_type(typid oid) RETURNS text LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._poll(statement text) RETURNS jsonb LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._polls(pgt_id bigint) RETURNS jsonb LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._prune_history() RETURNS bigint LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._qualified(relid oid) RETURNS text
LANGUAGE plpgsql STABLE STRICT
SET search_path TO 'pg_catalog', 'pg_temp'
AS $$
BEGIN
RETURN (SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = relid);
END $$;
CREATE FUNCTION pgtrickle._raise(sqlstate text, message text, detail text, hint text) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._read_obstacle(owner oid, source oid, columns text[]) RETURNS text
LANGUAGE plpgsql STABLE
SET search_path TO 'pg_catalog', 'pg_temp'
AS $$
DECLARE
missing text;
r record;
BEGIN
SELECT c.relrowsecurity, c.relforcerowsecurity, c.relowner, c.relnamespace, c.relkind INTO r
FROM pg_class c WHERE c.oid = source;
IF NOT FOUND THEN
RETURN format('relation with OID %s does not exist', source);
ELSIF r.relkind = 'v' THEN
RETURN NULL;  -- PostgreSQL checks it, and the rights of its owner below it, when the query runs.
ELSIF NOT has_schema_privilege(owner, r.relnamespace, 'USAGE') THEN
RETURN format('permission denied for schema %I', r.relnamespace::regnamespace);
ELSIF NOT has_table_privilege(owner, source, 'SELECT') THEN
SELECT string_agg(quote_ident(name), ', ') INTO missing
FROM unnest(columns) AS name
WHERE EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = source AND a.attname = name AND NOT a.attisdropped)
AND NOT has_column_privilege(owner, source, name, 'SELECT');
IF missing IS NOT NULL THEN
RETURN format('permission denied for column %s of table %s', missing, pgtrickle._qualified(source));
ELSIF cardinality(columns) = 0 AND NOT has_any_column_privilege(owner, source, 'SELECT') THEN
RETURN format('permission denied for table %s', pgtrickle._qualified(source));
END IF;
END IF;
IF r.relrowsecurity
AND NOT EXISTS (SELECT FROM pg_roles a WHERE a.oid = owner AND (a.rolsuper OR a.rolbypassrls))
AND NOT (pg_has_role(owner, r.relowner, 'USAGE') AND NOT r.relforcerowsecurity) THEN
RETURN format('row-level security of table %s applies to role %I', pgtrickle._qualified(source),
(SELECT a.rolname FROM pg_roles a WHERE a.oid = owner));
END IF;
RETURN NULL;
END $$;
CREATE FUNCTION pgtrickle._refresh_context(pgt_id bigint, system text, most int) RETURNS jsonb LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._refresh_history(pgt_id bigint, max_rows int) RETURNS TABLE(refresh_id bigint, data_timestamp timestamptz, start_time timestamptz, end_time timestamptz, action text, status text, rows_inserted bigint, rows_deleted bigint, duration_ms double precision, error_message text) LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._refuse_interference(relid oid) RETURNS void
LANGUAGE plpgsql
SET search_path TO 'pg_catalog', 'pg_temp'
SET plan_cache_mode TO 'force_generic_plan'
AS $$
DECLARE
storage record;
culprit text;
BEGIN
SELECT c.relname, c.relhasrules, c.relhastriggers,
c.relrowsecurity AND c.relforcerowsecurity AND NOT (o.rolsuper OR o.rolbypassrls) AS policies
INTO storage FROM pg_class c JOIN pg_roles o ON o.oid = c.relowner WHERE c.oid = relid;
IF storage.relhastriggers THEN
SELECT t.tgname INTO culprit FROM pg_trigger t
WHERE t.tgrelid = relid AND t.tgtype::int & 3 = 3 AND t.tgenabled IN ('O', 'A') AND NOT t.tgisinternal LIMIT 1;
IF culprit IS NOT NULL THEN
RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format(
'trigger "%s" on stream table "%s" could change or cancel what a refresh does', culprit, storage.relname),
HINT = 'Triggers on a stream table must be AFTER, or FOR EACH STATEMENT.';
END IF;
END IF;
IF storage.relhasrules THEN
SELECT r.rulename INTO culprit FROM pg_rewrite r
WHERE r.ev_class = relid AND r.ev_enabled IN ('O', 'A') LIMIT 1;
IF culprit IS NOT NULL THEN
RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format(
'rule "%s" on stream table "%s" could change or cancel what a refresh does', culprit, storage.relname);
END IF;
END IF;
IF storage.policies THEN
RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format(
'row-level security of stream table "%s" is forced on its owner, so that a refresh would not see all rows', storage.relname),
HINT = format('ALTER TABLE %s NO FORCE ROW LEVEL SECURITY.', pgtrickle._qualified(relid));
END IF;
END $$;
CREATE FUNCTION pgtrickle._register(definition jsonb) RETURNS bigint LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._register_source(source oid, tick_interval text) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._relations(source oid) RETURNS oid[]
LANGUAGE plpgsql STABLE STRICT
SET search_path TO 'pg_catalog', 'pg_temp'
AS $$
BEGIN
RETURN (WITH RECURSIVE tree(relid) AS (
SELECT source
UNION
SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.relid
)
SELECT array_agg(relid ORDER BY relid) FROM tree);
END $$;
CREATE FUNCTION pgtrickle._release_mirrors() RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._remove_lost_subscriptions() RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._remove_staging_leftovers() RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._request(kind text, arguments jsonb, path text) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._request_alter(name text, query text, schedule text, refresh_mode text, status text, diamond_consistency text, diamond_schedule_policy text, cdc_mode text, append_only bool, path text) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._request_copy(statement text) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._request_create(name text, query text, schedule text, refresh_mode text, initialize bool, diamond_consistency text, diamond_schedule_policy text, cdc_mode text, append_only bool, engine text, if_not_exists bool, path text) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._request_extension(action text, name text, guarded bool, cascade bool, schema text) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._request_left() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._request_named(kind text, name text, path text) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._request_statement(statement text) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._resolve(name text) RETURNS bigint LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._resolve(name text, path text, missing_ok bool DEFAULT false) RETURNS bigint LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._retain_history(relation oid, period interval) RETURNS jsonb LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._retains_history() RETURNS bool LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._revoke_buffers() RETURNS void
LANGUAGE plpgsql
SET search_path TO 'pg_catalog', 'pg_temp'
AS $_$
DECLARE
g record;
BEGIN
IF current_setting('pgtrickle.revoking', true) = 'on' THEN
RETURN;  -- called by the event trigger of its own REVOKE
END IF;
FOR g IN
SELECT k.source_relid AS source, r.rolname, string_agg(quote_ident(a.attname), ', ') AS columns
FROM pgtrickle.pgt_captures k
JOIN pg_attribute a ON a.attrelid = to_regclass('pgtrickle_changes.changes_' || k.source_relid)
AND NOT a.attisdropped AND a.attacl IS NOT NULL
CROSS JOIN aclexplode(a.attacl) AS e
JOIN pg_roles r ON r.oid = e.grantee
WHERE NOT EXISTS (SELECT FROM pgtrickle.pgt_dependencies d JOIN pgtrickle.pgt_stream_tables s USING (pgt_id)
WHERE d.source_relid = k.source_relid AND s.pgt_owner = e.grantee)
AND NOT EXISTS (SELECT FROM pgtrickle.pgt_subscription_sources u
WHERE u.source_relid = k.source_relid AND u.reader = e.grantee)
OR pgtrickle._read_obstacle(e.grantee, k.source_relid, CASE WHEN a.attname ~ '^__pgt_(change_id|xid|w)$'
THEN '{}' ELSE ARRAY[a.attname::text] END) IS NOT NULL
GROUP BY k.source_relid, r.rolname
LOOP
PERFORM pg_advisory_xact_lock(pgtrickle._source_lock_class() + 1, pgtrickle._source_lock_key(g.source));
PERFORM set_config('pgtrickle.revoking', 'on', true);
EXECUTE format('REVOKE SELECT (%s) ON pgtrickle_changes.%I FROM %I', g.columns, 'changes_' || g.source, g.rolname);
PERFORM set_config('pgtrickle.revoking', '', true);
END LOOP;
PERFORM pgtrickle._revoke_copies();
END $_$;
CREATE FUNCTION pgtrickle._revoke_copies() RETURNS void
LANGUAGE plpgsql
SET search_path TO 'pg_catalog', 'pg_temp'
AS $$
DECLARE
c record;
BEGIN
FOR c IN
SELECT DISTINCT p.copy_name, a.rolname
FROM pgtrickle.pgt_polls p
JOIN pg_class r ON r.relnamespace = 'pgtrickle_changes'::regnamespace AND r.relname = p.copy_name
CROSS JOIN aclexplode(r.relacl) AS e
JOIN pg_roles a ON a.oid = e.grantee AND a.oid <> r.relowner
LEFT JOIN pg_namespace n ON n.nspname = p.foreign_schema
LEFT JOIN pg_class f ON f.relnamespace = n.oid AND f.relname = p.foreign_name AND f.relkind = 'f'
WHERE f.oid IS NULL OR pgtrickle._read_obstacle(a.oid, f.oid, p.copied_columns) IS NOT NULL
OR NOT EXISTS (SELECT FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = p.pgt_id AND s.pgt_owner = a.oid)
LOOP
PERFORM set_config('pgtrickle.revoking', 'on', true);
EXECUTE format('REVOKE ALL ON pgtrickle_changes.%I FROM %I', c.copy_name, c.rolname);
PERFORM set_config('pgtrickle.revoking', '', true);
END LOOP;
END $$;
CREATE FUNCTION pgtrickle._rls_setting(source oid) RETURNS text
LANGUAGE plpgsql STABLE STRICT
SET search_path TO 'pg_catalog', 'pg_temp'
AS $$
BEGIN
RETURN (
SELECT CASE WHEN c.relforcerowsecurity THEN 'forced' WHEN c.relrowsecurity THEN 'on' ELSE 'off' END
FROM pg_class c WHERE c.oid = source);
END $$;
CREATE FUNCTION pgtrickle._role_function(owner oid, prefix text, arguments text, mark text, declared text) RETURNS text LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._rotate64(x bigint, by int) RETURNS bigint LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._row_key(source oid) RETURNS text[] LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._row_runner(owner oid) RETURNS text LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._rows(query text, parameters jsonb, settings jsonb, names text[], types regtype[]) RETURNS SETOF record LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._run(statement text, parameters jsonb) RETURNS jsonb LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._runner(owner oid) RETURNS text LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._scheduler_running() RETURNS bool LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._session_objects() RETURNS text[] LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._set_dependencies(pgt_id bigint, sources jsonb) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._set_poll_files(pgt_id bigint, schema text, name text, files text) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._set_state(pgt_id bigint, changes jsonb) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._setting(name text, fallback text) RETURNS text LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._signature(function oid) RETURNS text LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._snapshot_at(moment bigint) RETURNS text LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._source_info(relids oid[]) RETURNS jsonb LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._source_lock_class() RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT 1885824099 $$;
CREATE FUNCTION pgtrickle._source_lock_key(source oid) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path TO 'pg_catalog', 'pg_temp'
AS $$
SELECT CASE WHEN source::bigint > 2147483647 THEN (source::bigint - 4294967296)::int ELSE source::bigint::int END
$$;
CREATE FUNCTION pgtrickle._source_type(source oid) RETURNS text LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._sources(pgt_id bigint) RETURNS TABLE(source_table text, source_oid bigint, source_type text, cdc_mode text, columns_used text) LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._staleness(pgt_id bigint) RETURNS double precision LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._stamped(frontier jsonb) RETURNS jsonb LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._subscribe(server int, definition jsonb) RETURNS jsonb LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._subscriber_obstacle(reader oid, source oid, columns text[]) RETURNS text LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._subscription_lock_class() RETURNS int LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._subscription_news(ids bigint[], seen pg_snapshot, thorough bool, OUT id bigint, OUT changed bigint[], OUT held bool, OUT code text, OUT message text) RETURNS SETOF record LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._subscription_obstacle(id bigint, OUT code text, OUT message text) RETURNS SETOF record LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._system() RETURNS text LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._tick(target bigint, OUT mz_timestamp bigint, OUT snapshot text) RETURNS record LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._timeline_lock() RETURNS bigint LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._track_source(pgt_id bigint, source oid, columns text[], keyed bool DEFAULT false) RETURNS jsonb LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._track_sources(pgt_id bigint, sources jsonb) RETURNS bool LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._trigger_state(source oid, relations oid[]) RETURNS text LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._try_track_sources(pgt_id bigint, sources jsonb) RETURNS jsonb LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._type_traits(typid oid, modifier int, collation_id oid, OUT hashable bool, OUT faithful bool) RETURNS record LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._unfollowed() RETURNS bool LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._unknown_value(option text, value text, allowed text) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._unregister(pgt_id bigint) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._unsubscribe(ids bigint[]) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._untrack_sources() RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._view_functions(view_relid oid) RETURNS jsonb LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._view_operators(view_relid oid) RETURNS text LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._view_sources(view_relid oid) RETURNS jsonb LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._wrap64(n numeric) RETURNS bigint LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle._write_buffer(source oid, columns text[]) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._write_capture_functions(source oid, columns text[]) RETURNS void
LANGUAGE plpgsql
SET search_path TO 'pg_catalog', 'pg_temp'
AS $$
DECLARE
targets text;
old_values text;
new_values text;
number text := 'pg_catalog.nextval(''pgtrickle_changes.change_id_seq''::pg_catalog.regclass)';
same_number text;
xid text := '(SELECT pg_catalog.pg_current_xact_id())';
into_buffer text;
pinned text := '';
r record;
BEGIN
SELECT coalesce(string_agg(format(', %I', name), '' ORDER BY place), ''),
coalesce(string_agg(', ' || pgtrickle._captured_value(source, name, 'o'), '' ORDER BY place), ''),
coalesce(string_agg(', ' || pgtrickle._captured_value(source, name, 'n'), '' ORDER BY place), '')
INTO targets, old_values, new_values
FROM unnest(columns) WITH ORDINALITY AS c(name, place);
into_buffer := format('INSERT INTO pgtrickle_changes.%I ("__pgt_change_id", "__pgt_xid", "__pgt_w"%s)',
'changes_' || source, targets);
same_number := format('CASE WHEN %I.found THEN pg_catalog.currval(''pgtrickle_changes.change_id_seq''::pg_catalog.regclass) '
'ELSE %s END', 'pg_trickle_cdc_upd_' || source, number);
IF EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = source AND a.attname = ANY (columns) AND a.attgenerated = 'v') THEN
pinned := 'SET search_path = pg_catalog, pg_temp';
END IF;
FOR r IN
SELECT t.event, t.name, CASE t.event
WHEN 'INSERT' THEN format('%s SELECT (SELECT %s), %s, 1::pg_catalog.int2%s FROM __pgt_new n',
into_buffer, number, xid, new_values)
WHEN 'DELETE' THEN format('%s SELECT (SELECT %s), %s, (-1)::pg_catalog.int2%s FROM __pgt_old o',
into_buffer, number, xid, old_values)
WHEN 'UPDATE' THEN format(E'%s SELECT (SELECT %s), %s, (-1)::pg_catalog.int2%s FROM __pgt_old o;\n    '
'%s SELECT (SELECT %s), %s, 1::pg_catalog.int2%s FROM __pgt_new n',
into_buffer, number, xid, old_values, into_buffer, same_number, xid, new_values)
ELSE format('INSERT INTO pgtrickle_changes.%I ("__pgt_change_id", "__pgt_w") '
'VALUES (%s, 0::pg_catalog.int2)', 'changes_' || source, number)
END AS statement
FROM pgtrickle._capture_triggers(source) t
LOOP
EXECUTE format(
'CREATE OR REPLACE FUNCTION pgtrickle_changes.%I() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER %s AS %L',
r.name, pinned, format(E'#variable_conflict use_column\nBEGIN\n    %s;\n    RETURN NULL;\nEND', r.statement));
EXECUTE format('REVOKE ALL ON FUNCTION pgtrickle_changes.%I() FROM PUBLIC', r.name);
END LOOP;
END $$;
CREATE FUNCTION pgtrickle._write_capture_triggers(source oid, relation oid) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle._xxhash64(input bytea, seed bigint) RETURNS bigint LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle.advance_watermark(source text, watermark timestamptz) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle.alter_stream_table(name text, query text DEFAULT NULL, schedule text DEFAULT NULL, refresh_mode text DEFAULT NULL, status text DEFAULT NULL, diamond_consistency text DEFAULT NULL, diamond_schedule_policy text DEFAULT NULL, cdc_mode text DEFAULT NULL, append_only bool DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle.bootstrap_gate_status() RETURNS TABLE(source_table text, schema_name text, gated bool, gated_at timestamptz, ungated_at timestamptz, gated_by text, gate_duration interval, affected_stream_tables text) LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle.change_buffer_sizes() RETURNS TABLE(stream_table text, source_table text, source_oid bigint, cdc_mode text, pending_rows bigint, buffer_bytes bigint) LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle.check_cdc_health() RETURNS TABLE(source_relid bigint, source_table text, cdc_mode text, slot_name text, lag_bytes bigint, confirmed_lsn text, alert text) LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle.create_or_replace_stream_table(name text, query text, schedule text DEFAULT 'calculated'::text, refresh_mode text DEFAULT 'AUTO'::text, initialize bool DEFAULT true, diamond_consistency text DEFAULT NULL, diamond_schedule_policy text DEFAULT NULL, cdc_mode text DEFAULT NULL, append_only bool DEFAULT false) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle.create_refresh_group(group_name text, members text[], isolation text DEFAULT 'read_committed'::text) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle.create_stream_table(name text, query text, schedule text DEFAULT 'calculated'::text, refresh_mode text DEFAULT 'AUTO'::text, initialize bool DEFAULT true, diamond_consistency text DEFAULT NULL, diamond_schedule_policy text DEFAULT NULL, cdc_mode text DEFAULT NULL, append_only bool DEFAULT false, engine text DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle.create_stream_table_if_not_exists(name text, query text, schedule text DEFAULT 'calculated'::text, refresh_mode text DEFAULT 'AUTO'::text, initialize bool DEFAULT true, diamond_consistency text DEFAULT NULL, diamond_schedule_policy text DEFAULT NULL, cdc_mode text DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle.create_watermark_group(group_name text, sources text[], tolerance_secs double precision DEFAULT 0) RETURNS int LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle.dependency_tree() RETURNS TABLE(tree_line text, node text, node_type text, depth int, status text, refresh_mode text) LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle.diamond_groups() RETURNS TABLE(group_id int, member_name text, member_schema text, is_convergence bool, epoch bigint, schedule_policy text) LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle.drop_refresh_group(group_name text) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle.drop_stream_table(name text) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle.drop_watermark_group(group_name text) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle.explain_st(name text) RETURNS TABLE(property text, value text) LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle.gate_source(source text) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle.get_refresh_history(name text, max_rows int DEFAULT 20) RETURNS TABLE(refresh_id bigint, data_timestamp timestamptz, start_time timestamptz, end_time timestamptz, action text, status text, rows_inserted bigint, rows_deleted bigint, duration_ms double precision, error_message text) LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle.get_staleness(name text) RETURNS double precision LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle.health_check() RETURNS TABLE(check_name text, severity text, detail text) LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle.history_status() RETURNS TABLE(name text, period interval, held_from bigint, held_since timestamptz, changes bigint, error text) LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle.list_sources(name text) RETURNS TABLE(source_table text, source_oid bigint, source_type text, cdc_mode text, columns_used text) LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle.parallel_job_status(max_age_seconds int DEFAULT 300) RETURNS TABLE(job_id bigint, unit_key text, unit_kind text, status text, member_count int, attempt_no int, scheduler_pid int, worker_pid int, enqueued_at timestamptz, started_at timestamptz, finished_at timestamptz, duration_ms double precision) LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle.parse_duration_seconds(input text) RETURNS bigint LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle.pg_trickle_hash(input text) RETURNS bigint LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle.pg_trickle_hash_multi(inputs text[]) RETURNS bigint LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle.pgt_scc_status() RETURNS TABLE(scc_id int, member_count int, members text[], last_iterations int, last_converged_at timestamptz) LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle.pgt_status() RETURNS TABLE(name text, status text, refresh_mode text, is_populated bool, consecutive_errors int, schedule text, data_timestamp timestamptz, staleness interval) LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle.refresh_groups() RETURNS TABLE(group_id int, group_name text, member_oids oid[], isolation text, created_at timestamptz) LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle.refresh_stream_table(name text) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle.refresh_timeline(max_rows int DEFAULT 50) RETURNS TABLE(start_time timestamptz, stream_table text, action text, status text, rows_inserted bigint, rows_deleted bigint, duration_ms double precision, error_message text) LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle.resume_stream_table(name text) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle.retain_history(name text, period interval) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle.slot_health() RETURNS TABLE(slot_name text, source_relid bigint, active bool, retained_wal_bytes bigint, wal_status text) LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle.source_gates() RETURNS TABLE(source_table text, schema_name text, gated bool, gated_at timestamptz, ungated_at timestamptz, gated_by text) LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle.source_status() RETURNS TABLE(name text, owner text, generator text, tick_interval interval, last_value bigint, last_tick_at timestamptz, error text) LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle.st_refresh_stats() RETURNS TABLE(pgt_name text, pgt_schema text, status text, refresh_mode text, is_populated bool, total_refreshes bigint, successful_refreshes bigint, failed_refreshes bigint, total_rows_inserted bigint, total_rows_deleted bigint, avg_duration_ms double precision, last_refresh_action text, last_refresh_status text, last_refresh_at timestamptz, staleness_secs double precision, stale bool) LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle.trigger_inventory() RETURNS TABLE(source_table text, source_oid bigint, trigger_name text, trigger_type text, present bool, enabled bool) LANGUAGE sql AS '';
CREATE FUNCTION pgtrickle.ungate_source(source text) RETURNS void LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle.watermark_groups() RETURNS TABLE(group_id int, group_name text, source_relids oid[], tolerance_secs double precision, created_at timestamptz) LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle.watermark_status() RETURNS TABLE(group_name text, min_watermark timestamptz, max_watermark timestamptz, lag_secs double precision, aligned bool, sources_with_watermark int, sources_total int) LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle.watermarks() RETURNS TABLE(source_table text, schema_name text, watermark timestamptz, updated_at timestamptz, advanced_by text, wal_lsn text) LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle.worker_pool_status() RETURNS TABLE(active_workers int, max_workers int, per_db_cap int, parallel_mode text) LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle_changes.pg_trickle_cdc_del_17560() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle_changes.pg_trickle_cdc_del_17568() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle_changes.pg_trickle_cdc_del_17590() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle_changes.pg_trickle_cdc_del_17595() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle_changes.pg_trickle_cdc_del_17601() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle_changes.pg_trickle_cdc_del_17621() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle_changes.pg_trickle_cdc_ins_17560() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle_changes.pg_trickle_cdc_ins_17568() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle_changes.pg_trickle_cdc_ins_17590() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle_changes.pg_trickle_cdc_ins_17595() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle_changes.pg_trickle_cdc_ins_17601() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle_changes.pg_trickle_cdc_ins_17621() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle_changes.pg_trickle_cdc_truncate_17560() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle_changes.pg_trickle_cdc_truncate_17568() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle_changes.pg_trickle_cdc_truncate_17590() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle_changes.pg_trickle_cdc_truncate_17595() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle_changes.pg_trickle_cdc_truncate_17601() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle_changes.pg_trickle_cdc_truncate_17621() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle_changes.pg_trickle_cdc_upd_17560() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle_changes.pg_trickle_cdc_upd_17568() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle_changes.pg_trickle_cdc_upd_17590() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle_changes.pg_trickle_cdc_upd_17595() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle_changes.pg_trickle_cdc_upd_17601() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle_changes.pg_trickle_cdc_upd_17621() RETURNS trigger LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle_roles.as_10(text, jsonb) RETURNS jsonb LANGUAGE plpgsql AS '';
CREATE FUNCTION pgtrickle_roles.as_17557(text, jsonb) RETURNS jsonb LANGUAGE plpgsql AS '';
ALTER FUNCTION pgtrickle_roles.as_17557(text, jsonb) OWNER TO upgrade_alice;
CREATE FUNCTION pgtrickle_roles.rows_as_10(text, jsonb, jsonb) RETURNS SETOF record LANGUAGE plpgsql AS '';
CREATE FOREIGN DATA WRAPPER headwater_lake;
CREATE VIEW accum._config AS
WITH settings(name, fallback, "least", most, unit, description) AS (
VALUES ('background_workers'::text,1,0,8,NULL::text,'Number of workers that merge and make partitions; 0: none.'::text), ('delta_merge_interval'::text,5000,1,2147483647,'ms'::text,'Time between two merges of pending rows.'::text), ('delta_merge_delay'::text,2000,0,2147483647,'ms'::text,'Pending rows are merged when they are that old.'::text), ('delta_merge_batch_size'::text,10000,1,2147483647,NULL::text,'Pending rows of a register that one merge takes.'::text), ('partitions_ahead'::text,3,0,1000,NULL::text,'Partitions that are kept ready for periods to come.'::text), ('maintenance_interval'::text,3600000,1,2147483647,'ms'::text,'Time between two looks after partitions.'::text)
), said AS (
SELECT s.name,
s.fallback,
s."least",
s.most,
s.unit,
s.description,
NULLIF(COALESCE(
CASE
WHEN (current_setting('headwater.engine'::text, true) = 'on'::text) THEN ( SELECT substr(entry.entry, (strpos(entry.entry, '='::text) + 1)) AS substr
FROM pg_db_role_setting d,
LATERAL unnest(d.setconfig) entry(entry)
WHERE ((d.setrole = (0)::oid) AND (d.setdatabase = ANY (ARRAY[(0)::oid, ( SELECT pg_database.oid
FROM pg_database
WHERE (pg_database.datname = current_database()))])) AND starts_with(lower(entry.entry), (('pg_accumulator.'::text || s.name) || '='::text)))
ORDER BY d.setdatabase DESC
LIMIT 1)
ELSE NULL::text
END, current_setting(('pg_accumulator.'::text || s.name), true)), ''::text) AS value
FROM settings s
), understood AS (
SELECT s.name,
s.fallback,
s."least",
s.most,
s.unit,
s.description,
s.value,
((part.part[1])::numeric * (
CASE lower(part.part[2])
WHEN 's'::text THEN 1000
WHEN 'min'::text THEN 60000
WHEN 'h'::text THEN 3600000
WHEN 'd'::text THEN 86400000
ELSE 1
END)::numeric) AS number
FROM (said s
LEFT JOIN LATERAL regexp_match(s.value,
CASE
WHEN (s.unit IS NULL) THEN '^\s*(\d{1,12})()\s*$'::text
ELSE '^\s*(\d{1,12})\s*(ms|s|min|h|d|)\s*$'::text
END) part(part) ON (true))
)
SELECT ('pg_accumulator.'::text || name) AS name,
(
CASE
WHEN ((number >= ("least")::numeric) AND (number <= (most)::numeric)) THEN number
ELSE (fallback)::numeric
END)::integer AS setting,
unit,
fallback AS "default",
"least" AS min_value,
most AS max_value,
description,
CASE
WHEN ((value IS NOT NULL) AND (((number >= ("least")::numeric) AND (number <= (most)::numeric)) IS NOT TRUE)) THEN format('"%s" is not a number between %s and %s'::text, value, "least", most)
ELSE NULL::text
END AS problem
FROM understood;
CREATE TABLE accum._maintenance_runs (
task text NOT NULL,
started_at timestamptz NOT NULL,
finished_at timestamptz NOT NULL
);
CREATE TABLE accum._schema_version (
version text NOT NULL,
description text NOT NULL,
applied_at timestamptz DEFAULT now() NOT NULL
);
CREATE TABLE accum.stock_balance_cache_epoch (
epoch uuid NOT NULL
);
CREATE TABLE accum.stock_balance_cache_stored (
dim_hash bigint NOT NULL,
product text,
warehouse integer,
quantity numeric(18,4) DEFAULT 0 NOT NULL,
last_movement_at timestamptz NOT NULL,
last_movement_id uuid NOT NULL,
version bigint DEFAULT 0 NOT NULL
)
WITH (fillfactor='80');
CREATE VIEW accum.stock_balance_cache AS
SELECT dim_hash,
product,
warehouse,
(sum(quantity))::numeric(18,4) AS quantity,
max(last_movement_at) AS last_movement_at,
(array_agg(last_movement_id ORDER BY every.last_movement_at DESC))[1] AS last_movement_id,
(sum(version))::bigint AS version
FROM ( SELECT counted.dim_hash,
counted.product,
counted.warehouse,
counted.quantity,
counted.version,
counted.last_movement_at,
counted.last_movement_id
FROM ( SELECT stock_balance_cache_stored.dim_hash,
stock_balance_cache_stored.product,
stock_balance_cache_stored.warehouse,
stock_balance_cache_stored.quantity,
stock_balance_cache_stored.version,
stock_balance_cache_stored.last_movement_at,
stock_balance_cache_stored.last_movement_id
FROM accum.stock_balance_cache_stored
UNION ALL
SELECT stock_balance_cache_delta.dim_hash,
stock_balance_cache_delta.product,
stock_balance_cache_delta.warehouse,
stock_balance_cache_delta.quantity,
stock_balance_cache_delta.version,
stock_balance_cache_delta.last_movement_at,
stock_balance_cache_delta.last_movement_id
FROM accum.stock_balance_cache_delta
WHERE (stock_balance_cache_delta.id <> 0)) counted
WHERE COALESCE((( SELECT m.last_movement_id
FROM accum.stock_balance_cache_delta m
WHERE (m.id = 0)) = ( SELECT e.epoch
FROM accum.stock_balance_cache_epoch e)), false)
UNION ALL
SELECT _recorded_stock.dim_hash,
_recorded_stock.product,
_recorded_stock.warehouse,
_recorded_stock.quantity,
_recorded_stock.version,
_recorded_stock.last_movement_at,
_recorded_stock.last_movement_id
FROM accum._recorded_stock(( SELECT stock_balance_cache_epoch.epoch
FROM accum.stock_balance_cache_epoch)) _recorded_stock(id, dim_hash, product, warehouse, day, quantity, version, last_movement_at, last_movement_id, created_at)
WHERE (NOT COALESCE((( SELECT m.last_movement_id
FROM accum.stock_balance_cache_delta m
WHERE (m.id = 0)) = ( SELECT e.epoch
FROM accum.stock_balance_cache_epoch e)), false))) every
GROUP BY dim_hash, product, warehouse;
CREATE UNLOGGED SEQUENCE accum.stock_balance_cache_delta_id_seq
START WITH 1
INCREMENT BY 1
NO MINVALUE
NO MAXVALUE
CACHE 1;
ALTER SEQUENCE accum.stock_balance_cache_delta_id_seq OWNED BY accum.stock_balance_cache_delta.id;
CREATE TABLE accum.stock_movements (
id uuid DEFAULT gen_random_uuid() NOT NULL,
recorded_at timestamptz DEFAULT now() NOT NULL,
recorder text NOT NULL,
period timestamptz NOT NULL,
movement_type text DEFAULT 'regular'::text NOT NULL,
dim_hash bigint NOT NULL,
product text,
warehouse integer,
quantity numeric(18,4) DEFAULT 0 NOT NULL,
CONSTRAINT is_finite CHECK ((isfinite(period) AND (quantity <> 'NaN'::numeric)))
)
PARTITION BY RANGE (period);
CREATE TABLE accum.stock_movements_audit (
audit_id bigint NOT NULL,
audit_operation text NOT NULL,
audit_at timestamptz DEFAULT now() NOT NULL,
audit_user text NOT NULL,
audit_session_user text NOT NULL,
id uuid NOT NULL,
recorded_at timestamptz NOT NULL,
recorder text NOT NULL,
period timestamptz NOT NULL,
movement_type text NOT NULL,
dim_hash bigint NOT NULL,
product text,
warehouse integer,
quantity numeric(18,4) NOT NULL
);
ALTER TABLE accum.stock_movements_audit ALTER COLUMN audit_id ADD GENERATED ALWAYS AS IDENTITY (
SEQUENCE NAME accum.stock_movements_audit_audit_id_seq
START WITH 1
INCREMENT BY 1
NO MINVALUE
NO MAXVALUE
CACHE 1
);
CREATE TABLE accum.stock_movements_default (
id uuid DEFAULT gen_random_uuid() CONSTRAINT stock_movements_id_not_null NOT NULL,
recorded_at timestamptz DEFAULT now() CONSTRAINT stock_movements_recorded_at_not_null NOT NULL,
recorder text CONSTRAINT stock_movements_recorder_not_null NOT NULL,
period timestamptz CONSTRAINT stock_movements_period_not_null NOT NULL,
movement_type text DEFAULT 'regular'::text CONSTRAINT stock_movements_movement_type_not_null NOT NULL,
dim_hash bigint CONSTRAINT stock_movements_dim_hash_not_null NOT NULL,
product text,
warehouse integer,
quantity numeric(18,4) DEFAULT 0 CONSTRAINT stock_movements_quantity_not_null NOT NULL,
CONSTRAINT is_finite CHECK ((isfinite(period) AND (quantity <> 'NaN'::numeric)))
);
CREATE TABLE accum.stock_totals_year_stored (
dim_hash bigint NOT NULL,
period date NOT NULL,
product text,
warehouse integer,
quantity numeric(18,4) DEFAULT 0 NOT NULL
)
WITH (fillfactor='80');
CREATE VIEW accum.stock_totals_year AS
SELECT dim_hash,
period,
product,
warehouse,
(sum(quantity))::numeric(18,4) AS quantity
FROM ( SELECT counted.dim_hash,
counted.product,
counted.warehouse,
counted.period,
counted.quantity
FROM ( SELECT stock_totals_year_stored.dim_hash,
stock_totals_year_stored.product,
stock_totals_year_stored.warehouse,
stock_totals_year_stored.period,
stock_totals_year_stored.quantity
FROM accum.stock_totals_year_stored
UNION ALL
SELECT stock_balance_cache_delta.dim_hash,
stock_balance_cache_delta.product,
stock_balance_cache_delta.warehouse,
stock_balance_cache_delta.day AS period,
stock_balance_cache_delta.quantity
FROM accum.stock_balance_cache_delta
WHERE (stock_balance_cache_delta.id <> 0)) counted
WHERE COALESCE((( SELECT m.last_movement_id
FROM accum.stock_balance_cache_delta m
WHERE (m.id = 0)) = ( SELECT e.epoch
FROM accum.stock_balance_cache_epoch e)), false)
UNION ALL
SELECT _recorded_stock.dim_hash,
_recorded_stock.product,
_recorded_stock.warehouse,
_recorded_stock.day AS period,
_recorded_stock.quantity
FROM accum._recorded_stock(( SELECT stock_balance_cache_epoch.epoch
FROM accum.stock_balance_cache_epoch)) _recorded_stock(id, dim_hash, product, warehouse, day, quantity, version, last_movement_at, last_movement_id, created_at)
WHERE ((NOT COALESCE((( SELECT m.last_movement_id
FROM accum.stock_balance_cache_delta m
WHERE (m.id = 0)) = ( SELECT e.epoch
FROM accum.stock_balance_cache_epoch e)), false)) AND (_recorded_stock.day IS NOT NULL))) every
GROUP BY dim_hash, product, warehouse, period;
CREATE TABLE alice.counts (
__pgt_row_id bigint NOT NULL,
note text,
n bigint,
__pgt_count bigint
)
WITH (fillfactor='90');
ALTER TABLE alice.counts OWNER TO upgrade_alice;
CREATE TABLE alice.notes (
id integer NOT NULL,
note text
);
ALTER TABLE alice.notes OWNER TO upgrade_alice;
CREATE SEQUENCE pgque.batch_id_seq
START WITH 1
INCREMENT BY 1
NO MINVALUE
NO MAXVALUE
CACHE 1;
CREATE TABLE pgque.config (
singleton boolean DEFAULT true NOT NULL,
tick_period_ms integer DEFAULT 100 NOT NULL,
ticker_job_id bigint,
retry_job_id bigint,
maint_job_id bigint,
step2_job_id bigint,
clock_stopped boolean DEFAULT false NOT NULL,
installed_at timestamptz DEFAULT now() NOT NULL,
CONSTRAINT config_singleton_check CHECK (singleton),
CONSTRAINT config_tick_period_ms_check CHECK ((((tick_period_ms >= 1) AND (tick_period_ms <= 1000)) AND ((1000 % tick_period_ms) = 0)))
);
CREATE TABLE pgque.consumer (
co_id integer NOT NULL,
co_name text NOT NULL
);
CREATE SEQUENCE pgque.consumer_co_id_seq
AS integer
START WITH 1
INCREMENT BY 1
NO MINVALUE
NO MAXVALUE
CACHE 1;
ALTER SEQUENCE pgque.consumer_co_id_seq OWNED BY pgque.consumer.co_id;
CREATE SEQUENCE pgque.dead_letter_dl_id_seq
START WITH 1
INCREMENT BY 1
NO MINVALUE
NO MAXVALUE
CACHE 1;
ALTER SEQUENCE pgque.dead_letter_dl_id_seq OWNED BY pgque.dead_letter.dl_id;
CREATE TABLE pgque.delayed_events (
de_id bigint NOT NULL,
de_queue_id integer NOT NULL,
de_deliver_at timestamptz NOT NULL,
de_type text,
de_payload text
);
CREATE SEQUENCE pgque.delayed_events_de_id_seq
START WITH 1
INCREMENT BY 1
NO MINVALUE
NO MAXVALUE
CACHE 1;
ALTER SEQUENCE pgque.delayed_events_de_id_seq OWNED BY pgque.delayed_events.de_id;
CREATE TABLE pgque.event_1 (
)
INHERITS (pgque.event_template);
CREATE TABLE pgque.event_1_0 (
)
INHERITS (pgque.event_1)
WITH (fillfactor='100', autovacuum_enabled=off, toast.autovacuum_enabled=off);
CREATE TABLE pgque.event_1_1 (
)
INHERITS (pgque.event_1)
WITH (fillfactor='100', autovacuum_enabled=off, toast.autovacuum_enabled=off);
CREATE TABLE pgque.event_1_2 (
)
INHERITS (pgque.event_1)
WITH (fillfactor='100', autovacuum_enabled=off, toast.autovacuum_enabled=off);
CREATE SEQUENCE pgque.event_1_id_seq
START WITH 1
INCREMENT BY 1
NO MINVALUE
NO MAXVALUE
CACHE 1;
CREATE SEQUENCE pgque.event_1_tick_seq
START WITH 1
INCREMENT BY 1
NO MINVALUE
NO MAXVALUE
CACHE 1;
CREATE SEQUENCE pgque.queue_queue_id_seq
AS integer
START WITH 1
INCREMENT BY 1
NO MINVALUE
NO MAXVALUE
CACHE 1;
ALTER SEQUENCE pgque.queue_queue_id_seq OWNED BY pgque.queue.queue_id;
CREATE TABLE pgque.retry_queue (
ev_retry_after timestamptz NOT NULL,
ev_queue integer NOT NULL,
ev_id bigint CONSTRAINT event_template_ev_id_not_null NOT NULL,
ev_time timestamptz CONSTRAINT event_template_ev_time_not_null NOT NULL,
ev_txid xid8,
ev_owner integer NOT NULL,
ev_retry integer,
ev_type text,
ev_data text,
ev_extra1 text,
ev_extra2 text,
ev_extra3 text,
ev_extra4 text,
ev_batch bigint
);
CREATE TABLE pgque.schema_version (
version text NOT NULL,
description text NOT NULL,
applied_at timestamptz DEFAULT now() NOT NULL
);
CREATE SEQUENCE pgque.subscription_sub_id_seq
AS integer
START WITH 1
INCREMENT BY 1
NO MINVALUE
NO MAXVALUE
CACHE 1;
ALTER SEQUENCE pgque.subscription_sub_id_seq OWNED BY pgque.subscription.sub_id;
CREATE TABLE pgque.tick (
tick_queue integer NOT NULL,
tick_id bigint NOT NULL,
tick_time timestamptz DEFAULT now() NOT NULL,
tick_snapshot pg_snapshot DEFAULT pg_current_snapshot() NOT NULL,
tick_event_seq bigint NOT NULL
);
CREATE TABLE pgtrickle.pgt_dependencies (
pgt_id bigint NOT NULL,
source_relid oid NOT NULL,
source_type text NOT NULL,
columns_used text[],
column_snapshot jsonb,
schema_fingerprint text,
cdc_mode text DEFAULT 'TRIGGER'::text,
slot_name text,
decoder_confirmed_lsn pg_lsn,
transition_started_at timestamptz,
capture_generation uuid,
CONSTRAINT pgt_dependencies_cdc_mode_check CHECK ((cdc_mode = ANY (ARRAY['TRIGGER'::text, 'TRANSITIONING'::text, 'WAL'::text]))),
CONSTRAINT pgt_dependencies_source_type_check CHECK ((source_type = ANY (ARRAY['TABLE'::text, 'STREAM_TABLE'::text, 'VIEW'::text, 'MATVIEW'::text, 'FOREIGN_TABLE'::text])))
);
CREATE VIEW pgtrickle.pg_stat_stream_tables AS
SELECT s.pgt_id,
s.pgt_schema,
s.pgt_name,
s.status,
s.refresh_mode,
s.data_timestamp,
(clock_timestamp() - s.data_timestamp) AS staleness,
t.stale,
t.total_refreshes,
t.successful_refreshes,
t.failed_refreshes,
t.total_rows_inserted,
t.total_rows_deleted,
t.avg_duration_ms,
t.last_refresh_action,
t.last_refresh_status,
t.last_refresh_at,
s.consecutive_errors,
s.schedule,
s.is_populated,
s.needs_reinit,
ARRAY( SELECT DISTINCT lower(d.cdc_mode) AS lower
FROM pgtrickle.pgt_dependencies d
WHERE ((d.pgt_id = s.pgt_id) AND (d.source_type = ANY (ARRAY['TABLE'::text, 'STREAM_TABLE'::text])) AND (d.cdc_mode IS NOT NULL))
ORDER BY (lower(d.cdc_mode))) AS cdc_modes,
s.scc_id,
s.last_fixpoint_iterations
FROM (pgtrickle.pgt_stream_tables s
JOIN pgtrickle.st_refresh_stats() t(pgt_name, pgt_schema, status, refresh_mode, is_populated, total_refreshes, successful_refreshes, failed_refreshes, total_rows_inserted, total_rows_deleted, avg_duration_ms, last_refresh_action, last_refresh_status, last_refresh_at, staleness_secs, stale) ON (((t.pgt_schema = s.pgt_schema) AND (t.pgt_name = s.pgt_name))));
CREATE TABLE pgtrickle.pgt_captures (
source_relid oid NOT NULL,
captured_columns text[] NOT NULL,
fingerprint text NOT NULL,
relations oid[] NOT NULL,
trigger_state text NOT NULL,
generation uuid DEFAULT gen_random_uuid() NOT NULL,
last_cleaned_xid xid8,
system text NOT NULL,
slot_name text,
last_consumed_lsn pg_lsn,
installed_at timestamptz DEFAULT now() NOT NULL
);
CREATE VIEW pgtrickle.pgt_cdc_status AS
SELECT s.pgt_schema,
s.pgt_name,
d.source_relid,
(c.relname)::text AS source_name,
(n.nspname)::text AS source_schema,
lower(d.cdc_mode) AS cdc_mode,
d.slot_name,
d.decoder_confirmed_lsn,
d.transition_started_at
FROM (((pgtrickle.pgt_dependencies d
JOIN pgtrickle.pgt_stream_tables s USING (pgt_id))
LEFT JOIN pg_class c ON ((c.oid = d.source_relid)))
LEFT JOIN pg_namespace n ON ((n.oid = c.relnamespace)))
WHERE ((d.source_type = ANY (ARRAY['TABLE'::text, 'STREAM_TABLE'::text])) AND (d.cdc_mode IS NOT NULL));
CREATE VIEW pgtrickle.pgt_change_tracking AS
SELECT source_relid,
slot_name,
last_consumed_lsn,
ARRAY( SELECT d.pgt_id
FROM pgtrickle.pgt_dependencies d
WHERE ((d.source_relid = c.source_relid) AND (d.cdc_mode IS NOT NULL))
ORDER BY d.pgt_id) AS tracked_by_pgt_ids,
captured_columns,
generation,
last_cleaned_xid,
system
FROM pgtrickle.pgt_captures c;
CREATE TABLE pgtrickle.pgt_history (
relid oid NOT NULL,
period interval NOT NULL,
server integer,
subscription_id bigint,
followed_xid xid8,
held_from bigint,
error text,
system text NOT NULL,
created_at timestamptz DEFAULT now() NOT NULL,
CONSTRAINT pgt_history_period_check CHECK ((period > '00:00:00'::interval))
);
CREATE SEQUENCE pgtrickle.pgt_history_seq
AS integer
START WITH 1
INCREMENT BY 1
NO MINVALUE
NO MAXVALUE
CACHE 1;
CREATE TABLE pgtrickle.pgt_load_generators (
source_relid oid NOT NULL,
generator text DEFAULT 'COUNTER'::text NOT NULL,
tick_interval interval DEFAULT '00:00:01'::interval NOT NULL,
last_value bigint DEFAULT 0 NOT NULL,
last_tick_at timestamptz,
error text,
system text NOT NULL,
created_at timestamptz DEFAULT now() NOT NULL,
CONSTRAINT pgt_load_generators_generator_check CHECK ((generator = 'COUNTER'::text)),
CONSTRAINT pgt_load_generators_tick_interval_check CHECK ((tick_interval > '00:00:00'::interval))
)
WITH (fillfactor='50');
CREATE TABLE pgtrickle.pgt_memory (
pgt_id bigint NOT NULL,
frontier jsonb NOT NULL,
memory jsonb NOT NULL
);
CREATE TABLE pgtrickle.pgt_mirrors (
mirror uuid NOT NULL,
source_relid oid NOT NULL,
frontier pg_snapshot NOT NULL,
log_version bigint DEFAULT 0 NOT NULL,
used_at timestamptz DEFAULT clock_timestamp() NOT NULL,
held_until timestamptz NOT NULL
)
WITH (fillfactor='50');
CREATE TABLE pgtrickle.pgt_polls (
pgt_id bigint NOT NULL,
foreign_schema text NOT NULL,
foreign_name text NOT NULL,
copy_name text NOT NULL,
copied_columns text[] NOT NULL,
fingerprint text NOT NULL,
files text,
polled_at timestamptz
);
CREATE TABLE pgtrickle.pgt_refresh_groups (
group_id integer NOT NULL,
group_name text NOT NULL,
member_oids oid[] NOT NULL,
isolation text DEFAULT 'read_committed'::text NOT NULL,
created_at timestamptz DEFAULT now() NOT NULL,
CONSTRAINT pgt_refresh_groups_isolation_check CHECK ((isolation = ANY (ARRAY['read_committed'::text, 'repeatable_read'::text])))
);
ALTER TABLE pgtrickle.pgt_refresh_groups ALTER COLUMN group_id ADD GENERATED BY DEFAULT AS IDENTITY (
SEQUENCE NAME pgtrickle.pgt_refresh_groups_group_id_seq
START WITH 1
INCREMENT BY 1
NO MINVALUE
NO MAXVALUE
CACHE 1
);
CREATE TABLE pgtrickle.pgt_refresh_history (
refresh_id bigint NOT NULL,
pgt_id bigint NOT NULL,
data_timestamp timestamptz NOT NULL,
start_time timestamptz NOT NULL,
end_time timestamptz,
action text NOT NULL,
rows_inserted bigint DEFAULT 0,
rows_deleted bigint DEFAULT 0,
delta_row_count bigint DEFAULT 0,
merge_strategy_used text,
was_full_fallback boolean DEFAULT false NOT NULL,
error_message text,
status text NOT NULL,
initiated_by text,
freshness_deadline timestamptz,
fixpoint_iteration integer,
executor text,
executor_reason text,
rows_updated bigint DEFAULT 0,
CONSTRAINT pgt_refresh_history_action_check CHECK ((action = ANY (ARRAY['NO_DATA'::text, 'FULL'::text, 'DIFFERENTIAL'::text, 'REINITIALIZE'::text, 'SKIP'::text]))),
CONSTRAINT pgt_refresh_history_executor_check CHECK ((executor = ANY (ARRAY['postgres'::text, 'spark'::text]))),
CONSTRAINT pgt_refresh_history_initiated_by_check CHECK ((initiated_by = ANY (ARRAY['SCHEDULER'::text, 'MANUAL'::text, 'INITIAL'::text]))),
CONSTRAINT pgt_refresh_history_status_check CHECK ((status = ANY (ARRAY['RUNNING'::text, 'COMPLETED'::text, 'FAILED'::text, 'SKIPPED'::text])))
);
ALTER TABLE pgtrickle.pgt_refresh_history ALTER COLUMN refresh_id ADD GENERATED BY DEFAULT AS IDENTITY (
SEQUENCE NAME pgtrickle.pgt_refresh_history_refresh_id_seq
START WITH 1
INCREMENT BY 1
NO MINVALUE
NO MAXVALUE
CACHE 1
);
CREATE TABLE pgtrickle.pgt_requests (
request_id bigint NOT NULL,
kind text NOT NULL,
arguments jsonb NOT NULL,
search_path text NOT NULL,
requested_by oid DEFAULT (to_regrole(quote_ident((CURRENT_USER)::text)))::oid NOT NULL,
session_role oid DEFAULT (to_regrole(quote_ident((SESSION_USER)::text)))::oid NOT NULL,
xid xid8 DEFAULT pg_current_xact_id() NOT NULL,
requested_at timestamptz DEFAULT clock_timestamp() NOT NULL,
attempts integer DEFAULT 0 NOT NULL,
error text,
error_state text,
CONSTRAINT pgt_requests_kind_check CHECK ((kind = ANY (ARRAY['create'::text, 'alter'::text, 'drop'::text, 'refresh'::text, 'resume'::text, 'copy'::text, 'extension'::text, 'statement'::text, 'retain'::text])))
);
CREATE VIEW pgtrickle.pgt_request_errors WITH (security_invoker='true') AS
SELECT request_id,
kind,
arguments,
((requested_by)::regrole)::text AS requested_by,
requested_at,
attempts,
error_state,
error
FROM pgtrickle.pgt_requests
WHERE (error IS NOT NULL);
ALTER TABLE pgtrickle.pgt_requests ALTER COLUMN request_id ADD GENERATED ALWAYS AS IDENTITY (
SEQUENCE NAME pgtrickle.pgt_requests_request_id_seq
START WITH 1
INCREMENT BY 1
NO MINVALUE
NO MAXVALUE
CACHE 1
);
CREATE TABLE pgtrickle.pgt_schema_version (
version text NOT NULL,
applied_at timestamptz DEFAULT now() NOT NULL,
description text
);
CREATE TABLE pgtrickle.pgt_source_gates (
source_relid oid NOT NULL,
gated boolean DEFAULT false NOT NULL,
gated_at timestamptz,
ungated_at timestamptz,
gated_by text
);
ALTER TABLE pgtrickle.pgt_stream_tables ALTER COLUMN pgt_id ADD GENERATED BY DEFAULT AS IDENTITY (
SEQUENCE NAME pgtrickle.pgt_stream_tables_pgt_id_seq
START WITH 1
INCREMENT BY 1
NO MINVALUE
NO MAXVALUE
CACHE 1
);
CREATE TABLE pgtrickle.pgt_subscription_servers (
server integer NOT NULL,
frontier pg_snapshot,
mz_timestamp bigint,
started_at timestamptz DEFAULT clock_timestamp() NOT NULL
)
WITH (fillfactor='50');
CREATE TABLE pgtrickle.pgt_subscription_sources (
subscription_id bigint NOT NULL,
source_relid oid NOT NULL,
columns_used text[] NOT NULL,
reader oid NOT NULL,
schema_fingerprint text NOT NULL,
capture_generation uuid
);
CREATE TABLE pgtrickle.pgt_subscriptions (
subscription_id bigint NOT NULL,
server integer NOT NULL,
subscriber oid NOT NULL,
runs_as oid NOT NULL,
function_hashes jsonb DEFAULT '{}'::jsonb NOT NULL,
started_at timestamptz DEFAULT clock_timestamp() NOT NULL
);
ALTER TABLE pgtrickle.pgt_subscriptions ALTER COLUMN subscription_id ADD GENERATED ALWAYS AS IDENTITY (
SEQUENCE NAME pgtrickle.pgt_subscriptions_subscription_id_seq
START WITH 1
INCREMENT BY 1
NO MINVALUE
NO MAXVALUE
CACHE 1
);
CREATE TABLE pgtrickle.pgt_timeline (
mz_timestamp bigint NOT NULL,
snapshot pg_snapshot NOT NULL,
system text NOT NULL
);
CREATE SEQUENCE pgtrickle.pgt_timeline_seq
START WITH 0
INCREMENT BY 1
MINVALUE 0
NO MAXVALUE
CACHE 1;
CREATE TABLE pgtrickle.pgt_watermark_groups (
group_id integer NOT NULL,
group_name text NOT NULL,
source_relids oid[] NOT NULL,
tolerance_secs double precision DEFAULT 0 NOT NULL,
created_at timestamptz DEFAULT now() NOT NULL
);
ALTER TABLE pgtrickle.pgt_watermark_groups ALTER COLUMN group_id ADD GENERATED BY DEFAULT AS IDENTITY (
SEQUENCE NAME pgtrickle.pgt_watermark_groups_group_id_seq
START WITH 1
INCREMENT BY 1
NO MINVALUE
NO MAXVALUE
CACHE 1
);
CREATE TABLE pgtrickle.pgt_watermarks (
source_relid oid NOT NULL,
watermark timestamptz NOT NULL,
updated_at timestamptz DEFAULT now() NOT NULL,
advanced_by text,
wal_lsn_at_advance text
);
CREATE VIEW pgtrickle.quick_health AS
SELECT total_stream_tables,
error_tables,
stale_tables,
scheduler_running,
CASE
WHEN (total_stream_tables = 0) THEN 'EMPTY'::text
WHEN (suspended > 0) THEN 'CRITICAL'::text
WHEN ((error_tables > 0) OR (stale_tables > 0)) THEN 'WARNING'::text
ELSE 'OK'::text
END AS status
FROM ( SELECT count(*) AS total_stream_tables,
count(*) FILTER (WHERE ((s.status = 'ERROR'::text) OR (s.consecutive_errors > 0))) AS error_tables,
count(*) FILTER (WHERE pgtrickle._is_stale(s.pgt_id)) AS stale_tables,
pgtrickle._scheduler_running() AS scheduler_running,
count(*) FILTER (WHERE (s.status = 'SUSPENDED'::text)) AS suspended
FROM pgtrickle.pgt_stream_tables s) counts;
CREATE VIEW pgtrickle.stream_tables_info AS
SELECT pgt_id,
pgt_relid,
pgt_name,
pgt_schema,
defining_query,
original_query,
schedule,
refresh_mode,
status,
is_populated,
data_timestamp,
frontier,
last_refresh_at,
consecutive_errors,
needs_reinit,
auto_threshold,
last_full_ms,
functions_used,
topk_limit,
topk_order_by,
topk_offset,
diamond_consistency,
diamond_schedule_policy,
has_keyless_source,
function_hashes,
scc_id,
last_fixpoint_iterations,
created_at,
updated_at,
pgt_owner,
requested_mode,
canonical_query,
row_id_salt,
engine,
explain,
fallback_reason,
requested_cdc_mode,
append_only,
plan_texts,
executor_costs,
(clock_timestamp() - data_timestamp) AS staleness,
pgtrickle._is_stale(pgt_id) AS stale
FROM pgtrickle.pgt_stream_tables s;
CREATE SEQUENCE pgtrickle_changes.change_id_seq
START WITH 1
INCREMENT BY 1
NO MINVALUE
NO MAXVALUE
CACHE 1;
CREATE TABLE pgtrickle_changes.changes_17560 (
__pgt_change_id bigint NOT NULL,
__pgt_xid xid8 DEFAULT pg_current_xact_id() NOT NULL,
__pgt_w smallint NOT NULL,
id integer,
region text,
name text
);
COMMENT ON TABLE pgtrickle_changes.changes_17560 IS 'Changes of shop.customers for stream tables.';
CREATE TABLE pgtrickle_changes.changes_17568 (
__pgt_change_id bigint NOT NULL,
__pgt_xid xid8 DEFAULT pg_current_xact_id() NOT NULL,
__pgt_w smallint NOT NULL,
id integer,
customer integer,
amount numeric(10,2),
note text
);
COMMENT ON TABLE pgtrickle_changes.changes_17568 IS 'Changes of shop.orders for stream tables.';
CREATE TABLE pgtrickle_changes.changes_17590 (
__pgt_change_id bigint NOT NULL,
__pgt_xid xid8 DEFAULT pg_current_xact_id() NOT NULL,
__pgt_w smallint NOT NULL,
page text
);
COMMENT ON TABLE pgtrickle_changes.changes_17590 IS 'Changes of shop.clicks for stream tables.';
CREATE TABLE pgtrickle_changes.changes_17595 (
__pgt_change_id bigint NOT NULL,
__pgt_xid xid8 DEFAULT pg_current_xact_id() NOT NULL,
__pgt_w smallint NOT NULL,
price numeric(10,2),
id integer
);
COMMENT ON TABLE pgtrickle_changes.changes_17595 IS 'Changes of shop.prices for stream tables.';
CREATE TABLE pgtrickle_changes.changes_17601 (
__pgt_change_id bigint NOT NULL,
__pgt_xid xid8 DEFAULT pg_current_xact_id() NOT NULL,
__pgt_w smallint NOT NULL,
id integer,
note text
);
COMMENT ON TABLE pgtrickle_changes.changes_17601 IS 'Changes of alice.notes for stream tables.';
CREATE TABLE pgtrickle_changes.changes_17621 (
__pgt_change_id bigint NOT NULL,
__pgt_xid xid8 DEFAULT pg_current_xact_id() NOT NULL,
__pgt_w smallint NOT NULL,
__pgt_row_id bigint,
region text,
total numeric
);
COMMENT ON TABLE pgtrickle_changes.changes_17621 IS 'Changes of shop.totals for stream tables.';
CREATE TABLE shop.buyers (
__pgt_row_id bigint NOT NULL,
name text,
note text,
__pgt_hash bigint,
__pgt_ordinal bigint
)
WITH (fillfactor='90');
CREATE TABLE shop.clicks (
page text,
millis integer
);
CREATE TABLE shop.counter (
counter bigint NOT NULL
);
CREATE TABLE shop.customers (
id integer NOT NULL,
name text,
region text
);
CREATE TABLE shop.exact (
__pgt_row_id bigint NOT NULL,
total numeric,
__pgt_count bigint,
__pgt_agg1_count bigint,
__pgt_agg1_sum numeric
)
WITH (fillfactor='90');
CREATE TABLE shop.large (
__pgt_row_id bigint NOT NULL,
region text,
total numeric,
__pgt_hash bigint,
__pgt_ordinal bigint
)
WITH (fillfactor='90');
CREATE TABLE shop.later (
__pgt_row_id bigint NOT NULL,
n bigint,
__pgt_count bigint
)
WITH (fillfactor='90');
CREATE TABLE shop.orders (
id integer NOT NULL,
customer integer,
amount numeric(10,2),
note text
)
PARTITION BY RANGE (id);
CREATE TABLE shop.orders_1 (
id integer CONSTRAINT orders_id_not_null NOT NULL,
customer integer,
amount numeric(10,2),
note text
);
CREATE TABLE shop.orders_2 (
id integer CONSTRAINT orders_id_not_null NOT NULL,
customer integer,
amount numeric(10,2),
note text
);
CREATE TABLE shop.pages (
__pgt_row_id bigint NOT NULL,
page text,
shown text,
__pgt_hash bigint,
__pgt_ordinal bigint
)
WITH (fillfactor='90');
CREATE TABLE shop.prices (
id integer NOT NULL,
price numeric(10,2)
);
CREATE TABLE shop.totals (
__pgt_row_id bigint NOT NULL,
region text,
orders bigint,
total numeric,
largest numeric,
__pgt_count bigint,
__pgt_agg2_count bigint,
__pgt_agg2_sum numeric,
__pgt_agg3_max numeric
)
WITH (fillfactor='90');
CREATE VIEW shop.shown AS
SELECT region,
total
FROM shop.totals;
ALTER TABLE ONLY accum.stock_movements ATTACH PARTITION accum.stock_movements_default DEFAULT;
ALTER TABLE ONLY shop.orders ATTACH PARTITION shop.orders_1 FOR VALUES FROM (1) TO (100);
ALTER TABLE ONLY shop.orders ATTACH PARTITION shop.orders_2 FOR VALUES FROM (100) TO (1000);
ALTER TABLE ONLY accum.stock_balance_cache_delta ALTER COLUMN id SET DEFAULT nextval('accum.stock_balance_cache_delta_id_seq'::regclass);
ALTER TABLE ONLY pgque.consumer ALTER COLUMN co_id SET DEFAULT nextval('pgque.consumer_co_id_seq'::regclass);
ALTER TABLE ONLY pgque.dead_letter ALTER COLUMN dl_id SET DEFAULT nextval('pgque.dead_letter_dl_id_seq'::regclass);
ALTER TABLE ONLY pgque.delayed_events ALTER COLUMN de_id SET DEFAULT nextval('pgque.delayed_events_de_id_seq'::regclass);
ALTER TABLE ONLY pgque.event_1 ALTER COLUMN ev_txid SET DEFAULT pg_current_xact_id();
ALTER TABLE ONLY pgque.event_1_0 ALTER COLUMN ev_txid SET DEFAULT pg_current_xact_id();
ALTER TABLE ONLY pgque.event_1_1 ALTER COLUMN ev_txid SET DEFAULT pg_current_xact_id();
ALTER TABLE ONLY pgque.event_1_2 ALTER COLUMN ev_txid SET DEFAULT pg_current_xact_id();
ALTER TABLE ONLY pgque.queue ALTER COLUMN queue_id SET DEFAULT nextval('pgque.queue_queue_id_seq'::regclass);
ALTER TABLE ONLY pgque.subscription ALTER COLUMN sub_id SET DEFAULT nextval('pgque.subscription_sub_id_seq'::regclass);
COPY accum._maintenance_runs (task, started_at, finished_at) FROM stdin;
\.
COPY accum._registers (name, kind, dimensions, resources, totals_period, partition_by, high_write, recorder_type, created_at) FROM stdin;
stock	balance	{"product": "text", "warehouse": "integer"}	{"quantity": "numeric(18,4)"}	year	month	t	text	2026-11-26 03:20:46.51514+00
\.
COPY accum._schema_version (version, description, applied_at) FROM stdin;
0001_registers	The catalog of registers: what each register accumulates, and by what.	2026-11-26 03:20:45.25083+00
0002_maintenance	When the engine has last looked after all registers.	2026-11-26 03:20:45.25083+00
functions	Headwater registers, 0002_maintenance, functions c1d79fc83f647855	2026-11-26 03:20:45.25083+00
\.
COPY accum.stock_balance_cache_delta (id, dim_hash, product, warehouse, day, quantity, version, last_movement_at, last_movement_id, created_at) FROM stdin;
0	0	\N	\N	\N	0.0000	1	\N	068818eb-9e70-4278-8ba8-05b28a93a5e9	2026-11-26 03:20:46.51514+00
1	-824430453757324912	a	1	2026-01-01	97.0000	1	2026-11-26 03:20:46.882956+00	4478b29c-0778-403d-804c-ff3d38118b02	2026-11-26 03:20:46.882956+00
2	2761688091518986355	b	2	2026-01-01	7.5000	1	2026-11-26 03:20:46.882956+00	fc7a23bd-ad32-4c5b-9e81-4f98749e7b2b	2026-11-26 03:20:46.882956+00
3	-824430453757324912	a	1	2026-01-01	3.0000	1	2026-11-26 03:20:46.882956+00	e1026c13-4334-4adf-90fd-1c41c48f1785	2026-11-26 03:20:46.885871+00
4	-824430453757324912	a	1	2026-01-01	-4.0000	1	2026-11-26 03:20:46.885871+00	c46b16cb-39a6-4dda-80ee-f61b2882224c	2026-11-26 03:20:46.885871+00
\.
COPY accum.stock_balance_cache_epoch (epoch) FROM stdin;
068818eb-9e70-4278-8ba8-05b28a93a5e9
\.
COPY accum.stock_balance_cache_stored (dim_hash, product, warehouse, quantity, last_movement_at, last_movement_id, version) FROM stdin;
\.
COPY accum.stock_movements_audit (audit_id, audit_operation, audit_at, audit_user, audit_session_user, id, recorded_at, recorder, period, movement_type, dim_hash, product, warehouse, quantity) FROM stdin;
1	repost	2026-11-26 03:20:46.885871+00	postgres	postgres	e1026c13-4334-4adf-90fd-1c41c48f1785	2026-11-26 03:20:46.882956+00	sale:1	2026-04-20 09:30:00+00	regular	-824430453757324912	a	1	-3.0000
\.
COPY accum.stock_movements_default (id, recorded_at, recorder, period, movement_type, dim_hash, product, warehouse, quantity) FROM stdin;
4478b29c-0778-403d-804c-ff3d38118b02	2026-11-26 03:20:46.882956+00	receipt:1	2026-04-18 00:00:00+00	regular	-824430453757324912	a	1	100.0000
fc7a23bd-ad32-4c5b-9e81-4f98749e7b2b	2026-11-26 03:20:46.882956+00	receipt:1	2026-04-18 00:00:00+00	regular	2761688091518986355	b	2	7.5000
c46b16cb-39a6-4dda-80ee-f61b2882224c	2026-11-26 03:20:46.885871+00	sale:1	2026-04-20 10:00:00+00	adjustment	-824430453757324912	a	1	-4.0000
\.
COPY accum.stock_totals_year_stored (dim_hash, period, product, warehouse, quantity) FROM stdin;
\.
COPY alice.counts (__pgt_row_id, note, n, __pgt_count) FROM stdin;
-982948439936817526	note 0	2	2
7252921748137857846	note 1	2	2
\.
COPY alice.notes (id, note) FROM stdin;
1	note 1
2	note 0
3	note 1
4	note 0
5	note 0
\.
COPY pgque.config (singleton, tick_period_ms, ticker_job_id, retry_job_id, maint_job_id, step2_job_id, clock_stopped, installed_at) FROM stdin;
t	100	\N	\N	\N	\N	f	2026-11-26 03:20:45.154224+00
\.
COPY pgque.consumer (co_id, co_name) FROM stdin;
1	sender
2	archive
\.
COPY pgque.dead_letter (dl_id, dl_queue_id, dl_consumer_id, dl_time, dl_reason, ev_id, ev_time, ev_txid, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4) FROM stdin;
\.
COPY pgque.delayed_events (de_id, de_queue_id, de_deliver_at, de_type, de_payload) FROM stdin;
\.
COPY pgque.event_1 (ev_id, ev_time, ev_txid, ev_owner, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4) FROM stdin;
\.
COPY pgque.event_1_0 (ev_id, ev_time, ev_txid, ev_owner, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4) FROM stdin;
1	2026-11-26 03:20:46.499411+00	842	\N	\N	welcome	{"n": 1}	\N	\N	\N	\N
2	2026-11-26 03:20:46.499411+00	842	\N	\N	welcome	{"n": 2}	\N	\N	\N	\N
3	2026-11-26 03:20:46.499411+00	842	\N	\N	welcome	{"n": 3}	\N	\N	\N	\N
4	2026-11-26 03:20:46.499411+00	842	\N	\N	welcome	{"n": 4}	\N	\N	\N	\N
5	2026-11-26 03:20:46.499411+00	842	\N	\N	welcome	{"n": 5}	\N	\N	\N	\N
6	2026-11-26 03:20:46.499411+00	842	\N	\N	welcome	{"n": 6}	\N	\N	\N	\N
7	2026-11-26 03:20:47.926656+00	868	\N	\N	late	{"n": 7}	\N	\N	\N	\N
\.
COPY pgque.event_1_1 (ev_id, ev_time, ev_txid, ev_owner, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4) FROM stdin;
\.
COPY pgque.event_1_2 (ev_id, ev_time, ev_txid, ev_owner, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4) FROM stdin;
\.
COPY pgque.event_template (ev_id, ev_time, ev_txid, ev_owner, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4) FROM stdin;
\.
COPY pgque.queue (queue_id, queue_name, queue_ntables, queue_cur_table, queue_rotation_period, queue_switch_step1, queue_switch_step2, queue_switch_time, queue_external_ticker, queue_disable_insert, queue_ticker_paused, queue_ticker_max_count, queue_ticker_max_lag, queue_ticker_idle_period, queue_data_pfx, queue_event_seq, queue_tick_seq, queue_extra_maint, queue_max_retries, queue_cluster) FROM stdin;
1	mail	3	0	02:00:00	834	834	2026-11-26 03:20:46.414394+00	f	f	f	500	00:00:00.001	00:01:00	pgque.event_1	pgque.event_1_id_seq	pgque.event_1_tick_seq	\N	5	7712314904547146154
\.
COPY pgque.retry_queue (ev_retry_after, ev_queue, ev_id, ev_time, ev_txid, ev_owner, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4, ev_batch) FROM stdin;
2026-11-26 03:20:47.898362+00	1	1	2026-11-26 03:20:46.499411+00	\N	1	1	welcome	{"n": 1}	\N	\N	\N	\N	2
\.
COPY pgque.schema_version (version, description, applied_at) FROM stdin;
0001_queues	The catalog of queues: queues, ticks, consumers, subscriptions, retries, dead letters, and the shape of events.	2026-11-26 03:20:45.154224+00
0002_guards	Names that go into statements follow from the queue's number, whoever may change the row.	2026-11-26 03:20:45.154224+00
0003_clusters	Which cluster the transaction ids in a queue's ticks and events belong to: see functions/35_clusters.sql.	2026-11-26 03:20:45.154224+00
0004_sending	What inserts events is generated into the public functions: see functions/15_dispatch.sql.	2026-11-26 03:20:45.154224+00
functions	Headwater queues, 0004_sending, functions 1765069131f3b5fd	2026-11-26 03:20:45.154224+00
\.
COPY pgque.subscription (sub_id, sub_queue, sub_consumer, sub_last_tick, sub_active, sub_batch, sub_next_tick, sub_role, sub_main) FROM stdin;
2	1	2	2	2026-11-26 03:20:47.891073+00	\N	\N	normal	\N
1	1	1	1	2026-11-26 03:20:47.898362+00	2	2	normal	\N
\.
COPY pgque.tick (tick_queue, tick_id, tick_time, tick_snapshot, tick_event_seq) FROM stdin;
1	1	2026-11-26 03:20:46.414394+00	834:834:	0
1	2	2026-11-26 03:20:46.535483+00	844:844:	6
1	3	2026-11-26 03:20:47.606002+00	856:856:	6
\.
COPY pgtrickle.pgt_captures (source_relid, captured_columns, fingerprint, relations, trigger_state, generation, last_cleaned_xid, system, slot_name, last_consumed_lsn, installed_at) FROM stdin;
17560	{id,name,region}	ff4a9afddd63976925bb53e0bfa4b9ae054845afcda09734c979f997245508aa	{17560}	4:64c5afc43b1ce5698a2b62ea88dc638e	168ed761-45f5-4a3c-ad57-f6dde9784ff1	\N	7712314904547146154.00000001.5	\N	\N	2026-11-26 03:20:45.435015+00
17601	{id,note}	2a4fcccc64021cee0c857c7960ced5066a33cbc94cdcc58ea591703703d5c055	{17601}	4:c5f7d1a9ab775e87f81967017e4b1386	86e2ffac-213d-4eb5-90b3-c4cec7c12fc6	\N	7712314904547146154.00000001.5	\N	\N	2026-11-26 03:20:46.099897+00
17595	{id,price}	c4cc6fa8afb230697b31ef85c7316517fedcd9bc90dfcd0af913c45e9d50e480	{17595}	4:a96312e0fadbc0724ad1e14d1a37251e	ede00f92-759c-4dd9-a675-3a7b61180c8e	\N	7712314904547146154.00000001.5	\N	\N	2026-11-26 03:20:46.047536+00
17568	{id,customer,amount,note}	79947c55507d99d168d5d916da87853504363543abb7c416438070f58d327a1b	{17568,17574,17582}	12:a265002e50a71b42a14ad828556620ca	bec6e42a-4bb0-4e9d-b1c6-048ae712a414	834	7712314904547146154.00000001.5	\N	\N	2026-11-26 03:20:45.435015+00
17590	{page}	2249e37331c46d1222629e67d36816eccd0e4ce943ad209c1f2a244449490d51	{17590}	4:5a21907c86f2cbfafbd13301ab1daaa3	9fbbc6c2-8e19-4ab0-acdb-d2cf2c729921	834	7712314904547146154.00000001.5	\N	\N	2026-11-26 03:20:45.968151+00
17621	{__pgt_row_id,region,total}	8c0231947d075b32021f095269787f168bc3f53fb5ef12f6bbfb21f81b04dd56	{17621}	4:cddc95793f0368a321daf10f1e7f61d8	179171eb-1bbc-42d6-935d-4de6cdbd4822	836	7712314904547146154.00000001.5	\N	\N	2026-11-26 03:20:45.696577+00
\.
COPY pgtrickle.pgt_dependencies (pgt_id, source_relid, source_type, columns_used, column_snapshot, schema_fingerprint, cdc_mode, slot_name, decoder_confirmed_lsn, transition_started_at, capture_generation) FROM stdin;
1	17560	TABLE	{id,region}	{"rls": "off", "name": "customers", "schema": "shop", "columns": {"id": "integer", "region": "text 100"}, "relkind": "r"}	bb54a9ed4d8103f7162abcbe731da8c4d1361368603c762e71e7ab54bfd8134c	TRIGGER	\N	\N	\N	168ed761-45f5-4a3c-ad57-f6dde9784ff1
1	17568	TABLE	{amount,customer}	{"rls": "off", "name": "orders", "schema": "shop", "columns": {"amount": "numeric(10,2)", "customer": "integer"}, "relkind": "p"}	8f4b358aad90ce49255e5d0ebf9f7735116c591604fdfb7c5069fdbfd1aa1ce3	TRIGGER	\N	\N	\N	bec6e42a-4bb0-4e9d-b1c6-048ae712a414
2	17621	STREAM_TABLE	{region,total}	{"rls": "off", "name": "totals", "schema": "shop", "columns": {"total": "numeric", "region": "text 100"}, "relkind": "r"}	bfe77ca32d52347c3203910f29eadaecf1ae9497d661e1ae082c12ee582b2176	TRIGGER	\N	\N	\N	179171eb-1bbc-42d6-935d-4de6cdbd4822
3	17560	TABLE	{id,name}	{"rls": "off", "name": "customers", "schema": "shop", "columns": {"id": "integer", "name": "text 100"}, "relkind": "r"}	f4bece4c5e7597069874c4163921def8b406af149aa1a73418a550456f9e2e86	TRIGGER	\N	\N	\N	168ed761-45f5-4a3c-ad57-f6dde9784ff1
3	17568	TABLE	{customer,note}	{"rls": "off", "name": "orders", "schema": "shop", "columns": {"note": "text 100", "customer": "integer"}, "relkind": "p"}	4090b5f20d74236b93991cce254cfa8245df13030a46a50e12165e48ca125b7e	TRIGGER	\N	\N	\N	bec6e42a-4bb0-4e9d-b1c6-048ae712a414
4	17590	TABLE	{page}	{"rls": "off", "name": "clicks", "schema": "shop", "columns": {"page": "text 100"}, "relkind": "r"}	2249e37331c46d1222629e67d36816eccd0e4ce943ad209c1f2a244449490d51	TRIGGER	\N	\N	\N	9fbbc6c2-8e19-4ab0-acdb-d2cf2c729921
5	17560	TABLE	{}	{"rls": "off", "name": "customers", "schema": "shop", "columns": {}, "relkind": "r"}	8772b6062956d10c412f1ec2cfd277b2fb588b74c067d62c474603e99026e6aa	TRIGGER	\N	\N	\N	168ed761-45f5-4a3c-ad57-f6dde9784ff1
6	17595	TABLE	{price}	{"rls": "off", "name": "prices", "schema": "shop", "columns": {"price": "numeric(10,2)"}, "relkind": "r"}	ca44b04843e02be4d47faea2b4b75a7f5ee0fdffb02a543c31b91bb950b33dc5	TRIGGER	\N	\N	\N	ede00f92-759c-4dd9-a675-3a7b61180c8e
7	17601	TABLE	{note}	{"rls": "off", "name": "notes", "schema": "alice", "columns": {"note": "text 100"}, "relkind": "r"}	429e6488fd18cf3c567071df88392a4b2cb5c8d5cb569b00f629177dc94b3a16	TRIGGER	\N	\N	\N	86e2ffac-213d-4eb5-90b3-c4cec7c12fc6
\.
COPY pgtrickle.pgt_history (relid, period, server, subscription_id, followed_xid, held_from, error, system, created_at) FROM stdin;
17595	01:00:00	-1	1	830	1795663246483	\N	7712314904547146154.5	2026-11-26 03:20:46.323854+00
\.
COPY pgtrickle.pgt_load_generators (source_relid, generator, tick_interval, last_value, last_tick_at, error, system, created_at) FROM stdin;
17833	COUNTER	00:00:01	2	2026-11-26 03:20:47.453629+00	\N	7712314904547146154.5	2026-11-26 03:20:46.392065+00
\.
COPY pgtrickle.pgt_memory (pgt_id, frontier, memory) FROM stdin;
\.
COPY pgtrickle.pgt_mirrors (mirror, source_relid, frontier, log_version, used_at, held_until) FROM stdin;
\.
COPY pgtrickle.pgt_polls (pgt_id, foreign_schema, foreign_name, copy_name, copied_columns, fingerprint, files, polled_at) FROM stdin;
\.
COPY pgtrickle.pgt_refresh_groups (group_id, group_name, member_oids, isolation, created_at) FROM stdin;
\.
COPY pgtrickle.pgt_refresh_history (refresh_id, pgt_id, data_timestamp, start_time, end_time, action, rows_inserted, rows_deleted, delta_row_count, merge_strategy_used, was_full_fallback, error_message, status, initiated_by, freshness_deadline, fixpoint_iteration, executor, executor_reason, rows_updated) FROM stdin;
1	1	2026-11-26 03:20:45.66346+00	2026-11-26 03:20:45.679367+00	2026-11-26 03:20:45.690027+00	FULL	3	0	0	DELETE+UPDATE+INSERT	f	\N	COMPLETED	INITIAL	\N	\N	postgres	not populated yet; about 2790 rows to read, fewer than pg_trickle.spark_min_rows = 100000	0
2	2	2026-11-26 03:20:45.845296+00	2026-11-26 03:20:45.847795+00	2026-11-26 03:20:45.855793+00	FULL	3	0	0	DELETE+UPDATE+INSERT	f	\N	COMPLETED	INITIAL	\N	\N	postgres	not populated yet; about 330 rows to read, fewer than pg_trickle.spark_min_rows = 100000	0
3	3	2026-11-26 03:20:45.958655+00	2026-11-26 03:20:45.96165+00	2026-11-26 03:20:45.966055+00	FULL	12	0	0	DELETE+UPDATE+INSERT	f	\N	COMPLETED	INITIAL	\N	\N	postgres	not populated yet; about 2790 rows to read, fewer than pg_trickle.spark_min_rows = 100000	0
4	4	2026-11-26 03:20:46.012989+00	2026-11-26 03:20:46.01964+00	2026-11-26 03:20:46.024509+00	FULL	16	0	0	DELETE+UPDATE+INSERT	f	\N	COMPLETED	INITIAL	\N	\N	postgres	not populated yet; about 1270 rows to read, fewer than pg_trickle.spark_min_rows = 100000	0
5	6	2026-11-26 03:20:46.079201+00	2026-11-26 03:20:46.082533+00	2026-11-26 03:20:46.088321+00	FULL	1	0	0	DELETE+UPDATE+INSERT	f	\N	COMPLETED	INITIAL	\N	\N	postgres	not populated yet; engine is set to postgres	0
6	7	2026-11-26 03:20:46.186434+00	2026-11-26 03:20:46.193821+00	2026-11-26 03:20:46.204007+00	FULL	2	0	0	DELETE+UPDATE+INSERT	f	\N	COMPLETED	INITIAL	\N	\N	postgres	not populated yet; about 1270 rows to read, fewer than pg_trickle.spark_min_rows = 100000	0
7	1	2026-11-26 03:20:46.225832+00	2026-11-26 03:20:46.241508+00	2026-11-26 03:20:46.260129+00	DIFFERENTIAL	0	0	4	DELETE+UPDATE+INSERT	f	\N	COMPLETED	MANUAL	\N	\N	postgres	changes are applied incrementally; 4 changes; about 8 rows to read, fewer than pg_trickle.spark_min_rows = 100000	1
8	2	2026-11-26 03:20:46.225832+00	2026-11-26 03:20:46.264571+00	2026-11-26 03:20:46.274897+00	DIFFERENTIAL	1	1	2	DELETE+UPDATE+INSERT	f	\N	COMPLETED	MANUAL	\N	\N	postgres	changes are applied incrementally; 2 changes; about 2 rows to read, fewer than pg_trickle.spark_min_rows = 100000	0
9	3	2026-11-26 03:20:46.225832+00	2026-11-26 03:20:46.284254+00	2026-11-26 03:20:46.298837+00	DIFFERENTIAL	0	0	4	DELETE+UPDATE+INSERT	f	\N	COMPLETED	MANUAL	\N	\N	postgres	changes are applied incrementally; 4 changes; about 8 rows to read, fewer than pg_trickle.spark_min_rows = 100000	0
10	4	2026-11-26 03:20:46.225832+00	2026-11-26 03:20:46.303636+00	2026-11-26 03:20:46.308135+00	DIFFERENTIAL	0	5	5	DELETE+UPDATE+INSERT	f	\N	COMPLETED	MANUAL	\N	\N	postgres	changes are applied incrementally; 5 changes; about 5 rows to read, fewer than pg_trickle.spark_min_rows = 100000	0
11	1	2026-11-26 03:20:46.225832+00	2026-11-26 03:20:46.314251+00	2026-11-26 03:20:46.315191+00	NO_DATA	0	0	0	\N	f	\N	COMPLETED	MANUAL	\N	\N	postgres	no changes; nothing to compute	0
\.
COPY pgtrickle.pgt_requests (request_id, kind, arguments, search_path, requested_by, session_role, xid, requested_at, attempts, error, error_state) FROM stdin;
\.
COPY pgtrickle.pgt_schema_version (version, applied_at, description) FROM stdin;
0001_stream_tables	2026-11-26 03:20:44.978512+00	The catalog of stream tables: what exists, what it depends on, what has been done, what is asked for.
0002_plan_texts	2026-11-26 03:20:44.978512+00	What explain_st shows of a stream table's plan and no refresh reads: rewrites, rewritten_query, delta_sql.
0003_spark_placement	2026-11-26 03:20:44.978512+00	What each executor has taken for a stream table's refreshes: {"FULL" | "DIFFERENTIAL": {"postgres" | "spark": {"ms_per_row",
0004_mirrors	2026-11-26 03:20:44.978512+00	Mirrors outside of the database that take what is captured: their changes are kept until they have them.
0005_loading	2026-11-26 03:20:44.978512+00	COPY from files that Spark reads is an engine request, too.
0006_polling	2026-11-26 03:20:44.978512+00	Foreign tables that are polled: each stream table over one has a copy of it, whose changes are captured.
0007_memory	2026-11-26 03:20:44.978512+00	What a differential refresh hands on to the next one: what aggregates inside the query are made of.
0008_extensions	2026-11-26 03:20:44.978512+00	CREATE, ALTER and DROP EXTENSION of what the server installs are requests.
0009_subscriptions	2026-11-26 03:20:44.978512+00	Subscriptions: the clock of a database, who follows what, and how far its servers have read.
0010_sources	2026-11-26 03:20:44.978512+00	Load generators (CREATE SOURCE), and the statements that PostgreSQL has no grammar for as requests.
0011_history	2026-11-26 03:20:44.978512+00	RETAIN HISTORY: which relations' changes are kept, and the snapshots that timestamps stand for.
functions	2026-11-26 03:20:44.978512+00	Headwater stream tables, 0011_history, functions 78606e34c8cdc3fb
\.
COPY pgtrickle.pgt_source_gates (source_relid, gated, gated_at, ungated_at, gated_by) FROM stdin;
\.
COPY pgtrickle.pgt_stream_tables (pgt_id, pgt_relid, pgt_name, pgt_schema, defining_query, original_query, schedule, refresh_mode, status, is_populated, data_timestamp, frontier, last_refresh_at, consecutive_errors, needs_reinit, auto_threshold, last_full_ms, functions_used, topk_limit, topk_order_by, topk_offset, diamond_consistency, diamond_schedule_policy, has_keyless_source, function_hashes, scc_id, last_fixpoint_iterations, created_at, updated_at, pgt_owner, requested_mode, canonical_query, row_id_salt, engine, explain, fallback_reason, requested_cdc_mode, append_only, plan_texts, executor_costs) FROM stdin;
5	17756	later	shop	SELECT count(*) AS n\n   FROM shop.customers	SELECT count(*) AS n FROM shop.customers	1h	FULL	INITIALIZING	f	\N	\N	\N	0	f	\N	\N	{count}	\N	\N	\N	none	fastest	f	{}	\N	\N	2026-11-26 03:20:46.026626+00	2026-11-26 03:20:46.026626+00	10	FULL	SELECT count(*) AS n\n   FROM shop.customers	0	auto	{"inputs": {"types": [], "views": [], "format": 2, "output": [{"name": "n", "type": "bigint", "faithful": true, "hashable": true, "not_null": false}], "sources": [{"key": ["id"], "oid": 17560, "name": "customers", "schema": "shop", "columns": [{"name": "id", "type": "integer", "faithful": true, "hashable": true, "not_null": true}, {"name": "name", "type": "text", "faithful": true, "hashable": true, "not_null": false}, {"name": "region", "type": "text", "faithful": true, "hashable": true, "not_null": false}]}], "special": [], "differentiable": true}, "sources": ["shop.customers (oid=17560)"], "strategy": {"count(*)": "algebraic: count"}, "operator_tree": "Project\\n  Aggregate(count)\\n    Project\\n      Scan(shop.customers)"}	\N	\N	f	{}	{}
2	17675	large	shop	SELECT region,\n    total\n   FROM shop.totals\n  WHERE (total > (100)::numeric)	SELECT region, total FROM shop.totals WHERE total > 100	1s	DIFFERENTIAL	ACTIVE	t	2026-11-26 03:20:46.225832+00	{"xid": "826", "system": "7712314904547146154.00000001.5", "started": "1795663244.869165", "snapshot": "826:826:", "change_id": 3}	2026-11-26 03:20:46.274794+00	0	f	\N	6.844881998404162	{numeric,numeric_gt}	\N	\N	\N	none	fastest	f	{}	\N	\N	2026-11-26 03:20:45.696577+00	2026-11-26 03:20:46.274795+00	10	AUTO	SELECT region,\n    total\n   FROM shop.totals\n  WHERE (total > (100)::numeric)	0	auto	{"inputs": {"types": [], "views": [], "format": 2, "output": [{"name": "region", "type": "text", "faithful": true, "hashable": true, "not_null": false}, {"name": "total", "type": "numeric", "faithful": false, "hashable": true, "not_null": false}], "sources": [{"key": ["__pgt_row_id"], "oid": 17621, "name": "totals", "schema": "shop", "columns": [{"name": "__pgt_row_id", "type": "bigint", "faithful": true, "hashable": true, "not_null": true}, {"name": "region", "type": "text", "faithful": true, "hashable": true, "not_null": false}, {"name": "orders", "type": "bigint", "faithful": true, "hashable": true, "not_null": false}, {"name": "total", "type": "numeric", "faithful": false, "hashable": true, "not_null": false}, {"name": "largest", "type": "numeric", "faithful": false, "hashable": true, "not_null": false}, {"name": "__pgt_count", "type": "bigint", "faithful": true, "hashable": true, "not_null": false}, {"name": "__pgt_agg2_count", "type": "bigint", "faithful": true, "hashable": true, "not_null": false}, {"name": "__pgt_agg2_sum", "type": "numeric", "faithful": false, "hashable": true, "not_null": false}, {"name": "__pgt_agg3_max", "type": "numeric", "faithful": false, "hashable": true, "not_null": false}]}], "special": [], "differentiable": true}, "sources": ["shop.totals (oid=17621)"], "strategy": {}, "operator_tree": "Project\\n  Filter\\n    Scan(shop.totals)"}	\N	\N	f	{}	{}
3	17707	buyers	shop	SELECT c.name,\n    o.note\n   FROM (shop.customers c\n     LEFT JOIN shop.orders o ON ((o.customer = c.id)))	SELECT c.name, o.note FROM shop.customers c LEFT JOIN shop.orders o ON o.customer = c.id	1s	DIFFERENTIAL	ACTIVE	t	2026-11-26 03:20:46.225832+00	{"xid": "826", "system": "7712314904547146154.00000001.5", "started": "1795663244.869165", "snapshot": "826:826:", "change_id": null}	2026-11-26 03:20:46.298689+00	0	f	\N	3.559269000106724	{int4eq}	\N	\N	\N	none	fastest	f	{}	\N	\N	2026-11-26 03:20:45.86459+00	2026-11-26 03:20:46.298691+00	10	AUTO	SELECT c.name,\n    o.note\n   FROM (shop.customers c\n     LEFT JOIN shop.orders o ON ((o.customer = c.id)))	0	auto	{"inputs": {"types": [], "views": [], "format": 2, "output": [{"name": "name", "type": "text", "faithful": true, "hashable": true, "not_null": false}, {"name": "note", "type": "text", "faithful": true, "hashable": true, "not_null": false}], "sources": [{"key": ["id"], "oid": 17560, "name": "customers", "schema": "shop", "columns": [{"name": "id", "type": "integer", "faithful": true, "hashable": true, "not_null": true}, {"name": "name", "type": "text", "faithful": true, "hashable": true, "not_null": false}, {"name": "region", "type": "text", "faithful": true, "hashable": true, "not_null": false}]}, {"key": ["id"], "oid": 17568, "name": "orders", "schema": "shop", "columns": [{"name": "id", "type": "integer", "faithful": true, "hashable": true, "not_null": true}, {"name": "customer", "type": "integer", "faithful": true, "hashable": true, "not_null": false}, {"name": "amount", "type": "numeric(10,2)", "faithful": false, "hashable": true, "not_null": false}, {"name": "note", "type": "text", "faithful": true, "hashable": true, "not_null": false}]}], "special": [], "differentiable": true}, "sources": ["shop.customers (oid=17560)", "shop.orders (oid=17568)"], "strategy": {}, "operator_tree": "Project\\n  Left join\\n    Scan(shop.customers)\\n    Scan(shop.orders)"}	\N	\N	f	{}	{}
4	17724	pages	shop	SELECT page,\n    upper(page) AS shown\n   FROM shop.clicks	SELECT page, upper(page) AS shown FROM shop.clicks	5m	DIFFERENTIAL	ACTIVE	t	2026-11-26 03:20:46.225832+00	{"xid": "826", "system": "7712314904547146154.00000001.5", "started": "1795663244.869165", "snapshot": "826:826:", "change_id": null}	2026-11-26 03:20:46.308003+00	0	f	\N	4.033042998344172	{upper}	\N	\N	\N	none	fastest	t	{}	\N	\N	2026-11-26 03:20:45.968151+00	2026-11-26 03:20:46.308005+00	10	AUTO	SELECT page,\n    upper(page) AS shown\n   FROM shop.clicks	0	auto	{"inputs": {"types": [], "views": [], "format": 2, "output": [{"name": "page", "type": "text", "faithful": true, "hashable": true, "not_null": false}, {"name": "shown", "type": "text", "faithful": true, "hashable": true, "not_null": false}], "sources": [{"key": [], "oid": 17590, "name": "clicks", "schema": "shop", "columns": [{"name": "page", "type": "text", "faithful": true, "hashable": true, "not_null": false}, {"name": "millis", "type": "integer", "faithful": true, "hashable": true, "not_null": false}]}], "special": [], "differentiable": true}, "sources": ["shop.clicks (oid=17590)"], "strategy": {}, "operator_tree": "Project\\n  Scan(shop.clicks)"}	\N	\N	f	{}	{}
6	17768	exact	shop	SELECT sum(price) AS total\n   FROM shop.prices	SELECT sum(price) AS total FROM shop.prices	1s	DIFFERENTIAL	SUSPENDED	t	2026-11-26 03:20:46.079201+00	{"xid": "811", "system": "7712314904547146154.00000001.5", "started": "1795663244.869165", "snapshot": "811:811:", "change_id": null}	2026-11-26 03:20:46.086779+00	0	f	\N	3.0710440005350392	{sum}	\N	\N	\N	none	fastest	f	{}	\N	\N	2026-11-26 03:20:46.047536+00	2026-11-26 03:20:46.097354+00	10	AUTO	SELECT sum(price) AS total\n   FROM shop.prices	0	postgres	{"inputs": {"types": [], "views": [], "format": 2, "output": [{"name": "total", "type": "numeric", "faithful": false, "hashable": true, "not_null": false}], "sources": [{"key": ["id"], "oid": 17595, "name": "prices", "schema": "shop", "columns": [{"name": "id", "type": "integer", "faithful": true, "hashable": true, "not_null": true}, {"name": "price", "type": "numeric(10,2)", "faithful": false, "hashable": true, "not_null": false}]}], "special": [], "differentiable": true}, "sources": ["shop.prices (oid=17595)"], "strategy": {"sum(price)": "algebraic: sum and count"}, "operator_tree": "Project\\n  Aggregate(sum)\\n    Project\\n      Scan(shop.prices)"}	\N	\N	f	{}	{}
7	17800	counts	alice	SELECT note,\n    count(*) AS n\n   FROM alice.notes\n  GROUP BY note	SELECT note, count(*) AS n FROM alice.notes GROUP BY note	1s	DIFFERENTIAL	ACTIVE	t	2026-11-26 03:20:46.186434+00	{"xid": "820", "system": "7712314904547146154.00000001.5", "started": "1795663244.869165", "snapshot": "820:820:", "change_id": null}	2026-11-26 03:20:46.202204+00	0	f	\N	7.604041002196027	{count,text_lt,texteq}	\N	\N	\N	none	fastest	f	{}	\N	\N	2026-11-26 03:20:46.099897+00	2026-11-26 03:20:46.202209+00	17557	AUTO	SELECT note,\n    count(*) AS n\n   FROM alice.notes\n  GROUP BY note	0	auto	{"inputs": {"types": [], "views": [], "format": 2, "output": [{"name": "note", "type": "text", "faithful": true, "hashable": true, "not_null": false}, {"name": "n", "type": "bigint", "faithful": true, "hashable": true, "not_null": false}], "sources": [{"key": ["id"], "oid": 17601, "name": "notes", "schema": "alice", "columns": [{"name": "id", "type": "integer", "faithful": true, "hashable": true, "not_null": true}, {"name": "note", "type": "text", "faithful": true, "hashable": true, "not_null": false}]}], "special": [], "differentiable": true}, "sources": ["alice.notes (oid=17601)"], "strategy": {"count(*)": "algebraic: count"}, "operator_tree": "Project\\n  Aggregate(count)\\n    Project\\n      Scan(alice.notes)"}	\N	\N	f	{}	{}
1	17621	totals	shop	SELECT c.region,\n    count(*) AS orders,\n    sum(o.amount) AS total,\n    max(o.amount) AS largest\n   FROM (shop.orders o\n     JOIN shop.customers c ON ((c.id = o.customer)))\n  GROUP BY c.region	SELECT c.region, count(*) AS orders, sum(o.amount) AS total, max(o.amount) AS largest\n     FROM shop.orders o JOIN shop.customers c ON c.id = o.customer GROUP BY c.region	1s	DIFFERENTIAL	ACTIVE	t	2026-11-26 03:20:46.225832+00	{"xid": "826", "system": "7712314904547146154.00000001.5", "started": "1795663244.869165", "snapshot": "826:826:", "change_id": null}	2026-11-26 03:20:46.314946+00	0	f	\N	9.12473000062164	{count,int4eq,max,sum,text_lt,texteq}	\N	\N	\N	none	fastest	f	{}	\N	\N	2026-11-26 03:20:45.435015+00	2026-11-26 03:20:46.314946+00	10	AUTO	SELECT c.region,\n    count(*) AS orders,\n    sum(o.amount) AS total,\n    max(o.amount) AS largest\n   FROM (shop.orders o\n     JOIN shop.customers c ON ((c.id = o.customer)))\n  GROUP BY c.region	0	auto	{"inputs": {"types": [], "views": [], "format": 2, "output": [{"name": "region", "type": "text", "faithful": true, "hashable": true, "not_null": false}, {"name": "orders", "type": "bigint", "faithful": true, "hashable": true, "not_null": false}, {"name": "total", "type": "numeric", "faithful": false, "hashable": true, "not_null": false}, {"name": "largest", "type": "numeric", "faithful": false, "hashable": true, "not_null": false}], "sources": [{"key": ["id"], "oid": 17560, "name": "customers", "schema": "shop", "columns": [{"name": "id", "type": "integer", "faithful": true, "hashable": true, "not_null": true}, {"name": "name", "type": "text", "faithful": true, "hashable": true, "not_null": false}, {"name": "region", "type": "text", "faithful": true, "hashable": true, "not_null": false}]}, {"key": ["id"], "oid": 17568, "name": "orders", "schema": "shop", "columns": [{"name": "id", "type": "integer", "faithful": true, "hashable": true, "not_null": true}, {"name": "customer", "type": "integer", "faithful": true, "hashable": true, "not_null": false}, {"name": "amount", "type": "numeric(10,2)", "faithful": false, "hashable": true, "not_null": false}, {"name": "note", "type": "text", "faithful": true, "hashable": true, "not_null": false}]}], "special": [], "differentiable": true}, "sources": ["shop.customers (oid=17560)", "shop.orders (oid=17568)"], "strategy": {"count(*)": "algebraic: count", "max(amount)": "semi-algebraic: max; the group is rescanned when its extremum goes", "sum(amount)": "algebraic: sum and count"}, "operator_tree": "Project\\n  Aggregate(count, sum, max)\\n    Project\\n      Join\\n        Scan(shop.orders)\\n        Scan(shop.customers)"}	\N	\N	f	{}	{}
\.
COPY pgtrickle.pgt_subscription_servers (server, frontier, mz_timestamp, started_at) FROM stdin;
-1	836:836:	1795663246483	2026-11-26 03:20:46.333394+00
\.
COPY pgtrickle.pgt_subscription_sources (subscription_id, source_relid, columns_used, reader, schema_fingerprint, capture_generation) FROM stdin;
1	17595	{id,price}	10	c4cc6fa8afb230697b31ef85c7316517fedcd9bc90dfcd0af913c45e9d50e480	ede00f92-759c-4dd9-a675-3a7b61180c8e
\.
COPY pgtrickle.pgt_subscriptions (subscription_id, server, subscriber, runs_as, function_hashes, started_at) FROM stdin;
1	-1	10	10	{}	2026-11-26 03:20:46.339562+00
\.
COPY pgtrickle.pgt_timeline (mz_timestamp, snapshot, system) FROM stdin;
1795663246483	836:836:	7712314904547146154.00000001.5
1795663247918	863:863:	7712314904547146154.00000001.5
\.
COPY pgtrickle.pgt_watermark_groups (group_id, group_name, source_relids, tolerance_secs, created_at) FROM stdin;
\.
COPY pgtrickle.pgt_watermarks (source_relid, watermark, updated_at, advanced_by, wal_lsn_at_advance) FROM stdin;
\.
COPY pgtrickle_changes.changes_17560 (__pgt_change_id, __pgt_xid, __pgt_w, id, region, name) FROM stdin;
5	861	-1	1	r1	customer 1
5	861	1	1	r9	customer 1
\.
COPY pgtrickle_changes.changes_17568 (__pgt_change_id, __pgt_xid, __pgt_w, id, customer, amount, note) FROM stdin;
4	860	1	121	3	1000.00	waits
4	860	1	122	\N	1.00	\N
6	862	-1	92	8	115.00	n1
6	862	-1	93	9	116.25	n2
6	862	-1	94	10	117.50	n3
6	862	-1	95	11	118.75	n4
\.
COPY pgtrickle_changes.changes_17590 (__pgt_change_id, __pgt_xid, __pgt_w, page) FROM stdin;
7	863	1	p9
7	863	1	p9
7	863	1	p9
\.
COPY pgtrickle_changes.changes_17595 (__pgt_change_id, __pgt_xid, __pgt_w, price, id) FROM stdin;
8	865	-1	1.00	1
8	865	-1	2.00	2
8	865	-1	3.00	3
8	865	-1	4.00	4
8	865	-1	5.00	5
8	865	1	2.00	1
8	865	1	4.00	2
8	865	1	6.00	3
8	865	1	8.00	4
8	865	1	10.00	5
\.
COPY pgtrickle_changes.changes_17601 (__pgt_change_id, __pgt_xid, __pgt_w, id, note) FROM stdin;
9	866	1	5	note 0
\.
COPY pgtrickle_changes.changes_17621 (__pgt_change_id, __pgt_xid, __pgt_w, __pgt_row_id, region, total) FROM stdin;
\.
COPY shop.buyers (__pgt_row_id, name, note, __pgt_hash, __pgt_ordinal) FROM stdin;
6413195687245531065	customer 2	n5	-4060026558885444818	1
8954705776724128796	customer 4	n2	-2098011873685622645	1
-7112940829714857177	customer 3	n6	283196970562242480	1
-8807372511063608954	customer 5	n1	1973193986498524433	1
-5314267433569631907	customer 2	\N	2925142694433572298	1
-3042107064161171468	customer 1	n4	5435738761589326691	1
-4074874246411857199	customer 5	n3	6473079295606969926	1
-4353270281928070392	customer 3	n1	6715376783841341343	1
-4595554517226821667	customer 1	n6	6818049233391575882	1
-1221432940668551650	customer 6	n4	8190716293227248265	1
-1513623956895765067	customer 6	n2	8383832388988954914	1
-2189135440440704245	customer 4	\N	9167495744670484380	1
\.
COPY shop.clicks (page, millis) FROM stdin;
p1	1
p3	0
p0	1
p2	0
p3	1
p1	0
p2	1
p0	0
p1	1
p3	0
p0	1
p9	1
p9	1
p9	1
\.
COPY shop.counter (counter) FROM stdin;
1
2
\.
COPY shop.customers (id, name, region) FROM stdin;
2	customer 2	r2
3	customer 3	r0
4	customer 4	r1
5	customer 5	r2
6	customer 6	r0
1	customer 1	r9
\.
COPY shop.exact (__pgt_row_id, total, __pgt_count, __pgt_agg1_count, __pgt_agg1_sum) FROM stdin;
1	15.00	5	5	15.00
\.
COPY shop.large (__pgt_row_id, region, total, __pgt_hash, __pgt_ordinal) FROM stdin;
-9167743930965760881	r2	527.50	2189450164369350680	1
-4985964390170628402	r0	532.50	2623795286959254105	1
-909999017640075315	r1	523.50	7924317269100256090	1
\.
COPY shop.later (__pgt_row_id, n, __pgt_count) FROM stdin;
\.
COPY shop.orders_1 (id, customer, amount, note) FROM stdin;
96	0	120.00	n5
97	1	121.25	n6
98	2	122.50	\N
99	3	123.75	n1
91	7	114.75	\N
\.
COPY shop.orders_2 (id, customer, amount, note) FROM stdin;
101	5	126.25	n3
102	6	127.50	n4
103	7	128.75	n5
104	8	130.00	n6
105	9	131.25	\N
106	10	132.50	n1
107	11	133.75	n2
108	0	135.00	n3
109	1	136.25	n4
110	2	137.50	n5
111	3	138.75	n6
112	4	140.00	\N
113	5	141.25	n1
114	6	142.50	n2
115	7	143.75	n3
100	4	126.00	n2
121	3	1000.00	waits
122	\N	1.00	\N
\.
COPY shop.pages (__pgt_row_id, page, shown, __pgt_hash, __pgt_ordinal) FROM stdin;
1040008084300022383	p3	P3	-8013867520231356680	1
8699984378165560905	p3	P3	-8013867520231356680	2
794723295763447873	p3	P3	-8013867520231356680	3
8098930378067721448	p2	P2	-1242164051409782657	1
483989771235227854	p2	P2	-1242164051409782657	2
-9193983918331495816	p0	P0	2220191544019746543	1
-668155402066641314	p0	P0	2220191544019746543	2
-8862559456345720746	p0	P0	2220191544019746543	3
-2358600807273680754	p1	P1	4747723280804066329	1
-6226572372317703000	p1	P1	4747723280804066329	2
-2725482100650593632	p1	P1	4747723280804066329	3
\.
COPY shop.prices (id, price) FROM stdin;
1	2.00
2	4.00
3	6.00
4	8.00
5	10.00
\.
COPY shop.totals (__pgt_row_id, region, orders, total, largest, __pgt_count, __pgt_agg2_count, __pgt_agg2_sum, __pgt_agg3_max) FROM stdin;
2861721587863069938	r0	4	532.50	142.50	4	4	532.50	142.50
758196653551110464	r2	4	527.50	141.25	4	4	527.50	141.25
6041999087275961597	r1	4	523.50	140.00	4	4	523.50	140.00
\.
SELECT pg_catalog.setval('accum.stock_balance_cache_delta_id_seq', 4, true);
SELECT pg_catalog.setval('accum.stock_movements_audit_audit_id_seq', 1, true);
SELECT pg_catalog.setval('pgque.batch_id_seq', 2, true);
SELECT pg_catalog.setval('pgque.consumer_co_id_seq', 2, true);
SELECT pg_catalog.setval('pgque.dead_letter_dl_id_seq', 1, false);
SELECT pg_catalog.setval('pgque.delayed_events_de_id_seq', 1, false);
SELECT pg_catalog.setval('pgque.event_1_id_seq', 7, true);
SELECT pg_catalog.setval('pgque.event_1_tick_seq', 4, true);
SELECT pg_catalog.setval('pgque.queue_queue_id_seq', 1, true);
SELECT pg_catalog.setval('pgque.subscription_sub_id_seq', 2, true);
SELECT pg_catalog.setval('pgtrickle.pgt_history_seq', 1, true);
SELECT pg_catalog.setval('pgtrickle.pgt_refresh_groups_group_id_seq', 1, false);
SELECT pg_catalog.setval('pgtrickle.pgt_refresh_history_refresh_id_seq', 11, true);
SELECT pg_catalog.setval('pgtrickle.pgt_requests_request_id_seq', 15, true);
SELECT pg_catalog.setval('pgtrickle.pgt_stream_tables_pgt_id_seq', 7, true);
SELECT pg_catalog.setval('pgtrickle.pgt_subscriptions_subscription_id_seq', 1, true);
SELECT pg_catalog.setval('pgtrickle.pgt_timeline_seq', 1795663247918, true);
SELECT pg_catalog.setval('pgtrickle.pgt_watermark_groups_group_id_seq', 1, false);
SELECT pg_catalog.setval('pgtrickle_changes.change_id_seq', 9, true);
ALTER TABLE ONLY accum._maintenance_runs
ADD CONSTRAINT _maintenance_runs_pkey PRIMARY KEY (task);
ALTER TABLE ONLY accum._registers
ADD CONSTRAINT _registers_pkey PRIMARY KEY (name);
ALTER TABLE ONLY accum._schema_version
ADD CONSTRAINT _schema_version_pkey PRIMARY KEY (version);
ALTER TABLE ONLY accum.stock_balance_cache_stored
ADD CONSTRAINT stock_balance_cache_cell UNIQUE NULLS NOT DISTINCT (dim_hash, product, warehouse);
ALTER TABLE ONLY accum.stock_balance_cache_delta
ADD CONSTRAINT stock_balance_cache_delta_pkey PRIMARY KEY (id);
ALTER TABLE ONLY accum.stock_movements_audit
ADD CONSTRAINT stock_movements_audit_pkey PRIMARY KEY (audit_id);
ALTER TABLE ONLY accum.stock_totals_year_stored
ADD CONSTRAINT stock_totals_year_cell UNIQUE NULLS NOT DISTINCT (dim_hash, period, product, warehouse);
ALTER TABLE ONLY alice.counts
ADD CONSTRAINT counts_pkey PRIMARY KEY (__pgt_row_id);
ALTER TABLE ONLY alice.notes
ADD CONSTRAINT notes_pkey PRIMARY KEY (id);
ALTER TABLE ONLY pgque.config
ADD CONSTRAINT config_pkey PRIMARY KEY (singleton);
ALTER TABLE ONLY pgque.consumer
ADD CONSTRAINT consumer_co_name_key UNIQUE (co_name);
ALTER TABLE ONLY pgque.consumer
ADD CONSTRAINT consumer_pkey PRIMARY KEY (co_id);
ALTER TABLE ONLY pgque.dead_letter
ADD CONSTRAINT dead_letter_dl_queue_id_dl_consumer_id_ev_id_key UNIQUE (dl_queue_id, dl_consumer_id, ev_id);
ALTER TABLE ONLY pgque.dead_letter
ADD CONSTRAINT dead_letter_pkey PRIMARY KEY (dl_id);
ALTER TABLE ONLY pgque.delayed_events
ADD CONSTRAINT delayed_events_pkey PRIMARY KEY (de_id);
ALTER TABLE ONLY pgque.queue
ADD CONSTRAINT queue_pkey PRIMARY KEY (queue_id);
ALTER TABLE ONLY pgque.queue
ADD CONSTRAINT queue_queue_name_key UNIQUE (queue_name);
ALTER TABLE ONLY pgque.retry_queue
ADD CONSTRAINT retry_queue_pkey PRIMARY KEY (ev_owner, ev_id);
ALTER TABLE ONLY pgque.schema_version
ADD CONSTRAINT schema_version_pkey PRIMARY KEY (version);
ALTER TABLE ONLY pgque.subscription
ADD CONSTRAINT subscription_pkey PRIMARY KEY (sub_id);
ALTER TABLE ONLY pgque.subscription
ADD CONSTRAINT subscription_sub_batch_key UNIQUE (sub_batch);
ALTER TABLE ONLY pgque.subscription
ADD CONSTRAINT subscription_sub_queue_sub_consumer_key UNIQUE (sub_queue, sub_consumer);
ALTER TABLE ONLY pgque.tick
ADD CONSTRAINT tick_pkey PRIMARY KEY (tick_queue, tick_id);
ALTER TABLE ONLY pgtrickle.pgt_captures
ADD CONSTRAINT pgt_captures_pkey PRIMARY KEY (source_relid);
ALTER TABLE ONLY pgtrickle.pgt_dependencies
ADD CONSTRAINT pgt_dependencies_pkey PRIMARY KEY (pgt_id, source_relid);
ALTER TABLE ONLY pgtrickle.pgt_history
ADD CONSTRAINT pgt_history_pkey PRIMARY KEY (relid);
ALTER TABLE ONLY pgtrickle.pgt_load_generators
ADD CONSTRAINT pgt_load_generators_pkey PRIMARY KEY (source_relid);
ALTER TABLE ONLY pgtrickle.pgt_memory
ADD CONSTRAINT pgt_memory_pkey PRIMARY KEY (pgt_id);
ALTER TABLE ONLY pgtrickle.pgt_mirrors
ADD CONSTRAINT pgt_mirrors_pkey PRIMARY KEY (mirror);
ALTER TABLE ONLY pgtrickle.pgt_polls
ADD CONSTRAINT pgt_polls_copy_name_key UNIQUE (copy_name);
ALTER TABLE ONLY pgtrickle.pgt_polls
ADD CONSTRAINT pgt_polls_pkey PRIMARY KEY (pgt_id, foreign_schema, foreign_name);
ALTER TABLE ONLY pgtrickle.pgt_refresh_groups
ADD CONSTRAINT pgt_refresh_groups_group_name_key UNIQUE (group_name);
ALTER TABLE ONLY pgtrickle.pgt_refresh_groups
ADD CONSTRAINT pgt_refresh_groups_pkey PRIMARY KEY (group_id);
ALTER TABLE ONLY pgtrickle.pgt_refresh_history
ADD CONSTRAINT pgt_refresh_history_pkey PRIMARY KEY (refresh_id);
ALTER TABLE ONLY pgtrickle.pgt_requests
ADD CONSTRAINT pgt_requests_pkey PRIMARY KEY (request_id);
ALTER TABLE ONLY pgtrickle.pgt_schema_version
ADD CONSTRAINT pgt_schema_version_pkey PRIMARY KEY (version);
ALTER TABLE ONLY pgtrickle.pgt_source_gates
ADD CONSTRAINT pgt_source_gates_pkey PRIMARY KEY (source_relid);
ALTER TABLE ONLY pgtrickle.pgt_stream_tables
ADD CONSTRAINT pgt_stream_tables_pgt_relid_key UNIQUE (pgt_relid);
ALTER TABLE ONLY pgtrickle.pgt_stream_tables
ADD CONSTRAINT pgt_stream_tables_pgt_schema_pgt_name_key UNIQUE (pgt_schema, pgt_name);
ALTER TABLE ONLY pgtrickle.pgt_stream_tables
ADD CONSTRAINT pgt_stream_tables_pkey PRIMARY KEY (pgt_id);
ALTER TABLE ONLY pgtrickle.pgt_subscription_servers
ADD CONSTRAINT pgt_subscription_servers_pkey PRIMARY KEY (server);
ALTER TABLE ONLY pgtrickle.pgt_subscription_sources
ADD CONSTRAINT pgt_subscription_sources_pkey PRIMARY KEY (subscription_id, source_relid, reader);
ALTER TABLE ONLY pgtrickle.pgt_subscriptions
ADD CONSTRAINT pgt_subscriptions_pkey PRIMARY KEY (subscription_id);
ALTER TABLE ONLY pgtrickle.pgt_timeline
ADD CONSTRAINT pgt_timeline_pkey PRIMARY KEY (mz_timestamp);
ALTER TABLE ONLY pgtrickle.pgt_watermark_groups
ADD CONSTRAINT pgt_watermark_groups_group_name_key UNIQUE (group_name);
ALTER TABLE ONLY pgtrickle.pgt_watermark_groups
ADD CONSTRAINT pgt_watermark_groups_pkey PRIMARY KEY (group_id);
ALTER TABLE ONLY pgtrickle.pgt_watermarks
ADD CONSTRAINT pgt_watermarks_pkey PRIMARY KEY (source_relid);
ALTER TABLE ONLY shop.buyers
ADD CONSTRAINT buyers_pkey PRIMARY KEY (__pgt_row_id);
ALTER TABLE ONLY shop.customers
ADD CONSTRAINT customers_pkey PRIMARY KEY (id);
ALTER TABLE ONLY shop.exact
ADD CONSTRAINT exact_pkey PRIMARY KEY (__pgt_row_id);
ALTER TABLE ONLY shop.large
ADD CONSTRAINT large_pkey PRIMARY KEY (__pgt_row_id);
ALTER TABLE ONLY shop.later
ADD CONSTRAINT later_pkey PRIMARY KEY (__pgt_row_id);
ALTER TABLE ONLY shop.orders
ADD CONSTRAINT orders_pkey PRIMARY KEY (id);
ALTER TABLE ONLY shop.orders_1
ADD CONSTRAINT orders_1_pkey PRIMARY KEY (id);
ALTER TABLE ONLY shop.orders_2
ADD CONSTRAINT orders_2_pkey PRIMARY KEY (id);
ALTER TABLE ONLY shop.pages
ADD CONSTRAINT pages_pkey PRIMARY KEY (__pgt_row_id);
ALTER TABLE ONLY shop.prices
ADD CONSTRAINT prices_pkey PRIMARY KEY (id);
ALTER TABLE ONLY shop.totals
ADD CONSTRAINT totals_pkey PRIMARY KEY (__pgt_row_id);
CREATE INDEX stock_balance_cache_delta_dim_hash_idx ON accum.stock_balance_cache_delta USING btree (dim_hash);
CREATE INDEX stock_balance_cache_stored_product_warehouse_idx ON accum.stock_balance_cache_stored USING btree (product, warehouse);
CREATE INDEX stock_balance_cache_stored_warehouse_idx ON accum.stock_balance_cache_stored USING btree (warehouse);
CREATE INDEX stock_movements_audit_recorder_idx ON accum.stock_movements_audit USING btree (recorder);
CREATE INDEX stock_movements_dim_hash_period_idx ON ONLY accum.stock_movements USING btree (dim_hash, period);
CREATE INDEX stock_movements_default_dim_hash_period_idx ON accum.stock_movements_default USING btree (dim_hash, period);
CREATE INDEX stock_movements_period_idx ON ONLY accum.stock_movements USING btree (period);
CREATE INDEX stock_movements_default_period_idx ON accum.stock_movements_default USING btree (period);
CREATE INDEX stock_movements_recorder_idx ON ONLY accum.stock_movements USING btree (recorder);
CREATE INDEX stock_movements_default_recorder_idx ON accum.stock_movements_default USING btree (recorder);
CREATE INDEX stock_totals_year_stored_product_warehouse_idx ON accum.stock_totals_year_stored USING btree (product, warehouse);
CREATE INDEX stock_totals_year_stored_warehouse_idx ON accum.stock_totals_year_stored USING btree (warehouse);
CREATE INDEX dead_letter_newest_idx ON pgque.dead_letter USING btree (dl_queue_id, dl_time DESC, dl_id DESC);
CREATE INDEX delayed_events_due_idx ON pgque.delayed_events USING btree (de_deliver_at);
CREATE INDEX event_1_0_txid_idx ON pgque.event_1_0 USING btree (ev_txid);
CREATE INDEX event_1_1_txid_idx ON pgque.event_1_1 USING btree (ev_txid);
CREATE INDEX event_1_2_txid_idx ON pgque.event_1_2 USING btree (ev_txid);
CREATE INDEX retry_queue_due_idx ON pgque.retry_queue USING btree (ev_queue, ev_retry_after);
CREATE INDEX retry_queue_moved_idx ON pgque.retry_queue USING btree (ev_batch) WHERE (ev_retry_after = 'infinity'::timestamptz);
CREATE INDEX subscription_main_idx ON pgque.subscription USING btree (sub_main) WHERE (sub_main IS NOT NULL);
CREATE INDEX pgt_dependencies_source ON pgtrickle.pgt_dependencies USING btree (source_relid);
CREATE INDEX pgt_mirrors_source ON pgtrickle.pgt_mirrors USING btree (source_relid);
CREATE INDEX pgt_refresh_history_latest ON pgtrickle.pgt_refresh_history USING btree (pgt_id, refresh_id);
CREATE INDEX pgt_refresh_history_start ON pgtrickle.pgt_refresh_history USING btree (start_time);
CREATE INDEX pgt_requests_xid ON pgtrickle.pgt_requests USING btree (xid);
CREATE INDEX pgt_subscription_sources_relid ON pgtrickle.pgt_subscription_sources USING btree (source_relid);
CREATE INDEX pgt_subscriptions_server ON pgtrickle.pgt_subscriptions USING btree (server);
CREATE INDEX buyers___pgt_hash_idx ON shop.buyers USING btree (__pgt_hash);
CREATE INDEX large___pgt_hash_idx ON shop.large USING btree (__pgt_hash);
CREATE INDEX pages___pgt_hash_idx ON shop.pages USING btree (__pgt_hash);
ALTER INDEX accum.stock_movements_dim_hash_period_idx ATTACH PARTITION accum.stock_movements_default_dim_hash_period_idx;
ALTER INDEX accum.stock_movements_period_idx ATTACH PARTITION accum.stock_movements_default_period_idx;
ALTER INDEX accum.stock_movements_recorder_idx ATTACH PARTITION accum.stock_movements_default_recorder_idx;
ALTER INDEX shop.orders_pkey ATTACH PARTITION shop.orders_1_pkey;
ALTER INDEX shop.orders_pkey ATTACH PARTITION shop.orders_2_pkey;
CREATE TRIGGER accumulate_delete AFTER DELETE ON accum.stock_movements REFERENCING OLD TABLE AS deleted FOR EACH STATEMENT EXECUTE FUNCTION accum._trg_stock_delete();
CREATE TRIGGER accumulate_delete AFTER DELETE ON accum.stock_movements_default REFERENCING OLD TABLE AS deleted FOR EACH STATEMENT EXECUTE FUNCTION accum._trg_stock_delete();
CREATE TRIGGER accumulate_insert AFTER INSERT ON accum.stock_movements REFERENCING NEW TABLE AS inserted FOR EACH STATEMENT EXECUTE FUNCTION accum._trg_stock_insert();
CREATE TRIGGER accumulate_insert AFTER INSERT ON accum.stock_movements_default REFERENCING NEW TABLE AS inserted FOR EACH STATEMENT EXECUTE FUNCTION accum._trg_stock_insert();
CREATE TRIGGER accumulate_truncate BEFORE TRUNCATE ON accum.stock_movements_default FOR EACH STATEMENT EXECUTE FUNCTION accum._trg_stock_truncate();
CREATE TRIGGER accumulate_update AFTER UPDATE ON accum.stock_movements REFERENCING OLD TABLE AS deleted NEW TABLE AS inserted FOR EACH STATEMENT EXECUTE FUNCTION accum._trg_stock_update();
CREATE TRIGGER accumulate_update AFTER UPDATE ON accum.stock_movements_default REFERENCING OLD TABLE AS deleted NEW TABLE AS inserted FOR EACH STATEMENT EXECUTE FUNCTION accum._trg_stock_update();
CREATE TRIGGER dim_hash BEFORE INSERT ON accum.stock_movements FOR EACH ROW WHEN ((new.dim_hash IS NULL)) EXECUTE FUNCTION accum._trg_stock_hash();
CREATE TRIGGER dim_hash_update BEFORE UPDATE ON accum.stock_movements FOR EACH ROW EXECUTE FUNCTION accum._trg_stock_hash();
CREATE TRIGGER pg_trickle_cdc_del_17601 AFTER DELETE ON alice.notes REFERENCING OLD TABLE AS __pgt_old FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_del_17601();
ALTER TABLE alice.notes ENABLE ALWAYS TRIGGER pg_trickle_cdc_del_17601;
CREATE TRIGGER pg_trickle_cdc_ins_17601 AFTER INSERT ON alice.notes REFERENCING NEW TABLE AS __pgt_new FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_ins_17601();
ALTER TABLE alice.notes ENABLE ALWAYS TRIGGER pg_trickle_cdc_ins_17601;
CREATE TRIGGER pg_trickle_cdc_truncate_17601 AFTER TRUNCATE ON alice.notes FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_truncate_17601();
ALTER TABLE alice.notes ENABLE ALWAYS TRIGGER pg_trickle_cdc_truncate_17601;
CREATE TRIGGER pg_trickle_cdc_upd_17601 AFTER UPDATE ON alice.notes REFERENCING OLD TABLE AS __pgt_old NEW TABLE AS __pgt_new FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_upd_17601();
ALTER TABLE alice.notes ENABLE ALWAYS TRIGGER pg_trickle_cdc_upd_17601;
CREATE TRIGGER pg_trickle_guard BEFORE INSERT OR DELETE OR UPDATE OR TRUNCATE ON alice.counts FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle._guard();
CREATE TRIGGER queues_changed AFTER INSERT OR DELETE OR UPDATE OF queue_id, queue_name, queue_cur_table, queue_disable_insert OR TRUNCATE ON pgque.queue FOR EACH STATEMENT EXECUTE FUNCTION pgque._queues_changed();
CREATE CONSTRAINT TRIGGER request_left AFTER INSERT ON pgtrickle.pgt_requests DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION pgtrickle._request_left();
CREATE TRIGGER pg_trickle_cdc_del_17560 AFTER DELETE ON shop.customers REFERENCING OLD TABLE AS __pgt_old FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_del_17560();
ALTER TABLE shop.customers ENABLE ALWAYS TRIGGER pg_trickle_cdc_del_17560;
CREATE TRIGGER pg_trickle_cdc_del_17568 AFTER DELETE ON shop.orders REFERENCING OLD TABLE AS __pgt_old FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_del_17568();
ALTER TABLE shop.orders ENABLE ALWAYS TRIGGER pg_trickle_cdc_del_17568;
CREATE TRIGGER pg_trickle_cdc_del_17568 AFTER DELETE ON shop.orders_1 REFERENCING OLD TABLE AS __pgt_old FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_del_17568();
ALTER TABLE shop.orders_1 ENABLE ALWAYS TRIGGER pg_trickle_cdc_del_17568;
CREATE TRIGGER pg_trickle_cdc_del_17568 AFTER DELETE ON shop.orders_2 REFERENCING OLD TABLE AS __pgt_old FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_del_17568();
ALTER TABLE shop.orders_2 ENABLE ALWAYS TRIGGER pg_trickle_cdc_del_17568;
CREATE TRIGGER pg_trickle_cdc_del_17590 AFTER DELETE ON shop.clicks REFERENCING OLD TABLE AS __pgt_old FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_del_17590();
ALTER TABLE shop.clicks ENABLE ALWAYS TRIGGER pg_trickle_cdc_del_17590;
CREATE TRIGGER pg_trickle_cdc_del_17595 AFTER DELETE ON shop.prices REFERENCING OLD TABLE AS __pgt_old FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_del_17595();
ALTER TABLE shop.prices ENABLE ALWAYS TRIGGER pg_trickle_cdc_del_17595;
CREATE TRIGGER pg_trickle_cdc_del_17621 AFTER DELETE ON shop.totals REFERENCING OLD TABLE AS __pgt_old FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_del_17621();
ALTER TABLE shop.totals ENABLE ALWAYS TRIGGER pg_trickle_cdc_del_17621;
CREATE TRIGGER pg_trickle_cdc_emptied_17595 BEFORE TRUNCATE ON shop.prices FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle._on_emptied('17595');
ALTER TABLE shop.prices ENABLE ALWAYS TRIGGER pg_trickle_cdc_emptied_17595;
CREATE TRIGGER pg_trickle_cdc_ins_17560 AFTER INSERT ON shop.customers REFERENCING NEW TABLE AS __pgt_new FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_ins_17560();
ALTER TABLE shop.customers ENABLE ALWAYS TRIGGER pg_trickle_cdc_ins_17560;
CREATE TRIGGER pg_trickle_cdc_ins_17568 AFTER INSERT ON shop.orders REFERENCING NEW TABLE AS __pgt_new FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_ins_17568();
ALTER TABLE shop.orders ENABLE ALWAYS TRIGGER pg_trickle_cdc_ins_17568;
CREATE TRIGGER pg_trickle_cdc_ins_17568 AFTER INSERT ON shop.orders_1 REFERENCING NEW TABLE AS __pgt_new FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_ins_17568();
ALTER TABLE shop.orders_1 ENABLE ALWAYS TRIGGER pg_trickle_cdc_ins_17568;
CREATE TRIGGER pg_trickle_cdc_ins_17568 AFTER INSERT ON shop.orders_2 REFERENCING NEW TABLE AS __pgt_new FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_ins_17568();
ALTER TABLE shop.orders_2 ENABLE ALWAYS TRIGGER pg_trickle_cdc_ins_17568;
CREATE TRIGGER pg_trickle_cdc_ins_17590 AFTER INSERT ON shop.clicks REFERENCING NEW TABLE AS __pgt_new FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_ins_17590();
ALTER TABLE shop.clicks ENABLE ALWAYS TRIGGER pg_trickle_cdc_ins_17590;
CREATE TRIGGER pg_trickle_cdc_ins_17595 AFTER INSERT ON shop.prices REFERENCING NEW TABLE AS __pgt_new FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_ins_17595();
ALTER TABLE shop.prices ENABLE ALWAYS TRIGGER pg_trickle_cdc_ins_17595;
CREATE TRIGGER pg_trickle_cdc_ins_17621 AFTER INSERT ON shop.totals REFERENCING NEW TABLE AS __pgt_new FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_ins_17621();
ALTER TABLE shop.totals ENABLE ALWAYS TRIGGER pg_trickle_cdc_ins_17621;
CREATE TRIGGER pg_trickle_cdc_truncate_17560 AFTER TRUNCATE ON shop.customers FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_truncate_17560();
ALTER TABLE shop.customers ENABLE ALWAYS TRIGGER pg_trickle_cdc_truncate_17560;
CREATE TRIGGER pg_trickle_cdc_truncate_17568 AFTER TRUNCATE ON shop.orders FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_truncate_17568();
ALTER TABLE shop.orders ENABLE ALWAYS TRIGGER pg_trickle_cdc_truncate_17568;
CREATE TRIGGER pg_trickle_cdc_truncate_17568 AFTER TRUNCATE ON shop.orders_1 FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_truncate_17568();
ALTER TABLE shop.orders_1 ENABLE ALWAYS TRIGGER pg_trickle_cdc_truncate_17568;
CREATE TRIGGER pg_trickle_cdc_truncate_17568 AFTER TRUNCATE ON shop.orders_2 FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_truncate_17568();
ALTER TABLE shop.orders_2 ENABLE ALWAYS TRIGGER pg_trickle_cdc_truncate_17568;
CREATE TRIGGER pg_trickle_cdc_truncate_17590 AFTER TRUNCATE ON shop.clicks FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_truncate_17590();
ALTER TABLE shop.clicks ENABLE ALWAYS TRIGGER pg_trickle_cdc_truncate_17590;
CREATE TRIGGER pg_trickle_cdc_truncate_17595 AFTER TRUNCATE ON shop.prices FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_truncate_17595();
ALTER TABLE shop.prices ENABLE ALWAYS TRIGGER pg_trickle_cdc_truncate_17595;
CREATE TRIGGER pg_trickle_cdc_truncate_17621 AFTER TRUNCATE ON shop.totals FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_truncate_17621();
ALTER TABLE shop.totals ENABLE ALWAYS TRIGGER pg_trickle_cdc_truncate_17621;
CREATE TRIGGER pg_trickle_cdc_upd_17560 AFTER UPDATE ON shop.customers REFERENCING OLD TABLE AS __pgt_old NEW TABLE AS __pgt_new FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_upd_17560();
ALTER TABLE shop.customers ENABLE ALWAYS TRIGGER pg_trickle_cdc_upd_17560;
CREATE TRIGGER pg_trickle_cdc_upd_17568 AFTER UPDATE ON shop.orders REFERENCING OLD TABLE AS __pgt_old NEW TABLE AS __pgt_new FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_upd_17568();
ALTER TABLE shop.orders ENABLE ALWAYS TRIGGER pg_trickle_cdc_upd_17568;
CREATE TRIGGER pg_trickle_cdc_upd_17568 AFTER UPDATE ON shop.orders_1 REFERENCING OLD TABLE AS __pgt_old NEW TABLE AS __pgt_new FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_upd_17568();
ALTER TABLE shop.orders_1 ENABLE ALWAYS TRIGGER pg_trickle_cdc_upd_17568;
CREATE TRIGGER pg_trickle_cdc_upd_17568 AFTER UPDATE ON shop.orders_2 REFERENCING OLD TABLE AS __pgt_old NEW TABLE AS __pgt_new FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_upd_17568();
ALTER TABLE shop.orders_2 ENABLE ALWAYS TRIGGER pg_trickle_cdc_upd_17568;
CREATE TRIGGER pg_trickle_cdc_upd_17590 AFTER UPDATE ON shop.clicks REFERENCING OLD TABLE AS __pgt_old NEW TABLE AS __pgt_new FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_upd_17590();
ALTER TABLE shop.clicks ENABLE ALWAYS TRIGGER pg_trickle_cdc_upd_17590;
CREATE TRIGGER pg_trickle_cdc_upd_17595 AFTER UPDATE ON shop.prices REFERENCING OLD TABLE AS __pgt_old NEW TABLE AS __pgt_new FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_upd_17595();
ALTER TABLE shop.prices ENABLE ALWAYS TRIGGER pg_trickle_cdc_upd_17595;
CREATE TRIGGER pg_trickle_cdc_upd_17621 AFTER UPDATE ON shop.totals REFERENCING OLD TABLE AS __pgt_old NEW TABLE AS __pgt_new FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_upd_17621();
ALTER TABLE shop.totals ENABLE ALWAYS TRIGGER pg_trickle_cdc_upd_17621;
CREATE TRIGGER pg_trickle_guard BEFORE INSERT OR DELETE OR UPDATE OR TRUNCATE ON shop.buyers FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle._guard();
CREATE TRIGGER pg_trickle_guard BEFORE INSERT OR DELETE OR UPDATE OR TRUNCATE ON shop.exact FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle._guard();
CREATE TRIGGER pg_trickle_guard BEFORE INSERT OR DELETE OR UPDATE OR TRUNCATE ON shop.large FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle._guard();
CREATE TRIGGER pg_trickle_guard BEFORE INSERT OR DELETE OR UPDATE OR TRUNCATE ON shop.later FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle._guard();
CREATE TRIGGER pg_trickle_guard BEFORE INSERT OR DELETE OR UPDATE OR TRUNCATE ON shop.pages FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle._guard();
CREATE TRIGGER pg_trickle_guard BEFORE INSERT OR DELETE OR UPDATE OR TRUNCATE ON shop.totals FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle._guard();
ALTER TABLE ONLY pgque.dead_letter
ADD CONSTRAINT dead_letter_dl_consumer_id_fkey FOREIGN KEY (dl_consumer_id) REFERENCES pgque.consumer(co_id) ON DELETE CASCADE;
ALTER TABLE ONLY pgque.dead_letter
ADD CONSTRAINT dead_letter_dl_queue_id_fkey FOREIGN KEY (dl_queue_id) REFERENCES pgque.queue(queue_id) ON DELETE CASCADE;
ALTER TABLE ONLY pgque.delayed_events
ADD CONSTRAINT delayed_events_de_queue_id_fkey FOREIGN KEY (de_queue_id) REFERENCES pgque.queue(queue_id) ON DELETE CASCADE;
ALTER TABLE ONLY pgque.retry_queue
ADD CONSTRAINT retry_queue_ev_queue_fkey FOREIGN KEY (ev_queue) REFERENCES pgque.queue(queue_id) ON DELETE CASCADE;
ALTER TABLE ONLY pgque.subscription
ADD CONSTRAINT subscription_sub_consumer_fkey FOREIGN KEY (sub_consumer) REFERENCES pgque.consumer(co_id);
ALTER TABLE ONLY pgque.subscription
ADD CONSTRAINT subscription_sub_main_fkey FOREIGN KEY (sub_main) REFERENCES pgque.subscription(sub_id);
ALTER TABLE ONLY pgque.subscription
ADD CONSTRAINT subscription_sub_queue_fkey FOREIGN KEY (sub_queue) REFERENCES pgque.queue(queue_id);
ALTER TABLE ONLY pgque.tick
ADD CONSTRAINT tick_tick_queue_fkey FOREIGN KEY (tick_queue) REFERENCES pgque.queue(queue_id) ON DELETE CASCADE;
ALTER TABLE ONLY pgtrickle.pgt_dependencies
ADD CONSTRAINT pgt_dependencies_pgt_id_fkey FOREIGN KEY (pgt_id) REFERENCES pgtrickle.pgt_stream_tables(pgt_id) ON DELETE CASCADE;
ALTER TABLE ONLY pgtrickle.pgt_history
ADD CONSTRAINT pgt_history_server_fkey FOREIGN KEY (server) REFERENCES pgtrickle.pgt_subscription_servers(server) ON DELETE SET NULL;
ALTER TABLE ONLY pgtrickle.pgt_history
ADD CONSTRAINT pgt_history_subscription_id_fkey FOREIGN KEY (subscription_id) REFERENCES pgtrickle.pgt_subscriptions(subscription_id) ON DELETE SET NULL;
ALTER TABLE ONLY pgtrickle.pgt_memory
ADD CONSTRAINT pgt_memory_pgt_id_fkey FOREIGN KEY (pgt_id) REFERENCES pgtrickle.pgt_stream_tables(pgt_id) ON DELETE CASCADE;
ALTER TABLE ONLY pgtrickle.pgt_polls
ADD CONSTRAINT pgt_polls_pgt_id_fkey FOREIGN KEY (pgt_id) REFERENCES pgtrickle.pgt_stream_tables(pgt_id) ON DELETE CASCADE;
ALTER TABLE ONLY pgtrickle.pgt_refresh_history
ADD CONSTRAINT pgt_refresh_history_pgt_id_fkey FOREIGN KEY (pgt_id) REFERENCES pgtrickle.pgt_stream_tables(pgt_id) ON DELETE CASCADE;
ALTER TABLE ONLY pgtrickle.pgt_subscription_sources
ADD CONSTRAINT pgt_subscription_sources_subscription_id_fkey FOREIGN KEY (subscription_id) REFERENCES pgtrickle.pgt_subscriptions(subscription_id) ON DELETE CASCADE;
ALTER TABLE ONLY pgtrickle.pgt_subscriptions
ADD CONSTRAINT pgt_subscriptions_server_fkey FOREIGN KEY (server) REFERENCES pgtrickle.pgt_subscription_servers(server) ON DELETE CASCADE;
ALTER TABLE accum._registers ENABLE ROW LEVEL SECURITY;
CREATE POLICY everybody_sees ON accum._registers FOR SELECT USING (true);
CREATE POLICY owners_delete ON accum._registers FOR DELETE USING (accum._owns(name));
CREATE POLICY owners_insert ON accum._registers FOR INSERT WITH CHECK (accum._owns(name));
CREATE POLICY owners_update ON accum._registers FOR UPDATE USING (accum._owns(name));
CREATE POLICY errors_of_ones_own ON pgtrickle.pgt_refresh_history FOR SELECT USING (((error_message IS NULL) OR pg_has_role('pg_monitor'::name, 'USAGE'::text) OR (EXISTS ( SELECT
FROM pgtrickle.pgt_stream_tables s
WHERE ((s.pgt_id = pgt_refresh_history.pgt_id) AND pg_has_role(s.pgt_owner, 'USAGE'::text))))));
CREATE POLICY own_requests ON pgtrickle.pgt_requests USING ((requested_by = (to_regrole(quote_ident((CURRENT_USER)::text)))::oid)) WITH CHECK ((requested_by = (to_regrole(quote_ident((CURRENT_USER)::text)))::oid));
ALTER TABLE pgtrickle.pgt_refresh_history ENABLE ROW LEVEL SECURITY;
ALTER TABLE pgtrickle.pgt_requests ENABLE ROW LEVEL SECURITY;
GRANT INSERT(kind) ON TABLE pgtrickle.pgt_requests TO PUBLIC;
GRANT INSERT(arguments) ON TABLE pgtrickle.pgt_requests TO PUBLIC;
GRANT INSERT(search_path) ON TABLE pgtrickle.pgt_requests TO PUBLIC;
GRANT SELECT(__pgt_change_id) ON TABLE pgtrickle_changes.changes_17601 TO upgrade_alice;
GRANT SELECT(__pgt_xid) ON TABLE pgtrickle_changes.changes_17601 TO upgrade_alice;
GRANT SELECT(__pgt_w) ON TABLE pgtrickle_changes.changes_17601 TO upgrade_alice;
GRANT SELECT(note) ON TABLE pgtrickle_changes.changes_17601 TO upgrade_alice;
REVOKE ALL ON TYPE pgque._batch_state, pgque._due_tick, pgque.message FROM PUBLIC;
REVOKE ALL ON FUNCTION accum._trg_stock_delete, accum._trg_stock_hash, accum._trg_stock_insert, accum._trg_stock_truncate, accum._trg_stock_update, pgque._adopt, pgque._base_type, pgque._batch, pgque._batch_event, pgque._batch_query, pgque._buckets, pgque._check_trigger, pgque._clock, pgque._coop_lock, pgque._coop_member, pgque._decision, pgque._due_ticks, pgque._find_tick, pgque._first_seen, pgque._grant, pgque._grant_queue, pgque._has_cron, pgque._insert_events, pgque._insert_tick, pgque._install_roles, pgque._is_at_home, pgque._late_events, pgque._listed_columns, pgque._lock_queues, pgque._lock_subscription, pgque._lock_ticks, pgque._locked_batch, pgque._make_inserts, pgque._make_ticks, pgque._missing_roles, pgque._move_due, pgque._nack_batch, pgque._portions, pgque._primary_key, pgque._queue_id, pgque._queue_retry, pgque._queues_changed, pgque._register_consumer, pgque._row_columns, pgque._row_expression, pgque._row_json, pgque._row_sql, pgque._row_texts, pgque._row_urlencoded, pgque._server, pgque._snapshot, pgque._subscription, pgque._trigger_event, pgque._urlencode, pgque.ack, pgque.batch_retry, pgque.consumer_stats, pgque.create_queue(queue text), pgque.create_queue(queue text, options jsonb), pgque.dlq_inspect, pgque.dlq_purge, pgque.dlq_replay, pgque.dlq_replay_all, pgque.drop_queue(queue text), pgque.drop_queue(queue text, force bool), pgque.error_rate, pgque.event_dead, pgque.event_retry(batch_id bigint, event_id bigint, retry_seconds int), pgque.event_retry(batch_id bigint, event_id bigint, retry_time timestamptz), pgque.find_tick_helper, pgque.finish_batch, pgque.force_next_tick, pgque.force_tick, pgque.get_batch_cursor(batch_id bigint, cursor_name text, quick_limit int, OUT ev_id bigint, OUT ev_time timestamptz, OUT ev_txid bigint, OUT ev_retry int, OUT ev_type text, OUT ev_data text, OUT ev_extra1 text, OUT ev_extra2 text, OUT ev_extra3 text, OUT ev_extra4 text), pgque.get_batch_cursor(batch_id bigint, cursor_name text, quick_limit int, extra_where text, OUT ev_id bigint, OUT ev_time timestamptz, OUT ev_txid bigint, OUT ev_retry int, OUT ev_type text, OUT ev_data text, OUT ev_extra1 text, OUT ev_extra2 text, OUT ev_extra3 text, OUT ev_extra4 text), pgque.get_batch_events, pgque.get_batch_info, pgque.get_consumer_info(OUT queue_name text, OUT consumer_name text, OUT lag interval, OUT last_seen interval, OUT last_tick bigint, OUT current_batch bigint, OUT next_tick bigint, OUT pending_events bigint), pgque.get_consumer_info(queue text, OUT queue_name text, OUT consumer_name text, OUT lag interval, OUT last_seen interval, OUT last_tick bigint, OUT current_batch bigint, OUT next_tick bigint, OUT pending_events bigint), pgque.get_consumer_info(queue text, consumer text, OUT queue_name text, OUT consumer_name text, OUT lag interval, OUT last_seen interval, OUT last_tick bigint, OUT current_batch bigint, OUT next_tick bigint, OUT pending_events bigint), pgque.get_queue_info(OUT queue_name text, OUT queue_ntables int, OUT queue_cur_table int, OUT queue_rotation_period interval, OUT queue_switch_time timestamptz, OUT queue_external_ticker bool, OUT queue_ticker_paused bool, OUT queue_ticker_max_count int, OUT queue_ticker_max_lag interval, OUT queue_ticker_idle_period interval, OUT ticker_lag interval, OUT ev_per_sec double precision, OUT ev_new bigint, OUT last_tick_id bigint), pgque.get_queue_info(queue text, OUT queue_name text, OUT queue_ntables int, OUT queue_cur_table int, OUT queue_rotation_period interval, OUT queue_switch_time timestamptz, OUT queue_external_ticker bool, OUT queue_ticker_paused bool, OUT queue_ticker_max_count int, OUT queue_ticker_max_lag interval, OUT queue_ticker_idle_period interval, OUT ticker_lag interval, OUT ev_per_sec double precision, OUT ev_new bigint, OUT last_tick_id bigint), pgque.in_flight, pgque.insert_event(queue_name text, ev_type text, ev_data text), pgque.insert_event(queue_name text, ev_type text, ev_data text, ev_extra1 text, ev_extra2 text, ev_extra3 text, ev_extra4 text), pgque.insert_event_bulk, pgque.jsontriga, pgque.logutriga, pgque.maint, pgque.maint_deliver_delayed, pgque.maint_retry_events, pgque.maint_rotate_tables_step1, pgque.maint_rotate_tables_step2, pgque.nack, pgque.next_batch(queue_name text, consumer_name text), pgque.next_batch(queue text, consumer text, subconsumer text, dead_interval interval), pgque.next_batch_custom(queue_name text, consumer_name text, min_lag interval, min_count int, min_interval interval, OUT batch_id bigint, OUT cur_tick_id bigint, OUT prev_tick_id bigint, OUT cur_tick_time timestamptz, OUT prev_tick_time timestamptz, OUT cur_tick_event_seq bigint, OUT prev_tick_event_seq bigint), pgque.next_batch_custom(queue text, consumer text, subconsumer text, min_lag interval, min_count int, min_interval interval, dead_interval interval, OUT batch_id bigint, OUT prev_tick_id bigint, OUT next_tick_id bigint), pgque.next_batch_info, pgque.otel_metrics, pgque.pause_queue, pgque.queue_health, pgque.queue_stats, pgque.receive, pgque.receive_coop, pgque.register_consumer, pgque.register_consumer_at, pgque.register_subconsumer, pgque.resume_queue, pgque.send(queue_name text, payload jsonb), pgque.send(queue_name text, payload text), pgque.send(queue_name text, type_name text, payload jsonb), pgque.send(queue_name text, type_name text, payload text), pgque.send_at, pgque.send_batch(queue_name text, payloads jsonb[]), pgque.send_batch(queue_name text, payloads text[]), pgque.send_batch(queue_name text, type_name text, payloads jsonb[]), pgque.send_batch(queue_name text, type_name text, payloads text[]), pgque.set_queue_config, pgque.set_tick_period_ms, pgque.sqltriga, pgque.start, pgque.status, pgque.stop, pgque.stuck_consumers, pgque.subscribe, pgque.subscribe_subconsumer, pgque.throughput, pgque.ticker(), pgque.ticker(queue text), pgque.ticker(queue text, tick_id bigint, "timestamp" timestamptz, event_seq bigint), pgque.touch_subconsumer, pgque.uninstall, pgque.unregister_consumer, pgque.unregister_subconsumer, pgque.unsubscribe, pgque.unsubscribe_subconsumer, pgque.version, pgtrickle._adopt_restored, pgtrickle._advance_history, pgtrickle._alert, pgtrickle._as_of, pgtrickle._begin_tick, pgtrickle._capture_emptying, pgtrickle._capture_source, pgtrickle._check_left_behind, pgtrickle._check_owner, pgtrickle._claim_stray_request, pgtrickle._cleanup_buffers, pgtrickle._drop_capture, pgtrickle._drop_capture_triggers, pgtrickle._drop_copies, pgtrickle._fail_history, pgtrickle._fail_request, pgtrickle._fail_tick, pgtrickle._follow_for_history, pgtrickle._forget_history_sources, pgtrickle._grant_buffer, pgtrickle._held_from, pgtrickle._history_sources, pgtrickle._hold_for_mirror, pgtrickle._hold_sources, pgtrickle._live_sources, pgtrickle._mirror_has, pgtrickle._mirrored_source, pgtrickle._note_dependency, pgtrickle._note_tick, pgtrickle._on_ddl_end, pgtrickle._on_emptied, pgtrickle._on_rewrite, pgtrickle._on_sql_drop, pgtrickle._on_trigger, pgtrickle._own_stream_table, pgtrickle._owner_of, pgtrickle._pin_columns, pgtrickle._prune_history, pgtrickle._refresh_context, pgtrickle._refuse_interference, pgtrickle._release_mirrors, pgtrickle._remove_lost_subscriptions, pgtrickle._remove_staging_leftovers, pgtrickle._request_left, pgtrickle._revoke_buffers, pgtrickle._revoke_copies, pgtrickle._role_function, pgtrickle._row_key, pgtrickle._row_runner, pgtrickle._runner, pgtrickle._subscribe, pgtrickle._subscriber_obstacle, pgtrickle._subscription_news, pgtrickle._subscription_obstacle, pgtrickle._tick, pgtrickle._unfollowed, pgtrickle._unsubscribe, pgtrickle._write_buffer, pgtrickle._write_capture_functions, pgtrickle._write_capture_triggers, pgtrickle_changes.pg_trickle_cdc_del_17560, pgtrickle_changes.pg_trickle_cdc_del_17568, pgtrickle_changes.pg_trickle_cdc_del_17590, pgtrickle_changes.pg_trickle_cdc_del_17595, pgtrickle_changes.pg_trickle_cdc_del_17601, pgtrickle_changes.pg_trickle_cdc_del_17621, pgtrickle_changes.pg_trickle_cdc_ins_17560, pgtrickle_changes.pg_trickle_cdc_ins_17568, pgtrickle_changes.pg_trickle_cdc_ins_17590, pgtrickle_changes.pg_trickle_cdc_ins_17595, pgtrickle_changes.pg_trickle_cdc_ins_17601, pgtrickle_changes.pg_trickle_cdc_ins_17621, pgtrickle_changes.pg_trickle_cdc_truncate_17560, pgtrickle_changes.pg_trickle_cdc_truncate_17568, pgtrickle_changes.pg_trickle_cdc_truncate_17590, pgtrickle_changes.pg_trickle_cdc_truncate_17595, pgtrickle_changes.pg_trickle_cdc_truncate_17601, pgtrickle_changes.pg_trickle_cdc_truncate_17621, pgtrickle_changes.pg_trickle_cdc_upd_17560, pgtrickle_changes.pg_trickle_cdc_upd_17568, pgtrickle_changes.pg_trickle_cdc_upd_17590, pgtrickle_changes.pg_trickle_cdc_upd_17595, pgtrickle_changes.pg_trickle_cdc_upd_17601, pgtrickle_changes.pg_trickle_cdc_upd_17621, pgtrickle_roles.as_10, pgtrickle_roles.as_17557, pgtrickle_roles.rows_as_10 FROM PUBLIC;
REVOKE ALL ON PROCEDURE pgque.ticker_loop FROM PUBLIC;
GRANT USAGE ON SCHEMA accum, pgtrickle, pgtrickle_changes, pgtrickle_staging TO PUBLIC;
GRANT USAGE ON SCHEMA pgque TO pgque_reader;
GRANT USAGE ON SCHEMA pgque TO pgque_writer;
GRANT USAGE ON SCHEMA pgque TO pgque_admin;
GRANT ALL ON TYPE pgque._batch_state, pgque._due_tick, pgque.message TO pgque_admin;
GRANT ALL ON TYPE pgque.message TO pgque_reader;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE accum._registers TO PUBLIC;
GRANT ALL ON FUNCTION pgque._adopt, pgque._base_type, pgque._batch, pgque._batch_event, pgque._batch_query, pgque._buckets, pgque._check_trigger, pgque._clock, pgque._coop_lock, pgque._coop_member, pgque._decision, pgque._due_ticks, pgque._find_tick, pgque._first_seen, pgque._grant, pgque._grant_queue, pgque._has_cron, pgque._insert_events, pgque._insert_tick, pgque._install_roles, pgque._is_at_home, pgque._late_events, pgque._listed_columns, pgque._lock_queues, pgque._lock_subscription, pgque._lock_ticks, pgque._locked_batch, pgque._make_inserts, pgque._make_ticks, pgque._missing_roles, pgque._move_due, pgque._nack_batch, pgque._portions, pgque._primary_key, pgque._queue_id, pgque._queue_retry, pgque._queues_changed, pgque._register_consumer, pgque._row_columns, pgque._row_expression, pgque._row_json, pgque._row_sql, pgque._row_texts, pgque._row_urlencoded, pgque._server, pgque._snapshot, pgque._subscription, pgque._trigger_event, pgque._urlencode, pgque.ack, pgque.batch_retry, pgque.consumer_stats, pgque.create_queue(queue text), pgque.create_queue(queue text, options jsonb), pgque.dlq_inspect, pgque.dlq_purge, pgque.dlq_replay, pgque.dlq_replay_all, pgque.drop_queue(queue text), pgque.drop_queue(queue text, force bool), pgque.error_rate, pgque.event_dead, pgque.event_retry(batch_id bigint, event_id bigint, retry_seconds int), pgque.event_retry(batch_id bigint, event_id bigint, retry_time timestamptz), pgque.find_tick_helper, pgque.finish_batch, pgque.force_next_tick, pgque.force_tick, pgque.get_batch_cursor(batch_id bigint, cursor_name text, quick_limit int, OUT ev_id bigint, OUT ev_time timestamptz, OUT ev_txid bigint, OUT ev_retry int, OUT ev_type text, OUT ev_data text, OUT ev_extra1 text, OUT ev_extra2 text, OUT ev_extra3 text, OUT ev_extra4 text), pgque.get_batch_cursor(batch_id bigint, cursor_name text, quick_limit int, extra_where text, OUT ev_id bigint, OUT ev_time timestamptz, OUT ev_txid bigint, OUT ev_retry int, OUT ev_type text, OUT ev_data text, OUT ev_extra1 text, OUT ev_extra2 text, OUT ev_extra3 text, OUT ev_extra4 text), pgque.get_batch_events, pgque.get_batch_info, pgque.get_consumer_info(OUT queue_name text, OUT consumer_name text, OUT lag interval, OUT last_seen interval, OUT last_tick bigint, OUT current_batch bigint, OUT next_tick bigint, OUT pending_events bigint), pgque.get_consumer_info(queue text, OUT queue_name text, OUT consumer_name text, OUT lag interval, OUT last_seen interval, OUT last_tick bigint, OUT current_batch bigint, OUT next_tick bigint, OUT pending_events bigint), pgque.get_consumer_info(queue text, consumer text, OUT queue_name text, OUT consumer_name text, OUT lag interval, OUT last_seen interval, OUT last_tick bigint, OUT current_batch bigint, OUT next_tick bigint, OUT pending_events bigint), pgque.get_queue_info(OUT queue_name text, OUT queue_ntables int, OUT queue_cur_table int, OUT queue_rotation_period interval, OUT queue_switch_time timestamptz, OUT queue_external_ticker bool, OUT queue_ticker_paused bool, OUT queue_ticker_max_count int, OUT queue_ticker_max_lag interval, OUT queue_ticker_idle_period interval, OUT ticker_lag interval, OUT ev_per_sec double precision, OUT ev_new bigint, OUT last_tick_id bigint), pgque.get_queue_info(queue text, OUT queue_name text, OUT queue_ntables int, OUT queue_cur_table int, OUT queue_rotation_period interval, OUT queue_switch_time timestamptz, OUT queue_external_ticker bool, OUT queue_ticker_paused bool, OUT queue_ticker_max_count int, OUT queue_ticker_max_lag interval, OUT queue_ticker_idle_period interval, OUT ticker_lag interval, OUT ev_per_sec double precision, OUT ev_new bigint, OUT last_tick_id bigint), pgque.in_flight, pgque.insert_event(queue_name text, ev_type text, ev_data text), pgque.insert_event(queue_name text, ev_type text, ev_data text, ev_extra1 text, ev_extra2 text, ev_extra3 text, ev_extra4 text), pgque.jsontriga, pgque.logutriga, pgque.maint, pgque.maint_deliver_delayed, pgque.maint_retry_events, pgque.maint_rotate_tables_step1, pgque.maint_rotate_tables_step2, pgque.nack, pgque.next_batch(queue_name text, consumer_name text), pgque.next_batch(queue text, consumer text, subconsumer text, dead_interval interval), pgque.next_batch_custom(queue_name text, consumer_name text, min_lag interval, min_count int, min_interval interval, OUT batch_id bigint, OUT cur_tick_id bigint, OUT prev_tick_id bigint, OUT cur_tick_time timestamptz, OUT prev_tick_time timestamptz, OUT cur_tick_event_seq bigint, OUT prev_tick_event_seq bigint), pgque.next_batch_custom(queue text, consumer text, subconsumer text, min_lag interval, min_count int, min_interval interval, dead_interval interval, OUT batch_id bigint, OUT prev_tick_id bigint, OUT next_tick_id bigint), pgque.next_batch_info, pgque.otel_metrics, pgque.pause_queue, pgque.queue_health, pgque.queue_stats, pgque.receive, pgque.receive_coop, pgque.register_consumer, pgque.register_consumer_at, pgque.register_subconsumer, pgque.resume_queue, pgque.send(queue_name text, payload jsonb), pgque.send(queue_name text, payload text), pgque.send(queue_name text, type_name text, payload jsonb), pgque.send(queue_name text, type_name text, payload text), pgque.send_at, pgque.send_batch(queue_name text, payloads jsonb[]), pgque.send_batch(queue_name text, payloads text[]), pgque.send_batch(queue_name text, type_name text, payloads jsonb[]), pgque.send_batch(queue_name text, type_name text, payloads text[]), pgque.set_queue_config, pgque.set_tick_period_ms, pgque.sqltriga, pgque.start, pgque.status, pgque.stop, pgque.stuck_consumers, pgque.subscribe, pgque.subscribe_subconsumer, pgque.throughput, pgque.ticker(), pgque.ticker(queue text), pgque.ticker(queue text, tick_id bigint, "timestamp" timestamptz, event_seq bigint), pgque.touch_subconsumer, pgque.unregister_consumer, pgque.unregister_subconsumer, pgque.unsubscribe, pgque.unsubscribe_subconsumer, pgque.version TO pgque_admin;
GRANT ALL ON FUNCTION pgque._base_type, pgque._check_trigger, pgque._listed_columns, pgque._primary_key, pgque._row_columns, pgque._row_expression, pgque._row_json, pgque._row_sql, pgque._row_texts, pgque._row_urlencoded, pgque._trigger_event, pgque._urlencode, pgque.dlq_replay, pgque.dlq_replay_all, pgque.insert_event(queue_name text, ev_type text, ev_data text), pgque.insert_event(queue_name text, ev_type text, ev_data text, ev_extra1 text, ev_extra2 text, ev_extra3 text, ev_extra4 text), pgque.send(queue_name text, payload jsonb), pgque.send(queue_name text, payload text), pgque.send(queue_name text, type_name text, payload jsonb), pgque.send(queue_name text, type_name text, payload text), pgque.send_batch(queue_name text, payloads jsonb[]), pgque.send_batch(queue_name text, payloads text[]), pgque.send_batch(queue_name text, type_name text, payloads jsonb[]), pgque.send_batch(queue_name text, type_name text, payloads text[]) TO pgque_writer;
GRANT SELECT ON TABLE pgque.event_template, pgque.subscription, pgque.queue, pgque.dead_letter, pgque.config, pgque.consumer, pgque.delayed_events, pgque.event_1, pgque.event_1_0, pgque.event_1_1, pgque.event_1_2, pgque.retry_queue, pgque.schema_version, pgque.tick TO pgque_reader;
GRANT SELECT,INSERT,REFERENCES,DELETE,TRUNCATE,MAINTAIN,UPDATE ON TABLE pgque.event_template, pgque.subscription, pgque.queue, pgque.dead_letter, pgque.config, pgque.consumer, pgque.delayed_events, pgque.event_1, pgque.event_1_0, pgque.event_1_1, pgque.event_1_2, pgque.retry_queue, pgque.schema_version, pgque.tick TO pgque_admin;
GRANT ALL ON FUNCTION pgque.ack, pgque.dlq_inspect, pgque.event_retry(batch_id bigint, event_id bigint, retry_seconds int), pgque.event_retry(batch_id bigint, event_id bigint, retry_time timestamptz), pgque.finish_batch, pgque.get_batch_events, pgque.get_batch_info, pgque.get_consumer_info(OUT queue_name text, OUT consumer_name text, OUT lag interval, OUT last_seen interval, OUT last_tick bigint, OUT current_batch bigint, OUT next_tick bigint, OUT pending_events bigint), pgque.get_consumer_info(queue text, OUT queue_name text, OUT consumer_name text, OUT lag interval, OUT last_seen interval, OUT last_tick bigint, OUT current_batch bigint, OUT next_tick bigint, OUT pending_events bigint), pgque.get_consumer_info(queue text, consumer text, OUT queue_name text, OUT consumer_name text, OUT lag interval, OUT last_seen interval, OUT last_tick bigint, OUT current_batch bigint, OUT next_tick bigint, OUT pending_events bigint), pgque.get_queue_info(OUT queue_name text, OUT queue_ntables int, OUT queue_cur_table int, OUT queue_rotation_period interval, OUT queue_switch_time timestamptz, OUT queue_external_ticker bool, OUT queue_ticker_paused bool, OUT queue_ticker_max_count int, OUT queue_ticker_max_lag interval, OUT queue_ticker_idle_period interval, OUT ticker_lag interval, OUT ev_per_sec double precision, OUT ev_new bigint, OUT last_tick_id bigint), pgque.get_queue_info(queue text, OUT queue_name text, OUT queue_ntables int, OUT queue_cur_table int, OUT queue_rotation_period interval, OUT queue_switch_time timestamptz, OUT queue_external_ticker bool, OUT queue_ticker_paused bool, OUT queue_ticker_max_count int, OUT queue_ticker_max_lag interval, OUT queue_ticker_idle_period interval, OUT ticker_lag interval, OUT ev_per_sec double precision, OUT ev_new bigint, OUT last_tick_id bigint), pgque.nack, pgque.next_batch(queue_name text, consumer_name text), pgque.next_batch(queue text, consumer text, subconsumer text, dead_interval interval), pgque.next_batch_custom(queue_name text, consumer_name text, min_lag interval, min_count int, min_interval interval, OUT batch_id bigint, OUT cur_tick_id bigint, OUT prev_tick_id bigint, OUT cur_tick_time timestamptz, OUT prev_tick_time timestamptz, OUT cur_tick_event_seq bigint, OUT prev_tick_event_seq bigint), pgque.next_batch_custom(queue text, consumer text, subconsumer text, min_lag interval, min_count int, min_interval interval, dead_interval interval, OUT batch_id bigint, OUT prev_tick_id bigint, OUT next_tick_id bigint), pgque.next_batch_info, pgque.receive, pgque.receive_coop, pgque.register_consumer, pgque.register_consumer_at, pgque.register_subconsumer, pgque.subscribe, pgque.subscribe_subconsumer, pgque.touch_subconsumer, pgque.unregister_consumer, pgque.unregister_subconsumer, pgque.unsubscribe, pgque.unsubscribe_subconsumer, pgque.version TO pgque_reader;
GRANT ALL ON PROCEDURE pgque.ticker_loop TO pgque_admin;
GRANT SELECT ON TABLE pgtrickle.pgt_stream_tables, accum._config, accum._maintenance_runs, accum._schema_version, pgtrickle.pgt_dependencies, pgtrickle.pg_stat_stream_tables, pgtrickle.pgt_captures, pgtrickle.pgt_cdc_status, pgtrickle.pgt_change_tracking, pgtrickle.pgt_history, pgtrickle.pgt_load_generators, pgtrickle.pgt_mirrors, pgtrickle.pgt_polls, pgtrickle.pgt_refresh_groups, pgtrickle.pgt_refresh_history, pgtrickle.pgt_request_errors, pgtrickle.pgt_schema_version, pgtrickle.pgt_source_gates, pgtrickle.pgt_subscription_servers, pgtrickle.pgt_subscription_sources, pgtrickle.pgt_subscriptions, pgtrickle.pgt_timeline, pgtrickle.pgt_watermark_groups, pgtrickle.pgt_watermarks, pgtrickle.quick_health, pgtrickle.stream_tables_info TO PUBLIC;
GRANT ALL ON SEQUENCE pgque.batch_id_seq, pgque.consumer_co_id_seq, pgque.dead_letter_dl_id_seq, pgque.delayed_events_de_id_seq, pgque.event_1_id_seq, pgque.event_1_tick_seq, pgque.queue_queue_id_seq, pgque.subscription_sub_id_seq TO pgque_admin;
GRANT SELECT,DELETE ON TABLE pgtrickle.pgt_requests TO PUBLIC;
GRANT SELECT ON SEQUENCE pgtrickle.pgt_timeline_seq, pgtrickle_changes.change_id_seq TO PUBLIC;
GRANT SELECT ON TABLE shop.totals TO upgrade_alice;
CREATE EVENT TRIGGER pg_trickle_ddl_tracker ON ddl_command_end
WHEN TAG IN ('ALTER TABLE', 'ALTER VIEW', 'CREATE VIEW', 'CREATE POLICY', 'ALTER POLICY', 'REVOKE')
EXECUTE FUNCTION pgtrickle._on_ddl_end();
CREATE EVENT TRIGGER pg_trickle_drop_tracker ON sql_drop
WHEN TAG IN ('DROP TABLE', 'DROP VIEW', 'DROP MATERIALIZED VIEW', 'DROP FOREIGN TABLE', 'DROP SCHEMA', 'DROP OWNED', 'DROP POLICY', 'DROP TYPE', 'DROP EXTENSION')
EXECUTE FUNCTION pgtrickle._on_sql_drop();
CREATE EVENT TRIGGER pg_trickle_rewrite_tracker ON table_rewrite
WHEN TAG IN ('ALTER TABLE', 'ALTER TYPE', 'ALTER MATERIALIZED VIEW')
EXECUTE FUNCTION pgtrickle._on_rewrite();
CREATE EVENT TRIGGER pg_trickle_trigger_tracker ON ddl_command_end
WHEN TAG IN ('CREATE TRIGGER', 'CREATE RULE')
EXECUTE FUNCTION pgtrickle._on_trigger();
