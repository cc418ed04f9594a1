"""Runs lines of the guide as at a prompt and prints the value of each query or expression as JSON."""

import ast
import json
import sys

text = sys.stdin.read()
values = []
if sys.argv[1] == "sql":
    import duckdb

    values = [duckdb.sql(query).fetchall() for query in text.split(";") if query.strip()]
else:
    names = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Expr):
            value = eval(compile(ast.Expression(node.value), "guide", "eval"), names)
            values.append(value.to_dicts() if hasattr(value, "to_dicts") else value.to_dict())
        else:
            exec(compile(ast.Module([node], []), "guide", "exec"), names)
print(json.dumps(values, default=float))
