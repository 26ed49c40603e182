"""Foreign tables as sources: polled into a copy of each."""
