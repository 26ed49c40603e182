"""A query's changes and its rows at a time, where nothing of it is stored."""
