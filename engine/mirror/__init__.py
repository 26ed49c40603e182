"""The mirror: each source that Spark reads as a Delta Lake base and a log of changes."""
