"""Subqueries in expressions and FROM: taken out, unnested, attached as operators."""
