"""Sessions of the engine's own in PostgreSQL: pools, transactions, snapshots, locks, elections."""
