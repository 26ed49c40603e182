"""For Python programs that use queues and registers: `headwater.queues` and `headwater.registers`, over psycopg 3.

Nothing here knows of the server: it calls the documented functions of the schemas `pgque` and `accum`.
"""
