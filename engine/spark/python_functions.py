"""Functions in Python that queries call: a session has to have them before it runs the query."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.spark.backends import Session
from sql.spark.python.calls import MODULES, PythonFunction, called


def register(spark: Session, *queries: str) -> None:
    """Give a session the functions that these queries call."""
    for name, function in called(*queries).items():
        spark.udf.register(name, _of_batches(spark, function))


def _of_batches(spark: Session, function: PythonFunction) -> Any:
    """The function as PySpark wants it: of arrays of Arrow's, and sent by value."""
    import pyarrow as pa
    from pyspark import cloudpickle
    from pyspark.sql import types
    from pyspark.util import PythonEvalType

    for module in MODULES:
        cloudpickle.register_pickle_by_value(module)
    # What Spark calls the result's type, what the function gives, and what Arrow makes of it.
    declared, given, wanted = {
        "string": (types.StringType(), pa.string(), pa.string()),
        "boolean": (types.BooleanType(), pa.bool_(), pa.bool_()),
        "int": (types.IntegerType(), pa.int32(), pa.int32()),
        "bigint": (types.LongType(), pa.int64(), pa.int64()),
        "double": (types.DoubleType(), pa.float64(), pa.float64()),
        "date": (types.DateType(), pa.int32(), pa.date32()),
        "timestamp_ntz": (types.TimestampNTZType(), pa.int64(), pa.timestamp("us")),
        "timestamp": (types.TimestampType(), pa.int64(), pa.timestamp("us", tz="UTC")),
    }[function.result]
    if hasattr(spark, "_sc"):
        from pyspark.sql.udf import UserDefinedFunction
    else:
        from pyspark.sql.connect.udf import UserDefinedFunction
    kind = PythonEvalType.SQL_SCALAR_ARROW_UDF
    return UserDefinedFunction(_over(function, given, wanted), declared, evalType=kind)


def _over(called: PythonFunction, given: Any, wanted: Any) -> Callable[..., Any]:
    """The function over arrays; of a strict one NULL where an argument is."""
    function, strict = called.function, called.strict

    def compute(*columns: Any) -> Any:
        import pyarrow as pa

        def numbers(column: Any) -> Any:
            if pa.types.is_date32(column.type):
                return column.cast(pa.int32())
            return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column

        rows = zip(*(numbers(column).to_pylist() for column in columns), strict=True)
        values = [None if strict and None in row else function(*row) for row in rows]
        return pa.array(values, given).cast(wanted)

    return compute


__all__ = ["register"]
