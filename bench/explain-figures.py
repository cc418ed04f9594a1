"""The tables of bench/explain-figures, from the JSON of `headway explain`. Arguments: a folder and the names of servers."""
import json
import sys

folder, servers = sys.argv[1], sys.argv[2:]
reports = {server: json.load(open(f"{folder}/{server}.json")) for server in servers}


def table(head, rows):
    print("| " + " | ".join(head) + " |")
    print("|---|" + "--:|" * (len(head) - 1))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print()


def events(bucket):
    return str(bucket) if bucket < 2 else f"{2 ** (bucket - 1)} to {2 ** bucket - 1}"


print("## Requests\n")
table(
    ["server", "requests", "p50 ms", "p99 ms", "sampled one in", "lost events"],
    [
        [
            server,
            report["requests"]["answered"],
            f"{report['latency']['p50_us'] / 1e3:.1f}",
            f"{report['latency']['p99_us'] / 1e3:.1f}",
            report["requests"]["sampled_one_in"],
            report["lost_events"],
        ]
        for server, report in reports.items()
    ],
)
print("## Figure 1 (2006): ready events per wait, cumulative share of waits in percent\n")
last = max((max((b for b, n in enumerate(r["ready_events"]) if n), default=0) for r in reports.values()), default=0)
rows = []
for bucket in range(last + 1):
    row = [events(bucket)]
    for report in reports.values():
        total = sum(report["ready_events"]) or 1
        row.append(f"{100 * sum(report['ready_events'][: bucket + 1]) / total:.1f}")
    rows.append(row)
table(["ready events", *servers], rows)
print("## Figure 2 (2006): tasks that could run\n")
rows = []
for server, report in reports.items():
    queue = report["run_queue"]
    if queue:
        share = f"{100 * queue['share_mean']:.1f}"
        rows.append([server, queue["tasks_max"], share, *(queue[key] for key in ("p50", "p90", "p99", "max", "samples"))])
table(["server", "tasks", "mean share %", "p50", "p90", "p99", "most", "samples"], rows)
print("## Time between two waits for events, upper bounds\n")
rows = []
for server, report in reports.items():
    turns = report["loop_turns"]
    if turns:
        rows.append([server, turns["turns"], *(f"{turns[key]:.0f}" for key in ("p50_us", "p95_us", "p99_us", "max_us"))])
table(["server", "turns", "p50 µs", "p95 µs", "p99 µs", "longest µs"], rows)
for server, report in reports.items():
    print(f"## Table 2.4 (dissertation): sleeps of {server} by resource and call\n")
    labels = {}
    for sleep in report["sleeps"]:
        labels.setdefault(sleep["label"], []).append(sleep)
    order = sorted(labels, key=lambda label: -sum(sleep["times"] for sleep in labels[label]))
    rows = []
    for label in order:
        calls = ", ".join(f"{sleep['call']} {sleep['times']}" for sleep in labels[label])
        seconds = sum(sleep["total_ns"] for sleep in labels[label]) / 1e9
        rows.append([label, sum(sleep["times"] for sleep in labels[label]), f"{seconds:.2f}", calls])
    table(["resource", "sleeps", "seconds", "calls"], rows)
