# Reads `perf script --show-switch-events` of sched:sched_switch samples (voluntary sleeps only) and sums the sleeps
# by system call and kernel site: "KIND<TAB>COUNT<TAB>MILLISECONDS<TAB>CALL<TAB>SITE" a line, KIND `wait` for the
# event wait and `blocked` for anything else. A sleep lasts from its sample to the thread's next switch in.
# The site is the innermost function that is not scheduler, tracing or waiting machinery: it names the resource.
function finish() {
    if (!open) return
    if (call == "") call = fault ? "page fault" : "kernel"
    kind = (call ~ /^(epoll_wait|epoll_pwait2?|poll|ppoll|select|pselect6)$/) ? "wait" : "blocked"
    key = kind "\t" call "\t" (kind == "wait" ? "" : site)
    count[key]++
    pending[tid] = key; since[tid] = started
    open = 0
}

/PERF_RECORD_SWITCH/ {
    finish()
    if ($0 ~ /SWITCH IN/ && ($2 in pending)) {
        sub(/:$/, "", $3)
        slept[pending[$2]] += $3 - since[$2]
        delete pending[$2]
    }
    next
}
/sched:sched_switch:/ {
    finish()
    open = 1; call = ""; site = ""; fault = 0
    # The command's name may hold spaces; the thread and the time stand before the event's name.
    match($0, /[0-9]+ +[0-9.]+: +sched:sched_switch/)
    split(substr($0, RSTART, RLENGTH), part, " ")
    tid = part[1]; started = part[2]; sub(/:$/, "", started)
    next
}
open && NF >= 2 {
    name = $2
    sub(/\+0x.*/, "", name)
    if (name ~ /^__(x64|arm64|ia32)_sys_/) { sub(/^__[a-z0-9]+_sys_/, "", name); if (call == "") call = name }
    else if (name ~ /page_fault/) fault = 1
    if (site == "" && name !~ /^(__traceiter_|__bpf_|bpf_|perf_|__schedule|schedule|io_schedule|preempt_schedule|__?wait_on_bit|out_of_line_wait_on_bit|bit_wait|bit_wait_io|wait_for_completion|__wait_for_common|schedule_(timeout|hrtimeout|preempt)|rwsem_down_|__down_|down_|rt_mutex_|__mutex_lock|mutex_lock|prepare_to_wait|do_wait_|folio_wait_bit|__folio_lock|io_schedule_timeout|balance_dirty_pages_ratelimited)/)
        site = name
}
END {
    finish()
    for (key in count) {
        split(key, part, "\t")
        printf "%s\t%d\t%.1f\t%s\t%s\n", part[1], count[key], slept[key] * 1000, part[2], part[3]
    }
}
