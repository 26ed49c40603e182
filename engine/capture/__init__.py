"""Change capture: triggers put on ahead of a client's transaction, and who may read what they capture."""
