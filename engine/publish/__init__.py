"""Publications: stream tables as Delta or Iceberg tables that others read, each refresh one commit."""
