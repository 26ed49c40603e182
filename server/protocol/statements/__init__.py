"""The statements of the server's own, read from a client's text: each module parses one kind."""
