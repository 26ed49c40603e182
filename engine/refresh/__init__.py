"""One refresh of one stream table: its policy, its executor, its failures."""
