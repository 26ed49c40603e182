"""Publications: stream tables as Delta tables that others read, each refresh one commit."""
