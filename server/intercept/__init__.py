"""Interceptors: engine requests carried out inside the statements that make them."""
