{#-
  A stream table. It is created by a statement of its own, so that writers of its sources wait for as short as possible; so are the
  changes of one that exists. With --full-refresh, and where the model was something else before, it is made beside what is there, and
  exchanged for that.
-#}
{% materialization stream_table, adapter='headwater' %}
  {%- set target = this.incorporate(type='table') -%}
  {%- set existing = load_cached_relation(this) -%}
  {%- set intermediate = make_intermediate_relation(target) -%}
  {%- do headwater_check_contract(sql) -%}

  {{ run_hooks(pre_hooks, inside_transaction=False) }}
  {{ drop_relation_if_exists(load_cached_relation(intermediate)) }}
  {{ run_hooks(pre_hooks, inside_transaction=True) }}

  {%- set present = headwater_stream_table(this) if existing is not none else none -%}
  {%- if present is not none and not should_full_refresh() -%}
    {%- set options = adapter.stream_table_options(config, present) -%}
    {%- set done = headwater_stream_table_call('create_or_replace_stream_table', target, sql, options) -%}
  {%- else -%}
    {%- set options = adapter.stream_table_options(config, none) -%}
    {%- if existing is none -%}
      {%- set done = headwater_stream_table_call('create_stream_table', target, sql, options) -%}
    {%- else -%}
      {%- set done = headwater_stream_table_call('create_stream_table', intermediate, sql, options) -%}
      {%- do headwater_exchange(existing, intermediate, target) -%}
    {%- endif -%}
  {%- endif -%}
  {%- do store_raw_result(name='main', message=done['message'], code=done['code'], rows_affected='-1') -%}

  {%- set status = adapter.status_to_set(config.get('status'), headwater_stream_table(target)['status']) -%}
  {%- if status -%}
    {%- do adapter.run_alone(adapter.call('pgtrickle.alter_stream_table', {'name': headwater_name(target), 'status': status})) -%}
  {%- endif -%}
  {%- do headwater_update_indexes(target) -%}
  {%- do apply_grants(target, config.get('grants'), should_revoke=existing is not none) -%}
  {%- do persist_docs(target, model) -%}

  {{ run_hooks(post_hooks, inside_transaction=True) }}
  {{ adapter.commit() }}
  {{ run_hooks(post_hooks, inside_transaction=False) }}

  {{ return({'relations': [target]}) }}
{% endmaterialization %}


{% macro headwater_stream_table_call(function, relation, sql, options) %}
  {%- set arguments = {'name': headwater_name(relation), 'query': sql} -%}
  {%- do arguments.update(options) -%}
  {%- set statement = adapter.call('pgtrickle.' ~ function, arguments) -%}
  {%- do write(statement) -%}
  {{ return(adapter.run_alone(statement)) }}
{% endmacro %}


{#- In the transaction that is open: what reads the old one by its name finds the new one. -#}
{% macro headwater_exchange(existing, intermediate, target) %}
  {%- set backup = make_backup_relation(target, existing.type) -%}
  {{ drop_relation_if_exists(load_cached_relation(backup)) }}
  {%- do adapter.rename_relation(existing, backup) -%}
  {%- do adapter.rename_relation(intermediate, target) -%}
  {%- do adapter.drop_relation(backup) -%}
{% endmacro %}


{#- A contract's columns are compared with the query's; constraints a stream table cannot have. -#}
{% macro headwater_check_contract(sql) %}
  {%- if config.get('contract').enforced -%}
    {%- set constrained = model.columns.values() | selectattr('constraints') | list -%}
    {%- if model.constraints or constrained -%}
      {%- do exceptions.raise_compiler_error(
          'a stream table has no constraints of its own, since a refresh would fail at them: they belong on the tables that it reads. Use tests.') -%}
    {%- endif -%}
    {%- do get_assert_columns_equivalent(sql) -%}
  {%- endif -%}
{% endmacro %}
