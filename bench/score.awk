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
function shown(number) {
    if (number == "-" || number == "") return "–"
    return number >= 100 ? sprintf("%.0f", number) : number >= 10 ? sprintf("%.1f", number) : sprintf("%.3g", number)
}
function known(number) { return number != "-" && number > 0 }
# A claim with the rule that decides it: holds, does not hold, or cannot be tested.
function judge(text, source, can, holds, figures) {
    printf "| %s | %s | %s | %s |\n", text, source, figures, can ? (holds ? "holds" : "does not hold") : "cannot be tested: a row is missing"
}
FNR == NR { order[++rows] = $1; paper[$1] = $2; words[$1] = $3; gsub(";", ",", words[$1]); next }
FNR == 1 { next }
{ n = ++count[$2]; for (i = 3; i <= NF; i++) value[$2, n, i] = $i }
END {
    print "## " (searched ? "Connections held" : "Connections that conform") " (Figure 2.8)"
    print ""
    print "| row | paper | here | by the first row | of the paper |"
    print "|---|--:|--:|--:|--:|"
    base = median_of(order[1], 3)
    for (i = 1; i <= rows; i++) {
        row = order[i]; score[row] = median_of(row, 3)
        printf "| %s | %s | %s | %s | %s |\n", words[row], paper[row] == "-" ? "–" : paper[row], shown(score[row]), \
            known(base) && known(score[row]) ? sprintf("%.2f", score[row] / base) : "–", \
            paper[row] == "-" || paper[order[1]] == "-" ? "–" : sprintf("%.2f", paper[row] / paper[order[1]])
    }
    print ""
    print "## First byte, ms: static and dynamic apart (Table 2.6)"
    print ""
    print "| row | static 50 % | 95 % | mean | dynamic 50 % | 95 % | mean | CGI mean | loop blocked |"
    print "|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    print "| the paper's new server, 300 connections | 1.45 | 59.8 | 9.92 | 2.83 | 91.3 | 12.2 | – | – |"
    for (i = 1; i <= rows; i++) {
        row = order[i]
        printf "| %s |", words[row]
        for (column = 4; column <= 11; column++) printf " %s |", shown(median_of(row, column))
        print ""
    }
    print ""
    print "## Claims"
    print ""
    print "| claim | source | figures | verdict |"
    print "|---|---|---|---|"
    first = score["step-1"]; last = score["step-8"]
    judge("All steps together at least double the score (half of the paper's factor)", "Figure 2.8: 200 to 820", \
        known(first) && last != "-" && last != "", last >= 2 * first, shown(first) " → " shown(last))
    steps = split("step-1 step-4 step-5 step-6 step-7 step-8", list, " ")
    for (i = 2; i <= steps; i++) {
        before = score[list[i - 1]]; after = score[list[i]]
        judge("Not lower than the step before: " words[list[i]], "Figure 2.8: " paper[list[i - 1]] " to " paper[list[i]], \
            known(before) && known(after), after >= before, shown(before) " → " shown(after))
    }
    best = 0; peers = split("apache nginx lighttpd", list, " ")
    for (i = 1; i <= peers; i++) if (score[list[i]] != "" && score[list[i]] != "-" && score[list[i]] > best) { best = score[list[i]]; who = list[i] }
    ours = score["headway"]
    judge("Headway holds at least 1.3 times as many connections as the best other server", "aim", \
        best > 0 && known(ours), ours >= 1.3 * best, shown(ours) " against " shown(best) " (" who ")")
    static = median_of("headway", 4); dynamic = median_of("headway", 7)
    judge("Dynamic requests take longer to their first byte than static ones, in the median", "Table 2.6: 2.83 and 1.45 ms", \
        known(static) && known(dynamic), dynamic > static, shown(dynamic) " and " shown(static) " ms")
    blocked = median_of("headway", 11)
    judge("Headway's loop never waits but for events", "aim", blocked != "-", blocked == 0, shown(blocked) " sleeps")
}
