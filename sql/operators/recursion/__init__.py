"""WITH RECURSIVE, and how its changes follow from those of its sources."""
