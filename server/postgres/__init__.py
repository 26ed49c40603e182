"""The PostgreSQL behind the server: the embedded cluster, or the URL of another one."""
