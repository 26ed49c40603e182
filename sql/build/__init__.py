"""From the canonical query to the operator tree, one construct a file."""
