"""Several processes that relay for one server: what they tell each other, and who takes which client."""
