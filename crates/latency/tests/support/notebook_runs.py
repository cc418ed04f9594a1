"""Runs the cells of the notebook in a folder with queries, and prints the tables of the queries as JSON."""

import json
import os
import pathlib
import sys

folder = pathlib.Path(sys.stdin.read())
os.environ["SQL"] = str(folder)
os.environ["RUN"] = sys.argv[1]
names = {}
for cell in json.loads((folder / "figures.ipynb").read_text())["cells"]:
    if cell["cell_type"] == "code":
        assert not cell["outputs"] and cell["execution_count"] is None, "the notebook has outputs"
        exec("".join(cell["source"]), names)


def rows(relation):
    return [dict(zip(relation.columns, row)) for row in relation.fetchall()]


tables = {file.stem: rows(names["table"](file.stem)) for file in sorted(folder.glob("*.sql"))}
shown = "".join("".join(cell["source"]) for cell in json.loads((folder / "figures.ipynb").read_text())["cells"])
assert all(f'table("{name}")' in shown for name in tables), "a query is not in the notebook"
print(json.dumps({"tables": tables, "requests": sum(row["requests"] for row in rows(names["seconds"]))}))
