"""What users define in a database, as Spark sees it: types, and functions in SQL."""
