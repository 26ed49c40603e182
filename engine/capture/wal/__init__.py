"""Capture from the write-ahead log: what PostgreSQL decodes (pgoutput) is put into the change buffers."""
