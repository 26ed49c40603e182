"""Spark: sessions, jobs, and the way of large results into PostgreSQL."""
