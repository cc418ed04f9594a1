# Reads /metrics of headway and prints the loops' blocking record, for people.
# With -v number=1 only the number of sleeps outside the event wait; -v rung=1 only what the tracer sees (2, 1, 0).
function value() { return $NF }
function label(name,   text) {
    if (!match($0, name "=\"[^\"]*\"")) return ""
    text = substr($0, RSTART, RLENGTH); sub(/^[a-z]+="/, "", text); sub(/"$/, "", text)
    return text
}
/^headway_loop_blocked_total/ {
    blocked += value()
    if (value() > 0) lines[++n] = sprintf("    %s times in %s at %s", value(), label("call"), label("site"))
}
/^headway_loop_blocked_seconds_total/ { seconds += value() }
/^headway_loop_waits_total/ { waits = value() }
/^headway_loop_preempted_total/ { preempted = value() }
/^headway_trace_lost_records_total/ { lost = value() }
/^headway_trace_rung / { sees = value() }
/^headway_system_calls_total/ { calls += value() }
/^headway_helper_jobs_total/ { jobs = value() }
END {
    if (number) { print blocked + 0; exit }
    if (rung) { print sees + 0; exit }
    if (sees == 0) {
        print "  The loops did not look: the kernel refuses the trace (see the status page for what is missing)."
    } else {
        printf "  The loops blocked %d times (%.3f ms in all) in %d system calls.\n", blocked, seconds * 1000, calls
        for (i = 1; i <= n; i++) print lines[i]
        printf "  They slept %d times in the event wait, which is where a loop may, and lost the processor %d times to others.\n", waits, preempted
        if (lost > 0) printf "  %d trace records were lost, so sleeps may be missing.\n", lost
    }
    printf "  %d jobs went to helpers, because they could have waited.\n", jobs
}
