{#- A stream table goes by its own function: that needs no event triggers. -#}
{% macro headwater__drop_relation(relation) %}
  {%- if relation.is_table and headwater_stream_table(relation) is not none -%}
    {%- do run_query(adapter.call('pgtrickle.drop_stream_table', {'name': headwater_name(relation)})) -%}
  {%- else -%}
    {{ default__drop_relation(relation) }}
  {%- endif -%}
{% endmacro %}


{#- The columns that users have named. -#}
{% macro headwater__get_columns_in_relation(relation) %}
  {%- set found = [] -%}
  {%- for column in postgres__get_columns_in_relation(relation) if not column.name.startswith('__pgt_') -%}
    {%- do found.append(column) -%}
  {%- endfor -%}
  {{ return(found) }}
{% endmacro %}


{% macro headwater__get_catalog_relations(information_schema, relations) %}
  {%- set catalog = postgres__get_catalog_relations(information_schema, relations) -%}
  {%- set stream_tables = run_query('select pgt_schema as table_schema, pgt_name as table_name from pgtrickle.pgt_stream_tables') -%}
  {{ return(adapter.without_internal_columns(catalog, stream_tables)) }}
{% endmacro %}


{% macro headwater__get_catalog(information_schema, schemas) %}
  {%- set relations = [] -%}
  {%- for schema in schemas -%}
    {%- do relations.append({'schema': schema}) -%}
  {%- endfor -%}
  {{ return(headwater__get_catalog_relations(information_schema, relations)) }}
{% endmacro %}


{#- `dbt source freshness` of sources that are stream tables, without a loaded_at_field: as of when their rows are. -#}
{% macro headwater__get_relation_last_modified(information_schema, relations) %}
  {%- call statement('last_modified', fetch_result=True) -%}
    {%- for relation in relations %}
    select {{ adapter.literal(relation.schema) }} as schema, {{ adapter.literal(relation.identifier) }} as identifier,
           n.now - make_interval(secs => pgtrickle.get_lag({{ adapter.literal(headwater_name(relation)) }})) as last_modified,
           n.now as snapshotted_at
    from clock_timestamp() as n(now)
    {% if not loop.last %}union all{% endif %}
    {%- endfor -%}
  {%- endcall -%}
  {{ return(load_result('last_modified')) }}
{% endmacro %}
