{#-
  dbt run-operation swap_schemas --args '{live: analytics, next: analytics_next, max_lag: 5 seconds, timeout: 10 minutes}'
  Wait until the stream tables of `next` lag by `max_lag` at most, and exchange the names of the two schemas.
-#}
{% macro swap_schemas(live, next, max_lag='10 seconds', timeout='10 minutes') %}
  {%- if execute -%}
    {%- do adapter.swap_schemas(live, next, max_lag, timeout) -%}
  {%- endif -%}
{% endmacro %}
