"""PostgreSQL's canonical form of a query: read, rewritten and compared."""
