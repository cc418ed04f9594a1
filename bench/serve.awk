# Turns raw.csv of bench/serve into tables (Markdown), or with -v json=1 into summary.json.
# A ratio is taken within each round, then the median of the ratios: the two runs of one round
# saw the same machine, medians of different rounds may not have. -v compared=NAME is the server whose ratios are shown.
BEGIN { if (compared == "") compared = "headway" }
function sorted(list, n,   i, j, v) {
    for (i = 2; i <= n; i++) { v = list[i]; for (j = i - 1; j > 0 && list[j] > v; j--) list[j + 1] = list[j]; list[j + 1] = v }
}
function median(list, n) { sorted(list, n); return n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2 }
function show(v) { return v >= 100 ? sprintf("%.0f", v) : v >= 10 ? sprintf("%.1f", v) : sprintf("%.2f", v) }

# Fills m, low and high for one column of one server.
function column(table, part, case_name, server,   r, n, list) {
    n = 0
    for (r = 1; r <= last; r++) if ((part, case_name, server, r) in table) list[++n] = table[part, case_name, server, r]
    m = n ? median(list, n) : 0; low = n ? list[1] : 0; high = n ? list[n] : 0
    return n
}

function ratio(table, part, case_name, server,   r, n, list, ours) {
    for (r = 1; r <= last; r++) {
        if (!((part, case_name, compared, r) in table) || !((part, case_name, server, r) in table)) continue
        ours = table[part, case_name, compared, r]
        if (table[part, case_name, server, r] > 0) list[++n] = ours / table[part, case_name, server, r]
    }
    return n ? show(median(list, n)) : "–"
}

function title(case_name) { return case_name == "close" ? "500 bytes, one request a connection" : case_name " bytes, 64 keep-alive connections" }
function plain(server) { sub(/-close$/, "", server); return server }

FNR == 1 { next }
{
    part = $1; key = $1 SUBSEP $2 SUBSEP $4 SUBSEP $3
    rate[key] = $5; p50[key] = $6; p99[key] = $7; busy_server[key] = $8; busy_client[key] = $9; cpu[key] = $10; errors[key] = $11
    if ($3 > last) last = $3
    if (!(($1, $2) in case_seen)) { case_seen[$1, $2]; cases[$1, ++case_count[$1]] = $2 }
    # In the order of the first round, which is the order of the command line.
    if (!(($1, $2, $4) in server_seen)) { server_seen[$1, $2, $4]; servers[$1, $2, ++server_count[$1, $2]] = $4 }
}

function table_of(part,   i, j, c, s) {
    for (i = 1; i <= case_count[part]; i++) {
        c = cases[part, i]
        print "### " title(c) "\n"
        if (part == "throughput") {
            print "| server | requests/s | min–max | " compared " ÷ it | p50 µs | p99 µs | server core busy % | client core busy % | CPU µs/request | errors |"
            print "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
        } else {
            print "| server | CPU µs/request | min–max | " compared " ÷ it | requests/s | server core busy % | client core busy % | failed |"
            print "|---|--:|--:|--:|--:|--:|--:|--:|"
        }
        for (j = 1; j <= server_count[part, c]; j++) row(part, c, servers[part, c, j])
        print ""
    }
}

function row(part, c, s,   line) {
    if (part == "throughput") {
        column(rate, part, c, s); line = "| " plain(s) " | " show(m) " | " show(low) "–" show(high) " | " ratio(rate, part, c, s)
        column(p50, part, c, s); line = line " | " show(m); column(p99, part, c, s); line = line " | " show(m)
    } else {
        column(cpu, part, c, s); line = "| " plain(s) " | " show(m) " | " show(low) "–" show(high) " | " ratio(cpu, part, c, s)
        column(rate, part, c, s); line = line " | " show(m)
    }
    column(busy_server, part, c, s); line = line " | " show(m); column(busy_client, part, c, s); line = line " | " show(m)
    if (part == "throughput") { column(cpu, part, c, s); line = line " | " show(m) }
    column(errors, part, c, s); print line " | " sprintf("%d", high) " |"
}

function as_json(   p, i, j, c, s, parts, comma) {
    parts[1] = "throughput"; parts[2] = "paced"; comma = ""
    print "["
    for (p = 1; p <= 2; p++) for (i = 1; i <= case_count[parts[p]]; i++) {
        c = cases[parts[p], i]
        for (j = 1; j <= server_count[parts[p], c]; j++) {
            s = servers[parts[p], c, j]
            column(rate, parts[p], c, s)
            printf "%s  {\"part\": \"%s\", \"case\": \"%s\", \"server\": \"%s\", \"requests_per_s\": %s, \"min\": %s, \"max\": %s", comma, parts[p], c, plain(s), m, low, high
            column(cpu, parts[p], c, s); printf ", \"cpu_us_per_request\": %s", m
            column(busy_server, parts[p], c, s); printf ", \"server_core_busy\": %s", m
            column(busy_client, parts[p], c, s); printf ", \"client_core_busy\": %s}", m
            comma = ",\n"
        }
    }
    print "\n]"
}

END {
    if (json) { as_json(); exit }
    print "## (a) As fast as it goes (wrk, 1 thread, 64 connections)\n"
    print "Where the client's core is the busier one, the client is the limit and the ratio is too small."
    print "\"" compared " ÷ it\" is the median of the ratios of each round; above 1 " compared " is faster.\n"
    table_of("throughput")
    print "## (b) CPU time per request at an equal rate (h2load, 64 clients)\n"
    print "User and system time of all processes of the server, over the requests answered, at half the rate of the"
    print "slowest server. Below 1 " compared " is cheaper. On loopback the kernel charges its network work to the"
    print "process which happens to run it: a send also carries the packet through the receiver's half of TCP. So each"
    print "side has some of the other's work. That adds about the same to every server, and makes ratios milder.\n"
    table_of("paced")
}
