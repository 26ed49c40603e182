"""A query in Spark's dialect, where Spark's answer is exactly PostgreSQL's."""
