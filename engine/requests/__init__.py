"""What clients ask the engine for: create, alter, drop, refresh, and statements without a grammar of PostgreSQL's."""
