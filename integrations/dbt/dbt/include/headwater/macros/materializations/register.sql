{#-
  A register, and a view of its movements. Dimensions and resources that the model has more are added; what cannot be altered is an
  error. Movements cannot be computed again, so nothing is ever dropped, also not by --full-refresh.
-#}
{% materialization register, adapter='headwater' %}
  {%- set target = this.incorporate(type='view') -%}
  {%- set existing = load_cached_relation(this) -%}
  {%- do headwater_refuse_query(sql, 'register') -%}
  {%- set declared = {'name': config.get('register_name') or this.identifier, 'dimensions': config.require('dimensions'),
                      'resources': config.require('resources')} -%}
  {%- for argument in ['kind', 'totals_period', 'partition_by', 'high_write', 'recorder_type'] -%}
    {%- do declared.update({argument: config.get(argument)}) -%}
  {%- endfor -%}

  {{ run_hooks(pre_hooks, inside_transaction=False) }}
  {{ drop_relation_if_exists(load_cached_relation(make_intermediate_relation(target))) }}
  {{ run_hooks(pre_hooks, inside_transaction=True) }}

  {%- set info = headwater_register_info(declared['name']) -%}
  {%- if info is none -%}
    {%- do run_query(adapter.call('accum.register_create', declared)) -%}
    {%- set info = headwater_register_info(declared['name']) -%}
  {%- else -%}
    {%- set changes = adapter.register_changes(declared, info) -%}
    {%- if changes -%}
      {%- do changes.update({'p_name': declared['name']}) -%}
      {%- do run_query(adapter.call('accum.register_alter', changes)) -%}
    {%- endif -%}
  {%- endif -%}
  {%- do headwater_build_view(existing, target, 'select * from ' ~ info['tables']['movements']) -%}
  {%- do apply_grants(target, config.get('grants'), should_revoke=existing is not none) -%}
  {%- do persist_docs(target, model) -%}

  {{ run_hooks(post_hooks, inside_transaction=True) }}
  {{ adapter.commit() }}
  {{ run_hooks(post_hooks, inside_transaction=False) }}

  {{ return({'relations': [target]}) }}
{% endmaterialization %}


{% macro headwater_register_info(name) %}
  {%- set found = run_query('select accum.register_info(name) as info from accum.register_list() where name = ' ~ adapter.literal(name)) -%}
  {{ return(fromjson(found.rows[0]['info']) if found.rows | length else none) }}
{% endmacro %}
