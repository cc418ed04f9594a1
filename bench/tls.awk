# Turns raw.csv of bench/tls into tables (Markdown). Figures are medians of the rounds. A ratio is taken within each round,
# then its median: the runs of one round saw the same machine.
function sorted(list, n,   i, j, v) {
    for (i = 2; i <= n; i++) { v = list[i]; for (j = i - 1; j > 0 && list[j] > v; j--) list[j + 1] = list[j]; list[j + 1] = v }
}
function median(list, n) { sorted(list, n); return n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2 }
function show(v) { return v >= 100 || v == int(v) ? sprintf("%.0f", v) : v >= 10 ? sprintf("%.1f", v) : sprintf("%.2f", v) }

# Fills m, low and high for one metric of one server; false if there is none.
function column(part, case_name, server, metric,   r, n, list) {
    n = 0
    for (r = 1; r <= last; r++) if ((part, case_name, server, metric, r) in value) list[++n] = value[part, case_name, server, metric, r] + 0
    m = n ? median(list, n) : 0; low = n ? list[1] : 0; high = n ? list[n] : 0
    return n
}
function middle(part, c, s, metric) { return column(part, c, s, metric) ? show(m) : "–" }
function highest(part, c, s, metric) { return column(part, c, s, metric) ? show(high) : "–" }
function spread(part, c, s, metric) { return column(part, c, s, metric) ? show(low) "–" show(high) : "–" }

function ratio(part, c, one, other, metric,   r, n, list, x) {
    n = 0
    for (r = 1; r <= last; r++) {
        if (!((part, c, one, metric, r) in value) || !((part, c, other, metric, r) in value)) continue
        x = value[part, c, other, metric, r]
        if (x > 0) list[++n] = value[part, c, one, metric, r] / x
    }
    if (!n) return "–"
    x = median(list, n)
    ratio_spread = show(list[1]) "–" show(list[n])
    return sprintf("%.2f", x)
}

FNR == 1 { next }
{
    value[$1, $2, $4, $5, $3] = $6
    if ($3 > last) last = $3
    if (!(($1, $2) in case_seen)) { case_seen[$1, $2]; cases[$1, ++case_count[$1]] = $2 }
    if (!(($1, $2, $4) in server_seen)) { server_seen[$1, $2, $4]; servers[$1, $2, ++server_count[$1, $2]] = $4 }
}

# Headway beside the peer that is best by this metric; up is 1 if more is better.
function best(part, c, metric, up,   j, s, name, it) {
    name = ""
    for (j = 1; j <= server_count[part, c]; j++) {
        s = servers[part, c, j]
        if (s ~ /^headway/ || !column(part, c, s, metric)) continue
        if (name == "" || (up ? m > it : m < it)) { name = s; it = m }
    }
    if (name == "" || !column(part, c, "headway", metric)) { print ""; return }
    s = ratio(part, c, "headway", name, metric)
    print "\nheadway ÷ best peer (" name "): " s " (" ratio_spread ").\n"
}

# A number of bytes, maybe with a number of streams, or a kind of handshake.
function title_of(c,   field) {
    if (c !~ /^[0-9]/) return c
    split(c, field, ":")
    return field[1] " bytes" (field[2] == "" ? "" : field[2] == 1 ? ", 1 stream" : ", " field[2] " streams")
}

function speed(part, title, metric, unit, up, others, names,   i, j, k, c, s, n, list, head, line) {
    if (!case_count[part]) return
    print "## " title "\n"
    n = split(others, list, " "); split(names, head, "|")
    for (i = 1; i <= case_count[part]; i++) {
        c = cases[part, i]
        print "### " title_of(c) "\n"
        line = "| server | " unit " | min–max | headway ÷ it"
        for (k = 1; k <= n; k++) line = line " | " head[k]
        print line " |"
        line = "|---|--:|--:|--:"
        for (k = 1; k <= n; k++) line = line "|--:"
        print line "|"
        for (j = 1; j <= server_count[part, c]; j++) {
            s = servers[part, c, j]
            line = "| " s " | " middle(part, c, s, metric) " | " spread(part, c, s, metric) " | " ratio(part, c, "headway", s, metric)
            for (k = 1; k <= n; k++) line = line " | " (list[k] ~ /^(errors|failed)$/ ? highest(part, c, s, list[k]) : middle(part, c, s, list[k]))
            print line " |"
        }
        best(part, c, metric, up)
    }
}

# The longest stage of all rounds, with its name.
function longest(c, s,   r, it) {
    it = 0
    for (r = 1; r <= last; r++) if (value["storm", c, s, "stage_us", r] + 0 > it) { it = value["storm", c, s, "stage_us", r] + 0; stage_name = value["storm", c, s, "stage", r] }
    return it ? show(it) " " stage_name : "–"
}

# p99 of the same server without a storm, with the same key or else another one.
function calm(c, s,   key, i) {
    key = c; sub(/:.*/, "", key)
    if (column("storm", key ":0", s, "p99_us")) return m
    for (i = 1; i <= case_count["storm"]; i++) if (cases["storm", i] ~ /:0$/ && column("storm", cases["storm", i], s, "p99_us")) return m
    return 0
}

function storms(   i, j, c, s, it, line, p99) {
    if (!case_count["storm"]) return
    print "## Established connections in a storm of handshakes\n"
    print "Times of requests on established connections count from their intended start. Calm is the p99 without new connections."
    print "The shift is the difference to it."
    print "The client's lag is a part of these times which no server causes. A turn of Headway's loop includes preemptions."
    print "All turns are shorter than the given time. Turns, stages and blocked calls are the highest of all rounds. A stage is only"
    print "shown if it took longer than all stages during the start of the server.\n"
    for (i = 1; i <= case_count["storm"]; i++) {
        c = cases["storm", i]; it = c; sub(/:/, ", ", it)
        print "### " it " new handshakes/s\n"
        print "| server | p99 µs | min–max | calm µs | shift µs | ÷ calm | p50 µs | max µs | errors | client lag p99 µs | new done | failed | new p99 µs | core busy % | turn below µs | longest stage µs | blocked |"
        print "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
        for (j = 1; j <= server_count["storm", c]; j++) {
            s = servers["storm", c, j]
            it = calm(c, s)
            line = "| " s " | " middle("storm", c, s, "p99_us"); p99 = m
            line = line " | " spread("storm", c, s, "p99_us") " | " (it ? show(it) : "–") " | " (it ? show(p99 - it) : "–") " | " (it ? sprintf("%.1f", p99 / it) : "–")
            line = line " | " middle("storm", c, s, "p50_us") " | " highest("storm", c, s, "max_us") " | " highest("storm", c, s, "errors")
            line = line " | " middle("storm", c, s, "client_lag_p99_us") " | " middle("storm", c, s, "new_done") " | " highest("storm", c, s, "new_failed")
            line = line " | " middle("storm", c, s, "new_p99_us") " | " middle("storm", c, s, "server_core_busy") " | " highest("storm", c, s, "turn_below_us")
            print line " | " longest(c, s) " | " highest("storm", c, s, "blocked") " |"
        }
        best("storm", c, "p99_us", 0)
    }
}

# process ÷ inline, of one metric.
function beside_inline(c, metric) { return ratio("study", c, "headway", "headway-inline", metric) }

function study(   i, j, c, s, field, line) {
    if (!case_count["study"]) return
    print "## Handshakes in a process or inline\n"
    print "2,000 requests/s on 50 established connections beside 200 new connections/s: p99, longest turn, blocked calls. Then CPU time per"
    print "new connection at a higher rate, of all processes. All processes of the server share its core. Ratios are process ÷ inline."
    print "A turn includes preemptions; its longest is below the given time.\n"
    print "| key | connections | workers | handshakes | CPU µs/connection | ratio | p99 µs of established | min–max | ratio | max µs | new p99 µs | turn below µs | blocked | failed |"
    print "|---|---|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    for (i = 1; i <= case_count["study"]; i++) {
        c = cases["study", i]; split(c, field, ":")
        for (j = 1; j <= server_count["study", c]; j++) {
            s = servers["study", c, j]
            line = "| " field[1] " | " field[2] " | " field[3] " | " (s == "headway" ? "process" : "inline")
            line = line " | " middle("study", c, s, "cpu_us") " | " (s == "headway" ? beside_inline(c, "cpu_us") : "")
            line = line " | " middle("study", c, s, "p99_us") " | " spread("study", c, s, "p99_us") " | " (s == "headway" ? beside_inline(c, "p99_us") : "")
            line = line " | " highest("study", c, s, "max_us") " | " middle("study", c, s, "new_p99_us") " | " highest("study", c, s, "turn_below_us")
            print line " | " highest("study", c, s, "blocked") " | " highest("study", c, s, "new_failed") " |"
        }
    }
    decision()
}

# What the figures say about the default: a process is for the longest turn, and costs CPU time.
function decision(   i, c, n, process, cpu, costs, p99, better, list, turns) {
    for (i = 1; i <= case_count["study"]; i++) {
        c = cases["study", i]
        cpu = beside_inline(c, "cpu_us"); p99 = beside_inline(c, "p99_us")
        if (cpu == "–" || p99 == "–") continue
        costs[++n] = cpu; list[n] = p99
        if (p99 < 1) better++
        column("study", c, "headway", "turn_below_us"); process = high
        column("study", c, "headway-inline", "turn_below_us"); if (high > process) turns++
    }
    if (!n) return
    print "\nOf " n " cases, the p99 of established connections is lower with a process in " better + 0 ", and the longest turn is shorter in " turns + 0 "."
    cpu = sprintf("%.2f", median(costs, n)); p99 = sprintf("%.2f", median(list, n))
    print "Median of the ratios, process ÷ inline: CPU time " cpu " (" sprintf("%.2f–%.2f", costs[1], costs[n]) "), p99 " p99 " (" sprintf("%.2f–%.2f", list[1], list[n]) ").\n"
    if (2 * turns > n) print "So the default is `process`: its turns are shorter, and no worker has a private key. Its price is the CPU time above."
    else print "So speed is no reason for a process. The default is `process` because then no worker has a private key."
    print ""
}

END {
    speed("throughput", "As fast as it goes (wrk, 1 thread, 64 keep-alive connections, ECDSA P-256)", "requests_per_s", "requests/s", 1,
        "cpu_us p99_us server_core_busy client_core_busy errors", "CPU µs/request|p99 µs|server core busy %|client core busy %|errors")
    speed("paced", "CPU time per request at an equal rate (h2load --h1, 64 connections)", "cpu_us", "CPU µs/request", 0,
        "requests_per_s server_core_busy errors", "requests/s|server core busy %|errors")
    speed("handshakes", "CPU time per new connection with one request, of all processes of the server", "cpu_us", "CPU µs/connection", 0,
        "done resumed failed p50_us p99_us server_core_busy", "done|resumed|failed|p50 µs|p99 µs|server core busy %")
    speed("http2", "HTTP/2 as fast as it goes (h2load, 1 thread, 16 connections, ECDSA P-256)", "requests_per_s", "requests/s", 1,
        "cpu_us server_core_busy client_core_busy errors", "CPU µs/request|server core busy %|client core busy %|errors")
    speed("http2-paced", "HTTP/2: CPU time per request at an equal rate (h2load, 16 connections)", "cpu_us", "CPU µs/request", 0,
        "requests_per_s server_core_busy client_core_busy errors", "requests/s|server core busy %|client core busy %|errors")
    speed("inversion", "Service inversion between streams: 0 is the order of sizes (headway load, 4 connections, SPECweb99's sizes)", "value", "inversion", 0,
        "achieved_rps p50_us p99_us errors of_random", "requests/s|p50 µs|p99 µs|errors|÷ a random order")
    storms()
    study()
}
