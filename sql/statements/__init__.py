"""Statements that PostgreSQL has no grammar for."""
