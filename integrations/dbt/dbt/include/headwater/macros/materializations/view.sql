{#-
  A view that is replaced in place, as long as its columns allow, and left alone where nothing has changed: what reads it, as a
  stream table does, need not be computed anew.
-#}
{% materialization view, adapter='headwater' %}
  {%- set target = this.incorporate(type='view') -%}
  {%- set existing = load_cached_relation(this) -%}

  {{ run_hooks(pre_hooks, inside_transaction=False) }}
  {{ drop_relation_if_exists(load_cached_relation(make_intermediate_relation(target))) }}
  {{ run_hooks(pre_hooks, inside_transaction=True) }}

  {%- do headwater_build_view(existing, target, sql) -%}
  {%- do apply_grants(target, config.get('grants'), should_revoke=existing is not none) -%}
  {%- do persist_docs(target, model) -%}

  {{ run_hooks(post_hooks, inside_transaction=True) }}
  {{ adapter.commit() }}
  {{ run_hooks(post_hooks, inside_transaction=False) }}

  {{ return({'relations': [target]}) }}
{% endmaterialization %}


{#- Make a relation a view of a query, in the transaction that is open. -#}
{% macro headwater_build_view(existing, target, sql) %}
  {%- set intermediate = make_intermediate_relation(target) if existing is not none else target -%}
  {%- call statement('main') -%}
    {{ get_create_view_as_sql(intermediate, sql) }}
  {%- endcall -%}
  {%- if existing is not none -%}
    {%- set kept = headwater_compared_views(existing, intermediate) if existing.is_view else none -%}
    {%- if kept == 'same' -%}
      {%- do adapter.drop_relation(intermediate) -%}
      {%- do store_raw_result(name='main', message='UNCHANGED', code='UNCHANGED', rows_affected='-1') -%}
    {%- elif kept == 'replaceable' -%}
      {%- do adapter.drop_relation(intermediate) -%}
      {%- call statement('main') -%}
        {{ config.get('sql_header') or '' }}
        create or replace view {{ target }} as (
          {{ sql }}
        );
      {%- endcall -%}
    {%- else -%}
      {%- do headwater_exchange(existing, intermediate, target) -%}
    {%- endif -%}
  {%- endif -%}
{% endmacro %}


{#- `same` where two views have one definition, `replaceable` where the first one's columns are the first of the second's. -#}
{% macro headwater_compared_views(present, new) %}
  {%- set names = [adapter.literal(headwater_name(present)), adapter.literal(headwater_name(new))] -%}
  {%- set found = run_query("
    with present as (select attnum, attname, atttypid, atttypmod, attcollation from pg_attribute
                     where attrelid = to_regclass(" ~ names[0] ~ ") and attnum > 0),
         new as (select attnum, attname, atttypid, atttypmod, attcollation from pg_attribute
                 where attrelid = to_regclass(" ~ names[1] ~ ") and attnum > 0)
    select not exists (table present except table new) as replaceable,
           not exists (table new except table present)
           and pg_get_viewdef(to_regclass(" ~ names[0] ~ ")) = pg_get_viewdef(to_regclass(" ~ names[1] ~ ")) as same") -%}
  {%- set row = found.rows[0] -%}
  {{ return(('same' if row['same'] else 'replaceable') if row['replaceable'] else none) }}
{% endmacro %}
