"""The relay: connections, sessions, TLS, cancel; bytes from client to PostgreSQL and back."""
