"""What unnested subqueries need besides joins."""
