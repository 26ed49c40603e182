"""Text in Spark's dialect: collations, cases of letters, regular expressions."""
