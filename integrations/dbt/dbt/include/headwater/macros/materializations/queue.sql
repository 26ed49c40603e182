{#-
  A queue, its settings and its consumers, and a view that shows the events that it holds. What a queue holds cannot be computed again,
  so nothing is ever dropped: not by --full-refresh, and no consumer that the model does not name any more.
-#}
{% materialization queue, adapter='headwater' %}
  {%- set target = this.incorporate(type='view') -%}
  {%- set existing = load_cached_relation(this) -%}
  {%- set name = config.get('queue_name') or this.identifier -%}
  {%- do headwater_refuse_query(sql, 'queue') -%}

  {{ run_hooks(pre_hooks, inside_transaction=False) }}
  {{ drop_relation_if_exists(load_cached_relation(make_intermediate_relation(target))) }}
  {{ run_hooks(pre_hooks, inside_transaction=True) }}

  {%- do run_query(adapter.call('pgque.create_queue', {'queue': name})) -%}
  {%- set queue = run_query('select queue_data_pfx, to_jsonb(q) as settings from pgque.queue q where queue_name = ' ~ adapter.literal(name)).rows[0] -%}
  {%- set present = fromjson(queue['settings']) -%}
  {%- for setting, value in (config.get('settings') or {}).items() if present.get('queue_' ~ setting) | string | lower != value | string | lower -%}
    {%- do run_query('select pgque.set_queue_config(' ~ adapter.literal(name) ~ ', ' ~ adapter.literal(setting) ~ ', '
                     ~ adapter.literal(none if value is none else value | string) ~ ')') -%}
  {%- endfor -%}
  {%- for consumer in config.get('consumers') or [] -%}
    {%- do run_query(adapter.call('pgque.subscribe', {'queue': name, 'consumer': consumer})) -%}
  {%- endfor -%}
  {%- do headwater_build_view(existing, target,
      'select ev_id, ev_time, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4 from ' ~ queue['queue_data_pfx']) -%}
  {%- do apply_grants(target, config.get('grants'), should_revoke=existing is not none) -%}
  {%- do persist_docs(target, model) -%}

  {{ run_hooks(post_hooks, inside_transaction=True) }}
  {{ adapter.commit() }}
  {{ run_hooks(post_hooks, inside_transaction=False) }}

  {{ return({'relations': [target]}) }}
{% endmaterialization %}
