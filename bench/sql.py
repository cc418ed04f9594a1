#!/usr/bin/env python3
"""The engines of bench/sql, and the comparison of their tables with `headway analyze --json`.

  sql.py run ENGINE RUNS QUERIES MEMORY      runs the queries on RUNS/agent=*/requests.parquet and prints the tables
  sql.py compare ANALYSIS TABLES             the exit code is 1 if a table differs
"""
import json
import os
import pathlib
import sys

SETS = [
    ("complete", "complete"),
    ("first byte", "first_byte"),
    ("handshake", "handshake"),
    ("response", "response"),
    ("service", "service"),
]


def duckdb_runs(runs, memory):
    import duckdb

    database = duckdb.connect()
    database.execute(f"SET memory_limit = '{memory}B'")
    database.execute(f"SET temp_directory = '{runs}/../duckdb.tmp'")
    database.execute(f"CREATE VIEW requests AS SELECT * FROM read_parquet('{runs}/agent=*/requests.parquet')")

    def run(sql):
        found = database.execute(sql)
        names = [column[0] for column in found.description]
        return [dict(zip(names, row)) for row in found.fetchall()]

    return run


def pyspark_runs(runs, memory):
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[*]").config("spark.driver.memory", memory)
    builder = builder.config("spark.ui.enabled", "false").config("spark.local.dir", f"{runs}/../spark.tmp")
    session = builder.config("spark.sql.shuffle.partitions", "8").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    files = session.read.option("basePath", str(runs)).parquet(f"{runs}/agent=*/requests.parquet")
    files.createOrReplaceTempView("requests")
    return lambda sql: [row.asDict() for row in session.sql(sql).collect()]


def peak_mb():
    """The most that this process and its children have had at once, each for itself."""
    processes, parents = {str(os.getpid())}, {}
    for directory in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            text = (directory / "status").read_text()
        except OSError:
            continue
        found = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        parents[directory.name] = (found["PPid"].strip(), int(found.get("VmHWM", "0 kB").split()[0]))
    for _ in range(4):
        processes |= {process for process, (parent, _) in parents.items() if parent in processes}
    return round(sum(parents[process][1] for process in processes) / 1024)


def run(engine, runs, queries, memory):
    started = {"duckdb": duckdb_runs, "pyspark": pyspark_runs}[engine](pathlib.Path(runs).resolve(), memory)
    tables = {file.stem: started(file.read_text()) for file in sorted(pathlib.Path(queries).glob("*.sql"))}
    print(json.dumps({"engine": engine, "peak_mb": peak_mb(), "tables": tables}, indent=2))


def expected(found):
    """The figures of an analysis as the tables of the queries."""
    percentiles = []
    for name, key in SETS:
        if found.get(key):
            figures = {figure: value for figure, value in found[key].items() if figure not in ("cdf", "intervals")}
            percentiles.append({"of_what": name} | figures)
    by_size = [{key: value for key, value in group.items() if key != "latency"} | group["latency"]
               for group in found["by_size"]]
    deciles = [{"decile": number} | {f"series_{at + 1}": series[at] for at in range(4)}
               for number, series in enumerate(found["deciles"], 1)]
    names = {"inversion": "value", "reversed": "reversed", "of_reversed": "of_reversed", "requests": "requests",
             "sizes": "sizes"}
    inversion = found.get("inversion")
    return {
        "percentiles": percentiles,
        "latency-by-size": by_size,
        "deciles": deciles,
        "goodput": [{key: one[key] for key in ("deadline_ms", "requests", "share")} for one in found["goodput"]],
        "inversion": [{name: inversion[key] for name, key in names.items()}] if inversion else [],
    }


def compare(analysis, tables):
    ours = expected(json.loads(pathlib.Path(analysis).read_text()))
    theirs = json.loads(pathlib.Path(tables).read_text())
    differing = [name for name, table in ours.items() if theirs["tables"].get(name) != table]
    for name in differing:
        print(f"{theirs['engine']}: {name} differs: {theirs['tables'].get(name)} and {ours[name]}"[:2000])
    if not differing:
        rows = sum(len(table) for table in ours.values())
        print(f"{theirs['engine']}: {len(ours)} tables with {rows} rows are equal to those of headway analyze")
    return 1 if differing else 0


sys.exit(run(*sys.argv[2:]) if sys.argv[1] == "run" else compare(*sys.argv[2:]))
