from tests.workload import fresh_database

__all__ = ["fresh_database"]
