{#-
  A table that is made anew, as dbt's is. The one that it replaces goes in the same transaction: a stream table that reads it must not
  be refreshed between the two, since it would follow the name that the old one has by then.
-#}
{% materialization table, adapter='headwater' %}
  {%- set target = this.incorporate(type='table') -%}
  {%- set existing = load_cached_relation(this) -%}
  {%- set intermediate = make_intermediate_relation(target) -%}
  {%- set made = target if existing is none else intermediate -%}

  {{ run_hooks(pre_hooks, inside_transaction=False) }}
  {{ drop_relation_if_exists(load_cached_relation(intermediate)) }}
  {{ run_hooks(pre_hooks, inside_transaction=True) }}

  {%- call statement('main') -%}
    {{ get_create_table_as_sql(False, made, sql) }}
  {%- endcall -%}
  {%- do create_indexes(made) -%}
  {%- if existing is not none -%}
    {%- do headwater_exchange(existing, intermediate, target) -%}
  {%- endif -%}
  {%- do apply_grants(target, config.get('grants'), should_revoke=false) -%}
  {%- do persist_docs(target, model) -%}

  {{ run_hooks(post_hooks, inside_transaction=True) }}
  {{ adapter.commit() }}
  {{ run_hooks(post_hooks, inside_transaction=False) }}

  {{ return({'relations': [target]}) }}
{% endmaterialization %}
