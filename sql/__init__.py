"""Understands SQL: canonical form, operator tree, differentiation, rendering. Pure: text in, plan out, no I/O."""
