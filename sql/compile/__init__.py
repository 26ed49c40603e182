"""From a query to all the statements that the engine runs for it."""
