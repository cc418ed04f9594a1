# Reads /metrics of headway and prints the blocking record of its event loops.
# With -v number=1 only the number of sleeps outside the event wait; -v level=1 only the trace level (2, 1, 0).
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
/^headway_loop_preemptions_total/ { preempted = value() }
/^headway_trace_lost_records_total/ { lost = value() }
/^headway_trace_level / { sees = value() }
/^headway_system_calls_total/ { calls += value() }
/^headway_helper_jobs_done_total/ { jobs = value() }
END {
    if (number) { print blocked + 0; exit }
    if (level) { print sees + 0; exit }
    if (sees == 0) {
        print "  The event loops were not traced: the kernel does not permit it (the status page says what is missing)."
    } else {
        printf "  The event loops blocked %d times (%.3f ms in total) in %d system calls.\n", blocked, seconds * 1000, calls
        for (i = 1; i <= n; i++) print lines[i]
        printf "  They slept %d times in the event wait, as intended, and were preempted %d times.\n", waits, preempted
        if (lost > 0) printf "  %d trace records were lost, so sleeps may be missing.\n", lost
    }
    printf "  Helpers ran %d jobs that could have blocked.\n", jobs
}
