"""What the sources held at a timestamp in the past."""
