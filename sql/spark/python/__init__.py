"""Functions of PostgreSQL that Spark has not: written in Python, called by Spark with batches of Arrow's."""
