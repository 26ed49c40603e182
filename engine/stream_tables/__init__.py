"""What the engine knows of a stream table: its analysis, its plan, and its state at a refresh."""
