"""The web console: pages that show what the database a user logs in to holds, read with that user's own rights."""
