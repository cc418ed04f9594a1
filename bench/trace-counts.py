"""Compares the counts that bench/trace-counts has collected: tables on standard output, all of it in summary.json.

    trace-counts.py CASES ROUNDS SUMMARY NAME...

CASES/NAME/ROUND.{strace,perf,json} are of one run of a program under three observers, attach.json and preload.json of
a run each.
"""
import json
import re
import statistics
import sys
from collections import Counter
from pathlib import Path

# The gate's own call, which began before the observers came. strace has it restarted, so strace and perf see one.
GATE = "flock"
CREATE = {"clone", "clone3", "fork", "vfork"}
END = {"exit", "exit_group"}
# What libc makes of a call is another one of the same family. The preload library counts by the name of the function.
FAMILIES = [
    "openat open creat", "newfstatat stat lstat fstat", "clone clone3 fork vfork", "poll ppoll", "select pselect6",
    "accept accept4", "dup dup2 dup3", "pipe pipe2", "access faccessat faccessat2", "readlink readlinkat",
    "unlink unlinkat rmdir", "rename renameat renameat2", "mkdir mkdirat", "chmod fchmodat", "epoll_wait epoll_pwait",
    "prlimit64 getrlimit setrlimit", "clock_nanosleep nanosleep", "wait4 waitid", "getdents64 getdents",
    "sendto send", "recvfrom recv", "utimensat utime",
]
FAMILY = {name: names.split()[0] for names in FAMILIES for name in names.split()}


def strace(path):
    """Calls by name, and those of them that never returned."""
    calls, endless, under_way = Counter(), Counter(), {}
    for line in path.read_text(errors="replace").splitlines():
        begun = re.match(r"(\d+) +(\w+)\(", line)
        resumed = re.match(r"(\d+) +<\.\.\. (\w+) resumed>", line)
        if begun:
            calls[begun[2]] += 1
            if line.endswith("<unfinished ...>"):
                under_way[begun[1]] = begun[2]
        elif resumed:
            under_way.pop(resumed[1], None)
        if (begun or resumed) and line.endswith("= ?"):
            endless[(begun or resumed)[2]] += 1
    endless.update(under_way.values())
    return calls, endless


def perf(path):
    calls = Counter()
    for line in path.read_text(errors="replace").splitlines():
        row = re.match(r"\s+(\w+)\s+(\d+)\s+\d+\s+[\d.]+\s+[\d.]+\s", line)
        if row:
            calls[row[1]] += int(row[2])
    return calls


def by_call(trace):
    calls = Counter()
    for site in trace["sites"]:
        if site["call"] != "outside calls":
            calls[site["call"]] += site["count"]
    return calls


def by_origin(trace):
    """Calls of each name by what makes them: the loader, libc, the program with its libraries, or not known."""
    calls = {}
    for site in trace["sites"]:
        if site["call"] == "outside calls":
            continue
        module = trace["locations"][site["location"]]["module"].rsplit("/", 1)[-1]
        origin = ("unknown" if not module else "loader" if module.startswith("ld-")
                  else "libc" if module.startswith("libc.so") else "program")
        calls.setdefault(FAMILY.get(site["call"], site["call"]), Counter())[origin] += site["count"]
    return calls


def compare(place):
    """One run: totals, and each difference with its name."""
    calls, endless = strace(place.with_suffix(".strace"))
    other = perf(place.with_suffix(".perf"))
    trace = json.loads(place.with_suffix(".json").read_text())
    ours = by_call(trace)
    for counts in (calls, other):
        counts[GATE] -= 1
    differences = []

    def differ(tool, call, count, why):
        differences.append([tool, call, count - ours[call], why])

    compat = sum(count for call, count in ours.items() if call.startswith("32-bit call"))
    for call in sorted(set(calls) | set(other) | set(ours)):
        if calls[call] != ours[call]:
            more = calls[call] - ours[call]
            if call.startswith("32-bit call") or more == compat > 0:
                why = "32-bit number"
            # The kernel kills for it before its event, and strace stops the thread earlier.
            elif 0 < more == endless[call] and call not in END:
                why = "ended by seccomp"
            elif more < 0 and "exit_group" in ours:
                # strace is not told of a call that a thread enters while its process is being killed.
                why = "begun while the process ended"
            else:
                why = ""
            differ("strace", call, calls[call], why)
        if other[call] != ours[call]:
            if call in END:
                why = "never returns"
            elif call == "rt_sigreturn":
                why = "rt_sigreturn"
            elif call in CREATE and ours[call] < other[call] <= 2 * ours[call]:
                why = "return in the child"
            elif compat:
                why = "32-bit number"
            elif 0 < other[call] < ours[call] or other[call] == 0:
                why = "lost by perf"
            else:
                why = ""
            differ("perf", call, other[call], why)
    return {
        "calls": {"strace": calls.total(), "headway": ours.total(), "perf": other.total()},
        "without_return": endless.total(),
        "processes": len({program["pid"] for program in trace["programs"]}),
        "missing": trace["missing"],
        "by_call": dict(sorted(ours.items())),
        "differences": differences,
    }, trace


def preloaded(observed, library, all_calls):
    """What the preload library counts of the calls, by their origin."""
    counted = Counter()
    for call, count in by_call(library).items():
        counted[FAMILY.get(call, call)] += count
    origins, left_out = Counter(), Counter()
    for call, origin in observed.items():
        origins.update(origin)
        left_out[call] = max(0, origin["program"] - counted[call])
    return {
        "all": all_calls,
        "origin": dict(origins),
        "counted": counted.total(),
        "left_out_of_program": {call: count for call, count in left_out.most_common() if count},
        # That files have no symbols says nothing of counts.
        "missing": [text for text in library["missing"] if not text.startswith("Call sites")],
    }


def main():
    cases, rounds, summary = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    result = {}
    for name in sys.argv[4:]:
        runs, traces = zip(*(compare(cases / name / str(number)) for number in range(1, rounds + 1)))
        attached = by_call(json.loads((cases / name / "attach.json").read_text()))
        stable = all(run["by_call"] == runs[0]["by_call"] for run in runs)
        # The gate of `--attach` is left out with its exec.
        attached["execve"] += 1
        library = json.loads((cases / name / "preload.json").read_text())
        result[name] = {
            "command": (cases / name / "command").read_text().strip(),
            "runs": runs,
            "stable": stable,
            "attach": {"calls": attached.total(), "differences": {
                call: attached[call] - runs[0]["by_call"].get(call, 0) for call in set(attached) | set(runs[0]["by_call"])
                if attached[call] != runs[0]["by_call"].get(call, 0)}},
            "preload": preloaded(by_origin(traces[0]), library, runs[0]["calls"]["headway"]),
        }
    print_tables(result)
    for case in result.values():
        # Counts by call and what perf does of one run are enough. A difference is tool, call, count, reason.
        for run in case["runs"][1:]:
            del run["by_call"]
            run["differences"] = [one for one in run["differences"] if one[0] == "strace"]
    summary.write_text(json.dumps(result, indent=None, separators=(",", ":"), sort_keys=True) + "\n")


def span(values):
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def print_tables(result):
    print("## The same run, three observers\n")
    print("| program | processes | strace | headway | perf trace | strace − headway | perf − headway | from the start |")
    print("|---|--:|--:|--:|--:|---|---|---|")
    for name, case in result.items():
        runs = case["runs"]
        columns = [span([run["calls"][tool] for run in runs]) for tool in ("strace", "headway", "perf")]
        named = []
        for tool in ("strace", "perf"):
            sums = Counter()
            for run in runs:
                for one, call, count, why in run["differences"]:
                    if one == tool:
                        sums[why or f"NOT EXPLAINED: {call}"] += count
            named.append(", ".join(f"{why} {count:+}" if count else why for why, count in sums.items()) or "equal")
        apart = ", ".join(f"{call} {count:+}" for call, count in sorted(case["attach"]["differences"].items()))
        start = "equal" if not apart else "varies" if not case["stable"] else apart
        print(f"| {name} | {span([run['processes'] for run in runs])} | {' | '.join(columns + named)} | {start} |")
    lost = Counter(text for case in result.values() for run in case["runs"] for text in run["missing"])
    print("\nWhat headway says is missing in these runs: " +
          "; ".join(f"\"{text}\" ({count} ×)" for text, count in lost.most_common()))
    print("\n## What the preload library counts\n")
    print("| program | calls | by the loader | inside libc | not known | by the program | counted | the program's not counted |")
    print("|---|--:|--:|--:|--:|--:|--:|---|")
    for name, case in result.items():
        part = case["preload"]
        origin = part["origin"]
        left = ", ".join(f"{call} {count}" for call, count in list(part["left_out_of_program"].items())[:5])
        numbers = [part["all"]] + [origin.get(one, 0) for one in ("loader", "libc", "unknown", "program")] + [part["counted"]]
        print(f"| {name} | {' | '.join(f'{number:,}' for number in numbers)} | {left or '–'} |")


main()
