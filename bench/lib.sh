# Shared by the scripts of bench/: scratch space, servers as child processes, their CPU time and
# memory, and the evidence folder. Sourced, never run. Everything it starts it also ends, and only that;
# all traffic stays inside 127.0.0.0/8.
# shellcheck shell=bash

# The variables below are the interface to the scripts that source this file.
# shellcheck disable=SC2034

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
headway=${HEADWAY:-$repository/target/release/headway}
# Beside it are the lab and the application of the SPECweb99-like load.
headway_lab=$(dirname "$headway")/headway-lab
application=$(dirname "$headway")/headway-specweb99
# What serves as headway: headway-lab, where the application or the servers of the papers are needed.
headway_server=$headway
apache_module=$(dirname "$headway")/mod_headway.so
bench_tools=$repository/target/bench-tools/release
server_cpu=${HEADWAY_BENCH_SERVER_CPU:-0}
client_cpu=${HEADWAY_BENCH_CLIENT_CPU:-1}
tick_hz=$(getconf CLK_TCK)
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
export LC_ALL=C

scratch=$(mktemp -d "${TMPDIR:-/tmp}/headway-bench.XXXXXX")
# A server that drops its privileges has to reach the files below this folder.
chmod 755 "$scratch"
# Peers that the user names, for example those of bench/peers/build, also for `headway-lab`.
mkdir "$scratch/peers"
for peer in nginx h2o lighttpd apache2 caddy static-web-server wrk h2load oha k6; do
    named=PEER_${peer^^} named=${named//-/_}
    [ -z "${!named:-}" ] || ln -s "$(realpath "${!named}")" "$scratch/peers/$peer"
done
PATH=$scratch/peers:$PATH
started=()                    # process ids we started and have to end
at_exit=()                    # commands that undo a change of the machine, run last to first
declare -A server_pid server_port server_tls_port
headway_options=()            # appended to every `serve`
headway_workers=1
delay_options=()              # of the server with a known latency
tls_certificate='' tls_key=''  # files: with them each server also speaks HTTPS, on another port
server_prefix=()              # put before a server's command, for example to enter a control group
# Below the ephemeral ports, and another range for each run, since two may share a machine.
port_next=${HEADWAY_BENCH_PORT:-$((20000 + $$ % 600 * 20))}

say() { echo "$(basename "$0"): $*" >&2; }
die() { say "$*"; exit 1; }

need() {
    command -v "$1" >/dev/null || die "no $1 here; run scripts/setup bench"
}

# ---- processes ----------------------------------------------------------------------------------

# A process id and those of all its descendants, one a line.
process_tree() {
    # A command name may hold spaces and parentheses, so cut at the last parenthesis.
    # A process that ends between the listing and the reading is no error.
    { cat /proc/[0-9]*/stat 2>/dev/null || true; } | sed -n 's/^\([0-9]*\) (.*) . \([0-9]*\) .*/\1 \2/p' |
        awk -v root="$1" '{ children[$2] = children[$2] " " $1; seen[$1] }
            END { if (!(root in seen)) exit; n = 1; queue[1] = root
                for (i = 1; i <= n; i++) { print queue[i]
                    m = split(children[queue[i]], list, " "); for (j = 1; j <= m; j++) queue[++n] = list[j] } }'
}

end_process() {
    local pid=$1 attempt tree
    kill -0 "$pid" 2>/dev/null || return 0
    tree=$(process_tree "$pid")
    kill -TERM "$pid" 2>/dev/null || true
    for attempt in {1..50}; do
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
        # What does not listen to the polite signal within five seconds would disturb the next case.
        # shellcheck disable=SC2086
        [ "$attempt" -lt 50 ] || kill -KILL $tree 2>/dev/null || true
    done
    wait "$pid" 2>/dev/null || true
}

clean_up() {
    local status=$? index
    trap - EXIT INT TERM ERR
    # Whatever goes wrong while cleaning up, the rest is still to be cleaned.
    set +e
    for index in "${started[@]}"; do end_process "$index"; done
    for ((index = ${#at_exit[@]} - 1; index >= 0; index--)); do eval "${at_exit[index]}" || true; done
    rm -rf "$scratch"
    exit "$status"
}
# Otherwise a command that fails would end a run of an hour without a word.
set -E
trap 'say "line $LINENO failed: $BASH_COMMAND"' ERR
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Sets `port` to one that no server listens on. A port in use would not be noticed later: servers with SO_REUSEPORT share it,
# and another server's response looks like ours.
take_port() {
    while (exec 3<>"/dev/tcp/127.0.0.1/$port_next") 2>/dev/null; do port_next=$((port_next + 1)); done
    port=$((port_next++))
}

# ---- servers ------------------------------------------------------------------------------------

# peer_configuration FILE ROOT PORT [VARIANT]: fills in the placeholders of bench/peers/FILE.conf, prints where.
# `headway-lab` fills in the same files (lab/lab/src/servers/configuration.rs).
peer_configuration() {
    local name=$1 root=$2 port=$3 variant=${4:-$1} place user group aio=off workers=1
    local mpm=event clients=128 children=1
    place=$scratch/$variant-$port.conf user=$(id -un) group=$(id -gn)
    # Apache refuses to serve as root.
    if [ "$user" = root ]; then user=nobody group=nogroup; fi
    # The form that nginx recommends for slow disks: every body goes through its pool of threads.
    if [ "$variant" = nginx-threads ]; then aio=threads; fi
    # One process per client, as many as the benchmarks have clients that wait for a disk.
    if [ "$variant" = apache2-prefork ]; then mpm=prefork clients=32 children=32; fi
    # lighttpd's word for one process without a watcher.
    if [ "$name" = lighttpd ]; then workers=0; fi
    # One process, so that no connection is handed between address spaces; 128 threads are twice the clients of
    # the throughput cases. 19000 connections, since the memory case holds 10,000. Each core that is compared is one.
    fill_in "$name" >"$place"
    if [ -n "$tls_certificate" ]; then
        # nginx has it inside its server, which includes this file.
        if [ "$name" = nginx ]; then fill_in nginx-tls >"$scratch/nginx-server-tls.conf"; else fill_in "$name-tls" >>"$place"; fi
    fi
    echo "$place"
}

# Of peer_configuration, with its variables.
fill_in() {
    sed -e "s|@ROOT@|$root|g; s|@HOST@|127.0.0.1|g; s|@PORT@|$port|g; s|@SCRATCH@|$scratch|g" \
        -e "s|@USER@|$user|g; s|@GROUP@|$group|g; s|@WORKERS@|$workers|g; s|@BACKLOG@|1024|g" \
        -e "s|@FILES@|20000|g; s|@CONNECTIONS@|19000|g; s|@MPM@|$mpm|g" \
        -e "s|@CLIENTS@|$clients|g; s|@CHILDREN@|$children|g; s|@THREADS@|128|g; s|@AIO@|$aio|g" \
        -e "s|@MULTI_ACCEPT@|on|g; s|@OPEN_FILE_CACHE@|max=20000 inactive=60s|g" \
        -e "s|@TLS_PORT@|${tls_port:-}|g; s|@CERTIFICATE@|$tls_certificate|g; s|@KEY@|$tls_key|g" \
        -e "s|^@ACCESS_LOG@$||; s|@ACCESS_LOG@|off|g" "$repository/bench/peers/$1.conf"
}

# True when the server can be started here; says why not otherwise.
server_available() {
    case $1 in
        headway-before) [ -x "${HEADWAY_BEFORE:-}" ] || { say "leaving out $1: HEADWAY_BEFORE names no program"; return 1; } ;;
        headway|headway-untraced) [ -x "$headway" ] || { say "leaving out $1: no $headway"; return 1; } ;;
        flashpache) [ -f "$apache_module" ] || { say "leaving out $1: no $apache_module (make -C apache OUT=$(dirname "$headway"))"; return 1; } ;;
        floor*) [ -x "$bench_tools/floor" ] || { say "leaving out the floor: no $bench_tools/floor"; return 1; } ;;
        static-web-server) command -v "$1" >/dev/null || { say "leaving out $1: not installed"; return 1; } ;;
        *) command -v "${1%-*}" >/dev/null || { say "leaving out $1: not installed"; return 1; } ;;
    esac
}

# server_start NAME ROOT: starts it pinned to the server's core and waits until it answers /ready.txt.
server_start() {
    local name=$1 root=$2 port tls_port command
    local -a tls_options=()
    take_port
    tls_port=$port
    take_port
    if [ -n "$tls_certificate" ]; then
        tls_options=(--tls-listen "127.0.0.1:$tls_port" --tls-certificate "$tls_certificate" --tls-key "$tls_key")
    fi
    case $name in
        # The same command of another build, to compare two versions.
        headway-before) command=("$HEADWAY_BEFORE" serve "$root" --listen "127.0.0.1:$port" --workers "$headway_workers"
                                 "${tls_options[@]}") ;;
        headway) command=("$headway_server" serve "$root" --listen "127.0.0.1:$port" --workers "$headway_workers"
                          "${tls_options[@]}" "${headway_options[@]}") ;;
        delay) command=("$bench_tools/delay" --listen "127.0.0.1:$port" "${delay_options[@]}") ;;
        floor) command=("$bench_tools/floor" --listen "127.0.0.1:$port") ;;
        floor-close) command=("$bench_tools/floor" --listen "127.0.0.1:$port" --close) ;;
        nginx|nginx-threads) command=(nginx -e "$scratch/nginx.error" -p "$scratch"
                        -c "$(peer_configuration nginx "$root" "$port" "$name")") ;;
        lighttpd) command=(lighttpd -D -f "$(peer_configuration "$name" "$root" "$port")") ;;
        h2o) command=(h2o -m worker -c "$(peer_configuration "$name" "$root" "$port")") ;;
        caddy) command=(env HOME="$scratch" caddy run --adapter caddyfile --config "$(peer_configuration "$name" "$root" "$port")") ;;
        # It wants a name that ends so.
        static-web-server)
            cp "$(peer_configuration "$name" "$root" "$port")" "$scratch/$name.toml"
            command=(static-web-server --config-file "$scratch/$name.toml") ;;
        apache2|apache2-prefork)
            command=(apache2 -D FOREGROUND -f "$(peer_configuration apache "$root" "$port" "$name")") ;;
        # Apache as above, with our module and the service beside it.
        flashpache)
            local configuration socket=$scratch/$name-$port.sock
            configuration=$(peer_configuration apache "$root" "$port" "$name")
            printf '%s\n' "LoadModule headway_module $apache_module" "HeadwayBackend $socket" "HeadwayEnable On" >>"$configuration"
            command=("$headway" backend --quiet --root "$root" --socket "$socket" --user root --allow-user nobody
                     -- apache2 -D FOREGROUND -f "$configuration") ;;
        *) die "$name: not a server this bench knows" ;;
    esac
    : >"$root/ready.txt"
    "${server_prefix[@]}" taskset -c "$server_cpu" "${command[@]}" >"$scratch/$name.output" 2>&1 </dev/null &
    server_pid[$name]=$!
    server_port[$name]=$port
    server_tls_port[$name]=$tls_port
    started+=("${server_pid[$name]}")
    wait_until_answering "$name"
}

wait_until_answering() {
    local name=$1 attempt
    for attempt in {1..100}; do
        if curl -fs --noproxy '*' -o /dev/null "http://127.0.0.1:${server_port[$name]}/ready.txt" &&
            kill -0 "${server_pid[$name]}" 2>/dev/null; then return 0; fi
        kill -0 "${server_pid[$name]}" 2>/dev/null || break
        sleep 0.1
    done
    tail -n 20 "$scratch/$name.output" "$scratch/$name.error" >&2 2>/dev/null || true
    die "$name did not answer on port ${server_port[$name]} (attempt $attempt)"
}

server_stop() {
    end_process "${server_pid[$1]}"
    unset "server_pid[$1]"
}

# User and system time of a server's processes and of the children it has reaped, in clock ticks.
server_ticks() {
    local pid
    for pid in $(process_tree "${server_pid[$1]}"); do
        sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null || true
    done | awk '{ sum += $12 + $13 + $14 + $15 } END { print sum + 0 }'
}

# User and system time of a server's threads in microseconds, finer than clock ticks. Without those of ended ones.
server_us() {
    local pid
    if [ ! -e /proc/self/schedstat ]; then echo $(($(server_ticks "$1") * 1000000 / tick_hz)); return; fi
    for pid in $(process_tree "${server_pid[$1]}"); do
        cat "/proc/$pid"/task/*/schedstat 2>/dev/null || true
    done | awk '{ sum += $1 } END { printf "%.0f", sum / 1000 }'
}

# The processes of a server that run an event loop: where a sleep stalls every client.
loop_processes() {
    local pid
    for pid in $(process_tree "${server_pid[$1]}"); do
        case $1 in
            headway*) if grep -qsz '^serve-worker' "/proc/$pid/cmdline"; then echo "$pid"; fi ;;
            nginx*) if grep -qs 'worker process' "/proc/$pid/cmdline"; then echo "$pid"; fi ;;
            *) echo "$pid" ;;
        esac
    done
}

# load_json FILE OPTION…: `headway load` on the client's core, writer included, its figures as JSON in FILE.
# A run without one good response fails, and what it said is shown.
load_json() {
    local file=$1
    shift
    taskset -c "$client_cpu" "$headway" load "$@" --json --quiet >"$file" 2>"$file.errors" || { cat "$file.errors" >&2; die "headway load $*"; }
}

# json_value FILE NAME.NAME…: one value of JSON that headway has printed with an indentation of two.
json_value() {
    awk -v path="$2" '{ match($0, /^ */); depth = RLENGTH / 2; line = substr($0, RLENGTH + 1)
        if (line !~ /^"/) next
        key = line; sub(/^"/, "", key); sub(/".*/, "", key); names[depth] = key
        here = names[1]; for (i = 2; i <= depth; i++) here = here "." names[i]
        if (here != path) next
        sub(/^"[^"]*": /, "", line); sub(/,$/, "", line); gsub(/^"|"$/, "", line); print line; exit }' "$1"
}

# The list, begun at another place each round: rotated ROUND NAME…
rotated() {
    local -a list
    local offset=$(($1 - 1)) index
    shift
    list=("$@")
    for index in "${!list[@]}"; do echo "${list[(index + offset) % ${#list[@]}]}"; done
}

# wrk writes 123us, 1.23ms, 1.2s.
in_us() {
    awk -v v="$1" 'BEGIN { n = v + 0; if (v ~ /us$/) n *= 1; else if (v ~ /ms$/) n *= 1000; else if (v ~ /s$/) n *= 1000000; printf "%.0f", n }'
}

# ---- the machine --------------------------------------------------------------------------------

# `busy total` of one core in ticks. Time that the hypervisor took is part of the total only.
core_ticks() {
    awk -v name="cpu$1" '$1 == name { print $2 + $3 + $4 + $7 + $8, $2 + $3 + $4 + $5 + $6 + $7 + $8 + $9 }' /proc/stat
}

# Share of two readings in percent: busy_share "busy total" "busy total".
busy_share() {
    awk -v before="$1" -v after="$2" 'BEGIN { split(before, b, " "); split(after, a, " ")
        t = a[2] - b[2]; printf "%.1f", (t > 0) ? 100 * (a[1] - b[1]) / t : 0 }'
}

raise_descriptor_limit() {
    ulimit -n 20000 2>/dev/null || ulimit -n "$(ulimit -Hn)"
}

build_tools() {
    need cargo
    CARGO_TARGET_DIR=$repository/target/bench-tools cargo build --quiet --release --locked \
        --manifest-path "$repository/bench/tools/Cargo.toml"
}

# build_headway PACKAGE…: headway, and more packages in the same build.
build_headway() {
    if [ -n "${HEADWAY:-}" ]; then return 0; fi
    (cd "$repository" && cargo build --quiet --release --locked --package headway "${@/#/--package=}" --target-dir target) ||
        die "headway does not build; an older binary is not what the evidence would name"
}

# build_lab: also the lab, which starts headway, and the application of the SPECweb99-like load.
build_lab() {
    local program
    build_headway headway-lab-cli
    for program in "$headway_lab" "$application"; do
        [ -x "$program" ] || die "no $program; cargo build --release --package headway-lab-cli makes it"
    done
}

# ---- evidence -----------------------------------------------------------------------------------

# evidence_folder KIND LABEL OUTPUT: prints the folder, which is made.
evidence_folder() {
    local folder=$3
    if [ -z "$folder" ]; then folder=$repository/bench/runs/$(date +%F)-$2-$1; fi
    mkdir -p "$folder"
    echo "$folder"
}

# A label, not the host's name: runs are published.
default_label() { echo "$(nproc)core"; }

version_of() {
    case $1 in
        headway) git -C "$repository" describe --always --dirty 2>/dev/null || echo unknown ;;
        nginx) nginx -v 2>&1 | sed 's/.*nginx\///' ;;
        lighttpd) lighttpd -v | sed -n '1s/^lighttpd\/\([^ ]*\).*/\1/p' ;;
        h2o) h2o --version | sed -n '1s/h2o version //p' ;;
        caddy) caddy build-info | awk '$1 == "mod" { sub(/^v/, "", $3); print $3 }' ;;
        static-web-server) static-web-server --version | sed -n '1s/.* //p' ;;
        apache2|flashpache) apache2 -v | sed -n '1s/.*Apache\/\([^ ]*\).*/\1/p' ;;
        # It ends with 1 after saying its version.
        wrk) { wrk -v 2>&1 || true; } | sed -n '1s/^wrk \(debian\/\)\{0,1\}\([^ ]*\).*/\2/p' ;;
        oha) oha --version | sed 's/oha //' ;;
        k6) k6 version | sed -n '1s/^k6 v\{0,1\}\([^ ]*\).*/\1/p' ;;
        h2load) h2load --version | sed 's/.*\///' ;;
        perf) perf --version | sed 's/perf version //' ;;
        wget) wget --version | sed -n '1s/GNU Wget \([^ ]*\).*/\1/p' ;;
        httperf) httperf --version | sed -n 's/^httperf: httperf-\([^ ]*\).*/\1/p' ;;
        floor*|delay) echo "this repository" ;;
    esac
}

# Headway's is that of the tree it is built from; a binary that was given may be of another.
described() {
    if [ "$1" = headway-before ]; then echo "SHA-256 $(sha256sum "$HEADWAY_BEFORE" | cut -c 1-16)…"; return; fi
    if [[ $1 != headway?(-untraced) ]] || [ -z "${HEADWAY:-}" ]; then version_of "${1%-untraced}"; return; fi
    echo "a binary that was given, SHA-256 $(sha256sum "$headway" | cut -c 1-16)…; these scripts are of $(version_of headway)"
}

# environment_lines PROGRAM…: what a stranger needs to run it again.
environment_lines() {
    local program
    echo "- kernel: $(uname -sr), $(uname -m)"
    echo "- CPU: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores"
    echo "- memory: $(awk '/^MemTotal/ { printf "%.1f GiB", $2 / 1048576 }' /proc/meminfo)"
    echo "- system: $(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' /etc/os-release)"
    for program in "$@"; do echo "- $program: $(described "$program")"; done
}

# Functions for awk programs: the median and the spread of `n` values in `list`.
# shellcheck disable=SC2016
awk_statistics='
    function sorted(list, n,   i, j, v) {
        for (i = 2; i <= n; i++) { v = list[i]; for (j = i - 1; j > 0 && list[j] > v; j--) list[j + 1] = list[j]; list[j + 1] = v } }
    function median(list, n) { sorted(list, n); return n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2 }
    function number(v) { return v >= 100 ? sprintf("%.0f", v) : v >= 10 ? sprintf("%.1f", v) : sprintf("%.2f", v) }'
