"""What all of the compiler stands on: columns, types, identity, small pieces of text."""
