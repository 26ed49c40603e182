"""Numbers in Spark's dialect: exact ones, floating point ones, and the bits of whole ones."""
