{#- A stream table is behind what it reads by `max_lag` (an interval, as `1 minute`) at most, and has been filled. -#}
{% test lag_below(model, max_lag) %}
  select lag from (select pgtrickle.get_lag({{ adapter.literal(headwater_name(model)) }}) as lag) as measured
  where lag is null or lag > extract(epoch from {{ adapter.literal(max_lag) }}::interval)
{% endtest %}


{#- A stream table is being refreshed, and its last refresh has not failed. -#}
{% test is_active(model) %}
  select s.status, s.consecutive_errors
  from (select to_regclass({{ adapter.literal(headwater_name(model)) }})) as r(relid)
  left join pgtrickle.pgt_stream_tables s on s.pgt_relid = r.relid
  where s.status is distinct from 'ACTIVE' or s.consecutive_errors > 0 or not s.is_populated
{% endtest %}


{#- The consumers of a queue, or one of them, have finished what was sent `max_lag` ago; a consumer that is not there fails. -#}
{% test consumer_lag_below(model, max_lag, queue_name=none, consumer=none) %}
  {%- set queue = adapter.literal(queue_name or model.identifier) %}
  select coalesce(c.consumer_name, w.consumer_name) as consumer_name, c.lag, c.pending_events
  from pgque.get_consumer_info({{ queue }}) c
  full join (select {{ adapter.literal(consumer) }}::text as consumer_name) as w
    on w.consumer_name = c.consumer_name
  where (w.consumer_name is not null and c.consumer_name is null)
     or ({{ adapter.literal(consumer) }}::text is null or c.consumer_name = {{ adapter.literal(consumer) }})
        and c.pending_events > 0 and c.lag > {{ adapter.literal(max_lag) }}::interval
{% endtest %}


{#- No event of a queue has become a dead letter. -#}
{% test no_dead_letters(model, queue_name=none) %}
  select * from pgque.dlq_inspect({{ adapter.literal(queue_name or model.identifier) }}, 100)
{% endtest %}


{#- What is stored of a register equals what its movements add up to. -#}
{% test register_is_consistent(model, register_name=none) %}
  select * from accum.register_verify({{ adapter.literal(register_name or model.identifier) }}) where status <> 'OK'
{% endtest %}
