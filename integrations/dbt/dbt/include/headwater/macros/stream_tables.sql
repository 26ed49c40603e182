{#- What the catalog says of a relation, if it is a stream table, else none. -#}
{% macro headwater_stream_table(relation) %}
  {%- set found = run_query(
      "select status, engine from pgtrickle.pgt_stream_tables where pgt_relid = to_regclass("
      ~ adapter.literal(headwater_name(relation)) ~ ")") -%}
  {{ return(found.rows[0] if found is not none and found.rows | length else none) }}
{% endmacro %}


{#- The name of a relation as the server's functions take it. -#}
{% macro headwater_name(relation) %}
  {{ return(relation.include(database=false).render()) }}
{% endmacro %}


{#- Only indexes that dbt has made are dropped: their names are hashes. -#}
{% macro headwater_update_indexes(relation) %}
  {%- set found = run_query(headwater_indexes_sql(relation)) -%}
  {%- set present = {} -%}
  {%- for row in found.rows -%}
    {%- do present.update({row['definition']: row}) -%}
  {%- endfor -%}
  {%- set wanted = {} -%}
  {%- for raw in config.get('indexes', default=[]) -%}
    {%- set index = adapter.parse_index(raw) -%}
    {%- do wanted.update({(index.type or 'btree') ~ ' ' ~ index.unique ~ ' ' ~ index.columns | join(','): raw}) -%}
  {%- endfor -%}
  {%- for definition, row in present.items() if row['made_by_dbt'] and definition not in wanted -%}
    {%- do run_query('drop index ' ~ row['name']) -%}
  {%- endfor -%}
  {%- for definition, raw in wanted.items() if definition not in present -%}
    {%- do run_query(get_create_index_sql(relation, raw)) -%}
  {%- endfor -%}
{% endmacro %}


{% macro headwater_indexes_sql(relation) %}
  select i.indexrelid::regclass::text as name, c.relname ~ '^[0-9a-f]{32}$' as made_by_dbt,
         m.amname || ' ' || case when i.indisunique then 'True' else 'False' end || ' ' ||
         (select string_agg(a.attname, ',' order by k.place)
          from unnest(i.indkey::smallint[]) with ordinality as k(number, place)
          join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number) as definition
  from pg_index i join pg_class c on c.oid = i.indexrelid join pg_am m on m.oid = c.relam
  where i.indrelid = to_regclass({{ adapter.literal(headwater_name(relation)) }}) and not i.indisprimary and i.indpred is null
{% endmacro %}


{#- The rows of a model's body must be nothing: what is declared is in its configuration. -#}
{% macro headwater_refuse_query(sql, what) %}
  {%- if modules.re.sub('(?s)/\\*.*?\\*/|--[^\\n]*', '', sql) | trim -%}
    {%- do exceptions.raise_compiler_error('a ' ~ what ~ ' has no query: its model is its configuration, and at most comments') -%}
  {%- endif -%}
{% endmacro %}
