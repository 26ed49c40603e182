"""Which columns, rows and changes an operator tree need not read."""
