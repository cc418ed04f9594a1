#!/usr/bin/env bash
# CPU time of the SPECweb99-like application before and after it left the server.
#
#   bench/structure/specweb99.sh BEFORE NOW [CONNECTIONS [ROUNDS [SECONDS]]]
#
# BEFORE is a `headway` of 92e0a087, which has the application inside; NOW is a `headway-lab` of today. The two take turns on CPU 0, the
# client is on CPU 1, at the same number of connections of the same rate. One line a run: round, program, requests per second,
# milliseconds of CPU time of the server per 1,000 requests, connections that conform.
set -euo pipefail
before=$1 now=$2 connections=${3:-1000} rounds=${4:-6} seconds=${5:-10}
here=$(mktemp -d)
server=
trap 'if [ -n "$server" ]; then kill "$server" || true; fi; rm -rf "$here"' EXIT
"$(dirname "$now")/headway" fileset create "$here/set" --connections "$connections" --profile specweb99-dynamic --quiet
# configuration LINE: with this line in the locations of the application.
configuration() {
    printf 'root = "%s"\n' "$here/set"
    printf '[[location]]\nprefix = "%s"\n%s\n' /specweb99 "$1" /cgi-bin/specweb99 "$1"
}
configuration 'specweb99 = {}' >"$here/before.toml"
configuration 'application = "specweb99"' >"$here/now.toml"

# Of the master and its children, in ticks.
cpu_ticks() {
    local pid
    for pid in "$server" $(cat /proc/"$server"/task/*/children); do
        sed 's/.*) //' "/proc/$pid/stat" | awk '{ print $12 + $13 }'
    done | awk '{ sum += $1 } END { print sum }'
}

measure() {
    local round=$1 name=$2 program=$3 port=$4 start end
    ulimit -n "$(ulimit -Hn)"
    taskset -c 0 "$program" serve --config "$here/$name.toml" --listen "127.0.0.1:$port" --max-connections 8192 --quiet --ready-file "$here/ready" &
    server=$!
    for _ in {1..100}; do [ -e "$here/ready" ] && break; sleep 0.1; done
    start=$(cpu_ticks)
    "$now" specweb99 "http://127.0.0.1:$port" -c "$connections" --fileset "$here/set" --warmup 2s --ramp 2s -d "${seconds}s" --iterations 1 \
        --cpu 1 --quiet --json >"$here/result.json"
    end=$(cpu_ticks)
    kill "$server"; wait "$server" || true
    server=
    rm -f "$here/ready"
    cp "$here/result.json" "${KEEP:-$here}/result-$round-$name.json" 2>/dev/null || true
    echo "$round $name $((end - start))"
}
for ((round = 1; round <= rounds; round++)); do
    if ((round % 2)); then
        measure "$round" before "$before" 28101
        measure "$round" now "$now" 28102
    else
        measure "$round" now "$now" 28102
        measure "$round" before "$before" 28101
    fi
done
