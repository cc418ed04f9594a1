# From the rows of bench/score to tables and judged claims. The first file has the rows' words, the second the measurements.
function sorted(list, n,   i, j, v) {
    for (i = 2; i <= n; i++) { v = list[i]; for (j = i - 1; j > 0 && list[j] > v; j--) list[j + 1] = list[j]; list[j + 1] = v }
}
function median_of(row, column,   list, n, i) {
    n = 0
    for (i = 1; i <= count[row]; i++) if (value[row, i, column] != "-" && value[row, i, column] != "") list[++n] = value[row, i, column] + 0
    if (!n) return "-"
    sorted(list, n)
    return n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2
}
# 70 % of the requests are static.
function mean_of(row,   static, dynamic) {
    static = median_of(row, 6); dynamic = median_of(row, 9)
    return known(static) && known(dynamic) ? 0.7 * static + 0.3 * dynamic : "-"
}
function shown(number) {
    if (number == "-" || number == "") return "–"
    return number >= 100 ? sprintf("%.0f", number) : number >= 10 ? sprintf("%.1f", number) : sprintf("%.3g", number)
}
# The median with the least and the most of all rounds.
function with_range(row, column,   i, v, low, high, middle) {
    middle = median_of(row, column)
    if (middle == "-") return shown(middle)
    low = ""
    for (i = 1; i <= count[row]; i++) {
        v = value[row, i, column]
        if (v == "-" || v == "") continue
        if (low == "" || v + 0 < low) low = v + 0
        if (high == "" || v + 0 > high) high = v + 0
    }
    return low == high ? shown(middle) : shown(middle) " (" shown(low) "–" shown(high) ")"
}
# Whether in every round one row has at least this multiple of the score of another. One round that disagrees may be chance.
function in_every_round(row, factor, other,   i) {
    for (i = 1; i <= count[row] && i <= count[other]; i++) {
        if (!known(value[row, i, 3]) || value[other, i, 3] == "-") return 0
        if (value[row, i, 3] + 0 < factor * value[other, i, 3]) return 0
    }
    return 1
}
function known(number) { return number != "-" && number > 0 }
# A claim with the rule that decides it. One or two rounds decide nothing: what differs from one to the next is not seen.
function judge(text, source, can, holds, figures,   verdict) {
    verdict = !can ? "cannot be tested: a row is missing" : least < 3 ? "inconclusive: fewer than three rounds" : holds ? "confirmed" : "not confirmed"
    printf "| %s | %s | %s | %s |\n", text, source, figures, verdict
}
FNR == NR { order[++rows] = $1; paper[$1] = $2; words[$1] = $3; gsub(";", ",", words[$1]); next }
FNR == 1 { next }
{ n = ++count[$2]; for (i = 3; i <= NF; i++) value[$2, n, i] = $i }
END {
    searched = connections == 0
    # The rounds of the row that has the fewest.
    least = count[order[1]]
    for (i = 2; i <= rows; i++) if (count[order[i]] < least) least = count[order[i]]
    print "## " (searched ? "Connections held" : "Connections that conform") " (Figure 2.8)"
    print ""
    print "| row | paper | here | by the first row | of the paper |"
    print "|---|--:|--:|--:|--:|"
    base = median_of(order[1], 3)
    for (i = 1; i <= rows; i++) {
        row = order[i]; score[row] = median_of(row, 3)
        printf "| %s | %s | %s | %s | %s |\n", words[row], paper[row] == "-" ? "–" : paper[row], with_range(row, 3), \
            known(base) && known(score[row]) ? sprintf("%.2f", score[row] / base) : "–", \
            paper[row] == "-" || paper[order[1]] == "-" ? "–" : sprintf("%.2f", paper[row] / paper[order[1]])
    }
    print ""
    print "## First byte, ms: static and dynamic apart (Table 2.6)"
    print ""
    print "| row | static 5 % | 50 % | 95 % | mean | dynamic 5 % | 50 % | 95 % | mean | CGI mean | loop blocked |"
    print "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    print "| the paper's new server, 300 connections | 0.51 | 1.45 | 59.8 | 9.92 | 0.99 | 2.83 | 91.3 | 12.2 | – | – |"
    for (i = 1; i <= rows; i++) {
        row = order[i]
        printf "| %s |", words[row]
        n = split("13 4 5 6 14 7 8 9 10 11", columns, " ")
        for (j = 1; j <= n; j++) printf " %s |", shown(median_of(row, columns[j]))
        print ""
    }
    print ""
    if (!searched) print "Figure 2.10: the cumulative curves of all requests are in report.html. The paper: the new server's mean is a quarter of the old one's.\n"
    helpers = split("helpers-1 helpers-5 helpers-10 helpers-15", rowed, " ")
    for (i = 1; i <= helpers; i++) some = some || (rowed[i] in words)
    if (some) {
        split("114 295 339 394", paper_blocked, " "); split("40.9 95.1 96.9 89.5", paper_share, " ")
        print "## Helpers (Table 2.9)"
        print ""
        print "| row | sleeps of the loop: paper | here | conforming, %: paper | here |"
        print "|---|--:|--:|--:|--:|"
        for (i = 1; i <= helpers; i++) {
            if (!(rowed[i] in words)) continue
            share[i] = searched || !known(score[rowed[i]]) ? "-" : 100 * score[rowed[i]] / connections
            printf "| %s | %s | %s | %s | %s |\n", words[rowed[i]], paper_blocked[i], shown(median_of(rowed[i], 11)), paper_share[i], shown(share[i])
        }
        print ""
    }
    print "## Claims"
    print ""
    print "| claim | source | figures | verdict |"
    print "|---|---|---|---|"
    first = score["step-1"]; last = score["step-8"]
    # A score is what was searched; rows that were not asked for are no claims.
    if (searched && ("step-1" in words) && ("step-8" in words)) judge("All steps together at least double the score (half of the paper's factor)", "Figure 2.8: 200 to 820", \
        known(first) && last != "-" && last != "", in_every_round("step-8", 2, "step-1"), shown(first) " → " shown(last))
    if (searched && ("step-1" in words) && ("headway" in words)) judge("Headway holds at least 2.5 times as many connections as the first step", "aim; the paper's factor is 4.1", \
        known(first) && known(score["headway"]), in_every_round("headway", 2.5, "step-1"), shown(first) " → " shown(score["headway"]))
    steps = split("step-1 step-3 step-4 step-5 step-6 step-7 step-8", list, " ")
    for (i = 2; i <= steps; i++) {
        # The paper's third step was lower than its second, which is the kernel's.
        if (list[i] == "step-3") continue
        if (!searched || !(list[i - 1] in words) || !(list[i] in words)) continue
        before = score[list[i - 1]]; after = score[list[i]]
        judge("Not lower than the step before, or by less than 5 %: " words[list[i]], "Figure 2.8: " paper[list[i - 1]] " to " paper[list[i]], \
            known(before) && known(after), in_every_round(list[i], 0.95, list[i - 1]), shown(before) " → " shown(after))
    }
    if (some) {
        judge("Ten helpers have at least 1.2 times as many connections conform as one", "Table 2.9: 96.9 and 40.9 %; half of the factor is asked for", \
            known(share[1]) && known(share[3]), share[3] >= 1.2 * share[1], shown(share[1]) " → " shown(share[3]) " %")
        judge("Fifteen helpers have at least 3 % fewer connections conform than ten", "Table 2.9: 89.5 and 96.9 %", \
            known(share[3]) && known(share[4]), share[4] <= 0.97 * share[3], shown(share[3]) " → " shown(share[4]) " %")
        few = median_of("helpers-1", 11); many = median_of("helpers-15", 11)
        judge("The loop sleeps at least 1.5 times as often with fifteen helpers as with one", "Table 2.9: 394 and 114 times", \
            few != "-" && many != "-", many >= 1.5 * few && many > 0, shown(few) " → " shown(many))
    }
    if (!searched && ("step-1" in words) && ("step-8" in words)) {
        old = mean_of("step-1"); new = mean_of("step-8")
        judge("The mean time to the first byte falls at least to half from the first to the last step", "2.6.1: to a quarter; half of the factor is asked for", \
            known(old) && known(new), 2 * new <= old, shown(old) " → " shown(new) " ms")
    }
    best = 0; peers = split("apache nginx lighttpd", list, " ")
    for (i = 1; i <= peers; i++) if (score[list[i]] != "" && score[list[i]] != "-" && score[list[i]] > best) { best = score[list[i]]; who = list[i] }
    ours = score["headway"]
    if (searched && ("headway" in words)) judge("Headway holds at least 1.3 times as many connections as the best other server", "aim", \
        best > 0 && known(ours), in_every_round("headway", 1.3, who), shown(ours) " against " shown(best) " (" who ")")
    if (("headway-fastcgi" in words) && ("nginx" in words)) judge("Headway before FastCGI processes has at least 0.95 of the connections of nginx before the same", "aim", \
        known(score["headway-fastcgi"]) && known(score["nginx"]), in_every_round("headway-fastcgi", 0.95, "nginx"), shown(score["headway-fastcgi"]) " against " shown(score["nginx"]))
    static = median_of("headway", 4); dynamic = median_of("headway", 7)
    if ("headway" in words) judge("The median time to the first byte of dynamic requests is at least 1.2 times that of static ones", "Table 2.6: 2.83 and 1.45 ms", \
        known(static) && known(dynamic), dynamic >= 1.2 * static, shown(dynamic) " and " shown(static) " ms")
    # One sleep in one round of one row is too many.
    blocked = "-"
    for (row in words) if (row ~ /^headway/) for (i = 1; i <= count[row]; i++) if (value[row, i, 11] != "-" && value[row, i, 11] != "") blocked = (blocked == "-" ? 0 : blocked) + value[row, i, 11]
    if (blocked != "-") judge("Headway's loop never waits but for events, in any round and by any interface", "aim", least > 0, blocked == 0, shown(blocked) " sleeps")
}
