"""The scheduler of a database and its workers."""
