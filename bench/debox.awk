# Turns `case,round,column,value` into a table: the base as it is, every other column as the difference to the base
# of the same round, median and spread. Behind awk_statistics of lib.sh; -v unit=…, -v aim="column:value …".
FNR == 1 { next }
{
    value[$1, $2, $3] = $4
    if (!($1 in case_seen)) { case_seen[$1]; cases[++case_count] = $1 }
    if (!($3 in column_seen)) { column_seen[$3]; columns[++column_count] = $3 }
    if ($2 > last) last = $2
}
# Fills `list` with the values of a column, or with its differences to the base.
function gather(name, column, difference,   r, n) {
    n = 0
    for (r = 1; r <= last; r++) {
        if (!((name, r, column) in value) || !((name, r, "base") in value)) continue
        list[++n] = value[name, r, column] - (difference ? value[name, r, "base"] : 0)
    }
    return n
}
function signed(v) { return (v < 0 ? "−" number(-v) : "+" number(v)) }
END {
    printf "| %s | base |", unit
    for (c = 1; c <= column_count; c++) if (columns[c] != "base") printf " %s |", columns[c]
    printf "\n|---|--:|"
    for (c = 1; c < column_count; c++) printf "--:|"
    print ""
    for (i = 1; i <= case_count; i++) {
        n = gather(cases[i], "base", 0); base = median(list, n)
        printf "| %s | %s (%s–%s) |", cases[i], number(base), number(list[1]), number(list[n])
        for (c = 1; c <= column_count; c++) {
            if (columns[c] == "base") continue
            n = gather(cases[i], columns[c], 1)
            if (n == 0) { printf " – |"; continue }
            m = median(list, n)
            printf " %s (%s–%s%s) |", signed(m), signed(list[1]), signed(list[n]),
                percent ? sprintf("; %+.1f %%", base > 0 ? 100 * m / base : 0) : ""
            if (!(columns[c] in worst) || m > worst[columns[c]]) worst[columns[c]] = m
        }
        print ""
    }
    count = split(aim, aims, " ")
    if (count) print ""
    for (i = 1; i <= count; i++) {
        split(aims[i], part, ":")
        if (part[1] in worst) printf "- Aim for %s: at most %s %s more a call. Worst case here: %s.\n",
            part[1], part[2], unit, signed(worst[part[1]])
    }
}
