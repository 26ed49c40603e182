"""Stream tables for other systems: their definitions as datasets of a pipeline that Spark runs."""
