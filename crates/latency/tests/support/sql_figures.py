"""Runs the queries of a directory on the rows of `requests.parquet` in an engine, and prints the tables as JSON."""

import json
import pathlib
import sys

engine, queries = sys.argv[1], pathlib.Path(sys.stdin.read())
if engine == "duckdb":
    import duckdb

    database = duckdb.connect()
    database.execute("CREATE VIEW requests AS SELECT * FROM read_parquet('requests.parquet')")

    def run(sql):
        found = database.execute(sql)
        names = [column[0] for column in found.description]
        return [dict(zip(names, row)) for row in found.fetchall()]

elif engine == "datafusion":
    import datafusion

    context = datafusion.SessionContext()
    context.register_parquet("requests", "requests.parquet")

    def run(sql):
        return context.sql(sql).to_pylist()

else:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    session.read.parquet("requests.parquet").createOrReplaceTempView("requests")

    def run(sql):
        return [row.asDict() for row in session.sql(sql).collect()]


files = sorted(queries.glob("*.sql"))
print(json.dumps({file.stem: run(file.read_text()) for file in files}))
