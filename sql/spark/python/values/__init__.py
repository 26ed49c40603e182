"""What functions in Python compute: Spark gets these modules by value, and they use nothing else of this program."""
