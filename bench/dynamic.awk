# From the rows of bench/dynamic (part, case, round, measure, value) to tables and judged claims.
function sorted(list, n,   i, j, v) {
    for (i = 2; i <= n; i++) { v = list[i]; for (j = i - 1; j > 0 && list[j] > v; j--) list[j + 1] = list[j]; list[j + 1] = v }
}
function middle(list, n) { sorted(list, n); return n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2 }
function median_of(part, one, what,   list, n, i) {
    n = 0
    for (i = 1; i <= rounds[part]; i++) if ((part, one, i, what) in value) list[++n] = value[part, one, i, what] + 0
    return n ? middle(list, n) : "-"
}
# The median of the rounds' ratios: a drift of the machine is in both.
function ratio_of(part, one, other, what,   list, n, i) {
    n = 0
    for (i = 1; i <= rounds[part]; i++)
        if (value[part, other, i, what] > 0 && (part, one, i, what) in value) list[++n] = value[part, one, i, what] / value[part, other, i, what]
    return n ? middle(list, n) : "-"
}
function shown(number) {
    if (number == "-" || number == "") return "–"
    return number >= 100 ? sprintf("%.0f", number) : number >= 10 ? sprintf("%.1f", number) : sprintf("%.3g", number)
}
function judge(text, source, figure, holds) {
    claims = claims sprintf("| %s | %s | %s | %s |\n", text, source, shown(figure), figure == "-" || figure == "" ? "cannot be tested" : holds ? "holds" : "does not hold")
}
function named(interface) { return interface == "own" ? "built in" : interface == "fastcgi" ? "FastCGI" : interface == "pipe" ? "pipes" : interface }
function percent(name, call) { return total[name] > 0 && ((name, call) in time) ? sprintf("%.1f %%", 100 * time[name, call] / total[name]) : "–" }
NR == 1 { next }
{ value[$1, $2, $3, $4] = $5; has[$1] = 1; if ($3 > rounds[$1]) rounds[$1] = $3 }
END {
    if (has["spawn"]) {
        print "## Time to make a process, by invocation (Figure 2.5)\n"
        print "| tenth of the invocations | files open | cache, MB | spawner, µs | its call, traced, µs | in the server, µs | its call, traced, µs |"
        print "|--:|--:|--:|--:|--:|--:|--:|"
        last = rounds["spawn"]
        for (i = 1; i <= last; i++)
            printf "| %d | %s | %s | %s | %s | %s | %s |\n", i, shown(value["spawn", "helper", i, "files_open"] + 0), shown(value["spawn", "helper", i, "cache_mb"] + 0), \
                shown(value["spawn", "helper", i, "mean_us"]), shown(value["spawn", "helper", i, "call_us"]), \
                shown(value["spawn", "worker", i, "mean_us"]), shown(value["spawn", "worker", i, "call_us"])
        print "\nThe paper: 0.3 ms at first, towards 130 ms with the server's age, in the server; with the spawner the time is not affected by its size.\n"
        figure = value["spawn", "helper", 1, "mean_us"] > 0 ? value["spawn", "helper", last, "mean_us"] / value["spawn", "helper", 1, "mean_us"] : "-"
        judge("With the spawner the last tenth takes at most 1.5 times the first one's time", "section 2.5.4", figure, figure <= 1.5)
        figure = value["spawn", "worker", 1, "mean_us"] > 0 ? value["spawn", "worker", last, "mean_us"] / value["spawn", "worker", 1, "mean_us"] : "-"
        judge("In the server the last tenth takes at least twice the first one's time", "Figure 2.5; a worker takes its memory when it starts, so it may be slow from the beginning", figure, figure >= 2)
        figure = value["spawn", "helper", last, "mean_us"] > 0 && ("spawn", "worker", last, "mean_us") in value ? value["spawn", "worker", last, "mean_us"] / value["spawn", "helper", last, "mean_us"] : "-"
        judge("In the server it takes at last at least twice the spawner's time", "section 2.5.4", figure, figure >= 2)
    }
    if (has["mapped"]) {
        print "## Time to map a file, by invocation (Figure 2.6)\n"
        print "| tenth of the invocations | mmap, µs | mincore, µs | munmap, µs |"
        print "|--:|--:|--:|--:|"
        for (i = 1; i <= rounds["mapped"]; i++)
            printf "| %d | %s | %s | %s |\n", i, shown(value["mapped", "mmap", i, "mean_us"]), shown(value["mapped", "mincore", i, "mean_us"]), shown(value["mapped", "munmap", i, "mean_us"])
        printf "\nWindows mapped at the end: %s. The paper: the cost of mmap is significant and rises as the server runs, presumably because the map of the process is fragmented; Linux keeps it in a tree.\n\n", \
            shown(value["mapped", "all", 0, "windows"])
        figure = value["mapped", "mmap", 1, "mean_us"] > 0 ? value["mapped", "mmap", 10, "mean_us"] / value["mapped", "mmap", 1, "mean_us"] : "-"
        judge("The last tenth of mmap takes at least 1.5 times the first one's time", "Figure 2.6", figure, figure >= 1.5)
        figure = value["mapped", "mincore", 10, "mean_us"] > 0 ? (value["mapped", "mmap", 10, "mean_us"] + value["mapped", "munmap", 10, "mean_us"]) / value["mapped", "mincore", 10, "mean_us"] : "-"
        judge("Mapping and giving back takes longer than asking what of it is in memory", "section 2.5.4: mapping was the largest consumer", figure, figure > 1)
    }
    if (has["interfaces"]) {
        split("cgi pipe fastcgi direct own", list, " ")
        print "## One application by its interfaces (2.5.5)\n"
        print "| interface | requests/s | by FastCGI | CPU time per request, µs | errors |"
        print "|---|--:|--:|--:|--:|"
        for (i = 1; i <= 5; i++)
            if (median_of("interfaces", list[i], "requests_per_s") != "-") printf "| %s | %s | %s | %s | %s |\n", list[i] == "cgi" ? "CGI" : named(list[i]), shown(median_of("interfaces", list[i], "requests_per_s")), \
                shown(ratio_of("interfaces", list[i], "fastcgi", "requests_per_s")), shown(median_of("interfaces", list[i], "cpu_us")), \
                shown(median_of("interfaces", list[i], "errors"))
        print "\nThe paper: 20 % of all kernel time went into reading from programs; writing to clients themselves took the score from 620 to 710.\n"
        figure = ratio_of("interfaces", "direct", "fastcgi", "requests_per_s")
        judge("Direct programs answer at least 1.3 times as many requests as the same one behind FastCGI", "aim", figure, figure >= 1.3)
        figure = ratio_of("interfaces", "direct", "pipe", "requests_per_s")
        judge("Direct programs answer more requests than the same one by pipes", "section 2.5.5", figure, figure > 1)
        figure = ratio_of("interfaces", "direct", "fastcgi", "cpu_us")
        judge("Direct programs take less CPU time per request than FastCGI", "section 2.5.5", figure, figure < 1)
    }
    if (has["sizes"]) {
        n = split("class1_1 class1_9 class2_2 class2_9", list, " ")
        split("1 9 20 90", kb, " ")
        print "## The same by the length of the response\n"
        print "| kB | FastCGI, requests/s | direct by FastCGI | direct by pipes | CPU time per request, direct by FastCGI | errors |"
        print "|--:|--:|--:|--:|--:|--:|"
        for (i = 1; i <= n; i++) {
            direct = "direct " list[i]; fastcgi = "fastcgi " list[i]
            printf "| %s | %s | %s | %s | %s | %s |\n", kb[i], shown(median_of("sizes", fastcgi, "requests_per_s")), shown(ratio_of("sizes", direct, fastcgi, "requests_per_s")), \
                shown(ratio_of("sizes", direct, "pipe " list[i], "requests_per_s")), shown(ratio_of("sizes", direct, fastcgi, "cpu_us")), shown(median_of("sizes", direct, "errors"))
        }
        print ""
        figure = ratio_of("sizes", "direct class2_2", "fastcgi class2_2", "requests_per_s")
        judge("The same for a response of 20 kB: direct programs answer at least 1.3 times as many requests", "aim; the mean of SPECweb99 is 15 kB", figure, figure >= 1.3)
    }
    if (has["calls"]) {
        print "## The loop's time in system calls, with a program behind it (2.5.5)\n"
        print "| call | by pipes, share | direct, share |"
        print "|---|--:|--:|"
        n = split("pipe direct", list, " ")
        for (i = 1; i <= n; i++) for (key in value) {
            split(key, part, SUBSEP)
            if (part[1] != "calls" || part[2] != list[i] || part[4] ~ /^count_/) continue
            time[part[2], part[4]] = value[key]; total[part[2]] += value[key]; largest[part[4]] = largest[part[4]] > value[key] ? largest[part[4]] : value[key]
        }
        # The six on which either spends most.
        for (i = 1; i <= 6; i++) {
            best = ""
            for (call in largest) if (best == "" || largest[call] > largest[best]) best = call
            if (best == "") break
            delete largest[best]
            printf "| %s | %s | %s |\n", best, percent("pipe", best), percent("direct", best)
        }
        read = value["calls", "pipe", 0, "count_read_program"]; helper = value["calls", "pipe", 0, "count_recvmsg_helper"]
        printf "\nThe wait for events is left out. By pipes %s of the calls of `recvmsg` took responses, %s were for helpers. The paper: the one place where responses were read took 20 %% of all kernel time, of all processes of the server.\n\n", \
            shown(read), shown(helper)
        figure = total["pipe"] > 0 && read + helper > 0 ? time["pipe", "recvmsg"] / total["pipe"] * read / (read + helper) : "-"
        judge("By pipes the loop spends at least a tenth of its time in system calls on taking responses", "section 2.5.5: 20 % of all kernel time; half of it is asked for", figure, figure >= 0.1)
    }
    if (has["beside"]) {
        print "## Static requests beside dynamic ones\n"
        print "| beside them | timed requests/s | 99 %, µs | errors | failed of the others |"
        print "|---|--:|--:|--:|--:|"
        n = split("without own fastcgi direct pipe", list, " ")
        for (i = 1; i <= n; i++) {
            if (median_of("beside", list[i], "p99_us") == "-") continue
            printf "| %s | %s | %s | %s | %s |\n", i == 1 ? "static requests" : "dynamic ones, 30 % of all: " named(list[i]), shown(median_of("beside", list[i], "rate_rps")), \
                shown(median_of("beside", list[i], "p99_us")), shown(median_of("beside", list[i], "errors")), shown(median_of("beside", list[i], "beside_failed"))
            if (i == 1) continue
            figure = ratio_of("beside", list[i], "without", "p99_us")
            judge("With 30 % dynamic requests, " named(list[i]) ", the static 99th percentile is at most 1.2 times that of static ones alone, at the same rate", "aim", figure, figure <= 1.2)
        }
        print ""
    }
    if (("loop", "interfaces", 0, "blocked") in value) {
        figure = value["loop", "interfaces", 0, "blocked"]
        judge("The loop never waits but for events, whatever the interface", "aim", figure, figure == 0)
    }
    if (("loop", "helper", 0, "blocked") in value) {
        figure = value["loop", "helper", 0, "blocked"]
        judge("The loop never waits but for events while the spawner makes processes", "aim", figure, figure == 0)
    }
    print "## Claims\n"
    print "| claim | source | figure | verdict |"
    print "|---|---|--:|---|"
    printf "%s", claims
}
