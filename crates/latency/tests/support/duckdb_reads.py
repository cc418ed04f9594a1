"""Reads a run directory with DuckDB and prints what it found as JSON; the test beside it knows what it must be."""

import json
import sys

import duckdb

run = sys.argv[1]
requests, cells = (f"read_parquet('{run}/{name}.parquet')" for name in ("requests", "cells"))


def one(sql):
    return duckdb.sql(sql).fetchall()[0]


row = one(f"""
    SELECT count(*), sum(end_ns - intended_ns), sum(bytes), sum(connection),
           count(*) FILTER (error = 'timed-out' AND status IS NULL), count(first_byte_ns), count(class),
           count(*) FILTER (warmup)
    FROM {requests}""")
names = ("rows", "response_ns", "bytes", "connections", "timed_out", "first_bytes", "classes", "warmup")
found = {name: int(value) for name, value in zip(names, row)}
found["types"] = [column[1] for column in duckdb.sql(f"DESCRIBE SELECT * FROM {requests}").fetchall()]
found["cell_requests"] = int(one(f"SELECT sum(requests) FROM {cells} WHERE low_ns <= high_ns")[0])
print(json.dumps(found))
