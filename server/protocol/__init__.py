"""The PostgreSQL wire protocol without I/O: bytes in, messages and decisions out. No socket is touched here."""
