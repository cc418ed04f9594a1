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

function speed(part, title, metric, unit, up, others, names,   i, j, k, c, s, n, list, head, line) {
    if (!case_count[part]) return
    print "## " title "\n"
    n = split(others, list, " "); split(names, head, "|")
    for (i = 1; i <= case_count[part]; i++) {
        c = cases[part, i]
        print "### " (c ~ /^[0-9]+$/ ? c " bytes" : c) "\n"
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
    print "The client's lag is a part of these times that no server causes. A turn of Headway's loop includes preemptions;"
    print "its longest is below the given time. Turns, stages and blocked calls are the highest of all rounds. A stage is one"
    print "that took longer than during the start of its server.\n"
    for (i = 1; i <= case_count["storm"]; i++) {
        c = cases["storm", i]; it = c; sub(/:/, ", ", it)
        print "### " it " new handshakes/s\n"
        print "| server | p99 µs | min–max | calm µs | ÷ calm | p50 µs | max µs | errors | client lag p99 µs | new done | failed | new p99 µs | core busy % | turn below µs | longest stage µs | blocked |"
        print "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
        for (j = 1; j <= server_count["storm", c]; j++) {
            s = servers["storm", c, j]
            it = calm(c, s)
            line = "| " s " | " middle("storm", c, s, "p99_us"); p99 = m
            line = line " | " spread("storm", c, s, "p99_us") " | " (it ? show(it) : "–") " | " (it ? sprintf("%.1f", p99 / it) : "–")
            line = line " | " middle("storm", c, s, "p50_us") " | " highest("storm", c, s, "max_us") " | " highest("storm", c, s, "errors")
            line = line " | " middle("storm", c, s, "client_lag_p99_us") " | " middle("storm", c, s, "new_done") " | " highest("storm", c, s, "new_failed")
            line = line " | " middle("storm", c, s, "new_p99_us") " | " middle("storm", c, s, "server_core_busy") " | " highest("storm", c, s, "turn_below_us")
            print line " | " longest(c, s) " | " highest("storm", c, s, "blocked") " |"
        }
        best("storm", c, "p99_us", 0)
    }
}

END {
    speed("throughput", "As fast as it goes (wrk, 1 thread, 64 keep-alive connections, ECDSA P-256)", "requests_per_s", "requests/s", 1,
        "cpu_us p99_us server_core_busy client_core_busy errors", "CPU µs/request|p99 µs|server core busy %|client core busy %|errors")
    speed("paced", "CPU time per request at an equal rate (h2load --h1, 64 connections)", "cpu_us", "CPU µs/request", 0,
        "requests_per_s server_core_busy errors", "requests/s|server core busy %|errors")
    speed("handshakes", "CPU time per new connection with one request, of all processes of the server", "cpu_us", "CPU µs/connection", 0,
        "done resumed failed p50_us p99_us server_core_busy", "done|resumed|failed|p50 µs|p99 µs|server core busy %")
    storms()
}
