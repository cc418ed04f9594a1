//! The answer for a person: one paragraph, then tables.

use std::fmt::Write as _;

use headway_base::format::{count, counted, percent, printable, time_ns, time_us};
use headway_debox::Label;

use crate::advice::{Advice, is_fast};
use crate::parts::{Cause, Doing, Phase};
use crate::report::{CauseShare, HolderShare, PathShare, Report};

mod figures;

pub use figures::of_server;

/// Rows of the table of causes.
const ROWS_MAX: usize = 12;

/// A cause that takes less than this everywhere is not shown.
const SHOWN_SHARE: f64 = 0.005;

/// A cause in words: where the request was, and what the thread did.
pub fn in_words(cause: &Cause) -> String {
    let what = match cause.is_handover() {
        true => "idle until another thread passed it on".to_owned(),
        false => doing_in_words(&cause.doing),
    };
    match (cause.phase, cause.for_others, &cause.doing) {
        (_, _, Doing::Client | Doing::Unseen) | (_, false, _) => what,
        (_, _, Doing::Running) => format!("{what} for other requests"),
        (Phase::AcceptQueue | Phase::ReceiveQueue, _, _) => what,
        (_, true, _) => format!("{what}, for another request"),
    }
}

/// What a thread does, in words.
pub(crate) fn doing_in_words(doing: &Doing) -> String {
    match doing {
        Doing::Running => "running".to_owned(),
        Doing::Runnable => "waiting for a CPU".to_owned(),
        Doing::Client => "waiting for the client".to_owned(),
        Doing::Unseen => "not seen".to_owned(),
        Doing::Asleep { call, label } => asleep(*call, *label),
    }
}

fn asleep(call: Option<u32>, label: Label) -> String {
    let Some(call) = call else {
        return format!("asleep in a page fault on {label}");
    };
    let call = headway_debox::calls::display_name(call);
    match label {
        Label::EventWait => format!("asleep in {call}"),
        label => format!("asleep in {call} on {label}"),
    }
}

/// What requests did, for a sentence.
fn phase_in_words(phase: Phase) -> &'static str {
    match phase {
        Phase::AcceptQueue => "a connection with a request waited to be accepted",
        Phase::ReceiveQueue => "a request waited unread in its socket",
        Phase::Service => "the server had read a request and not answered",
        Phase::Transfer => "a response was being sent",
    }
}

/// The paragraph.
pub fn summary(report: &Report) -> String {
    let latency = &report.latency;
    let requests = report.requests.answered;
    if requests == 0 {
        return nothing(report);
    }
    // Times that are not known count as running.
    let at_least = match report.lost_events {
        0 => "",
        _ => "at least ",
    };
    let mut text = (report.advice.first()).map_or_else(String::new, |advice| {
        found(advice, at_least, latency.p99_us)
    });
    let _ = write!(
        text,
        "{}: {at_least}{} in {}; p50 {}, p95 {}, p99 {}.",
        printable(&report.server),
        counted(requests, "request", "requests"),
        headway_base::format::duration(report.duration_s),
        time_us(latency.p50_us),
        time_us(latency.p95_us),
        time_us(latency.p99_us),
    );
    let causes = report.causes.iter().filter(|cause| cause.share.p99 >= 0.1);
    for (index, cause) in causes.take(3).enumerate() {
        let us = cause.share.p99 * latency.p99_us;
        let around = if index == 0 { "At the p99, " } else { "" };
        let _ = write!(
            text,
            " {around}{}{} ({}): {}{}.",
            bound(report, cause),
            percent(rounded(cause.share.p99)),
            time_us(us),
            phase_in_words(cause.phase),
            thread_in_words(cause),
        );
    }
    if let Some(advice) = report.advice.first() {
        let _ = write!(text, " First: {}", advice.text);
    } else if is_fast(report) {
        text += " That is fast, so there is nothing to change for these.";
    }
    text
}

/// What a share is when events were lost: a time off the CPU that is not known counts as running.
fn bound(report: &Report, cause: &CauseShare) -> &'static str {
    match cause.doing {
        _ if report.lost_events == 0 => "",
        "unseen" => "",
        "running" => "at most ",
        _ => "at least ",
    }
}

/// The first sentence.
fn found(advice: &Advice, at_least: &str, p99_us: f64) -> String {
    let finding = &advice.finding;
    match advice.share_p99 {
        share if share >= 0.01 => format!(
            "{finding}: {at_least}{} of the p99 ({} of {}). ",
            percent(rounded(share)),
            time_us(share * p99_us),
            time_us(p99_us)
        ),
        _ => format!("{finding}. "),
    }
}

/// In whole percents: the shares of a few requests are no more exact.
fn rounded(share: f64) -> f64 {
    (share * 100.0).round() / 100.0
}

fn nothing(report: &Report) -> String {
    let requests = &report.requests;
    let server = printable(&report.server);
    let duration = headway_base::format::duration(report.duration_s);
    if requests.waiting > 0 {
        return format!(
            "{server}: no request was answered in {duration}, and {}. `headway trace -p` shows in which calls its \
             threads hang.",
            waiting(report)
        );
    }
    let is_deaf = report.ports.is_empty() && report.sockets.is_empty();
    let why = match (is_deaf, requests.unanswered) {
        (true, _) => "its processes listen on no socket",
        (false, 0) => "no request came to its sockets, or none was answered",
        (false, _) => "connections ended without a response",
    };
    format!("{server}: nothing to explain: {why} in {duration}.")
}

/// Requests that had no answer.
fn waiting(report: &Report) -> String {
    format!(
        "{} had none at the end, the oldest for {}",
        counted(report.requests.waiting, "request", "requests"),
        time_us(report.requests.waiting_longest_us)
    )
}

/// What the thread did meanwhile.
fn thread_in_words(cause: &CauseShare) -> String {
    let file = match cause.files.first() {
        Some(file) => format!(" at {}", printable(&file.path)),
        None => String::new(),
    };
    let waited = matches!(cause.phase, Phase::AcceptQueue | Phase::ReceiveQueue);
    let thread = match cause.phase {
        Phase::AcceptQueue => "the thread that then accepted it",
        Phase::ReceiveQueue if cause.passed_on => "the thread that then passed it on",
        Phase::ReceiveQueue => "the thread that then read it",
        _ => "its thread",
    };
    match cause.doing {
        "client" => ", and the client or the network was slow".to_owned(),
        "unseen" => "; what its thread did is not known".to_owned(),
        "running" if waited => format!(" while {thread} ran for other requests"),
        "running" if cause.for_others => format!(" while {thread} ran for other requests"),
        "running" => format!(" while {thread} ran"),
        "runnable" => format!(" while {thread} waited for a CPU"),
        _ => {
            let with =
                waiters_in_words(cause).map_or_else(String::new, |text| format!(" with {text}"));
            format!(" while {thread} was {}{file}{with}", cause.cause)
        }
    }
}

/// The process which had a lock, and where in the kernel it gave it back.
pub fn holder_in_words(holder: &HolderShare) -> String {
    let name = printable(&holder.name);
    match holder.woken_in.is_empty() {
        true => name.into_owned(),
        false => format!("{name}, woken in {}", holder.woken_in.join(" < ")),
    }
}

/// Other threads that waited for the same; `None` if there were none, or they were idle.
pub fn waiters_in_words(cause: &CauseShare) -> Option<String> {
    let waiters = u64::from(cause.waiters_max);
    let most = counted(waiters, "more waiter", "more waiters");
    (waiters > 0 && cause.blocked).then(|| format!("up to {most}"))
}

/// Everything, for a terminal or a file.
pub fn render(report: &Report, heading: impl Fn(&str) -> String) -> String {
    let mut out = wrapped(&report.summary, "", 100);
    if report.requests.answered > 0 {
        out.push('\n');
        phases(report, &mut out, &heading);
        causes(report, &mut out, &heading);
    }
    if !report.advice.is_empty() {
        let _ = writeln!(out, "\n{}", heading("What to change"));
        for advice in &report.advice {
            out += &wrapped(&format!("{} ({})", advice.text, advice.evidence), "- ", 100);
        }
    }
    requests(report, &mut out, &heading);
    upstreams(report, &mut out, &heading);
    figures::write(report, &mut out, &heading);
    let _ = writeln!(out, "\n{}", heading("What was seen"));
    for line in seen(report) {
        out += &wrapped(&line, "- ", 100);
    }
    out
}

fn phases(report: &Report, out: &mut String, heading: &impl Fn(&str) -> String) {
    let head = format!(
        "{:<15}{:>9}{:>9}{:>9}{:>9}",
        "PHASE", "ALL", "P50", "P95", "P99"
    );
    let _ = writeln!(out, "{}", heading(&head));
    for phase in &report.phases {
        let _ = writeln!(
            out,
            "{:<15}{:>9}{:>9}{:>9}{:>9}",
            phase.phase.name(),
            cell(phase.share.all),
            cell(phase.share.p50),
            cell(phase.share.p95),
            cell(phase.share.p99),
        );
    }
}

fn causes(report: &Report, out: &mut String, heading: &impl Fn(&str) -> String) {
    let head = format!(
        "{:>8}{:>8}{:>8}{:>9}{:>10}  {:<14} {}",
        "P50", "P95", "P99", "TIME", "REQUESTS", "REQUEST IN", "THREAD"
    );
    let _ = writeln!(out, "\n{}", heading(&head));
    let matters = |cause: &&CauseShare| {
        let share = cause.share;
        share.p50.max(share.p95).max(share.p99).max(share.all) >= SHOWN_SHARE
    };
    let mut more = 0;
    for (index, cause) in report.causes.iter().filter(matters).enumerate() {
        if index >= ROWS_MAX {
            more += 1;
            continue;
        }
        let _ = writeln!(
            out,
            "{:>8}{:>8}{:>8}{:>9}{:>10}  {:<14} {}",
            cell(cause.share.p50),
            cell(cause.share.p95),
            cell(cause.share.p99),
            time_ns(cause.total_ns as f64),
            count(cause.requests),
            cause.phase.name(),
            cause.cause,
        );
        if let Some(file) = cause.files.first() {
            let _ = writeln!(out, "{:>60}{}", "", printable(&file.path));
        }
        if let Some(holder) = cause.holders.first() {
            let _ = writeln!(out, "{:>60}held by {}", "", holder_in_words(holder));
        }
        if let Some(waiters) = waiters_in_words(cause) {
            let _ = writeln!(out, "{:>60}with {waiters}", "");
        }
    }
    if more > 0 {
        let _ = writeln!(out, "{more} more; --json has them");
    }
}

/// A share in a table.
fn cell(share: f64) -> String {
    match share {
        s if s <= 0.0 => headway_base::format::NONE.to_owned(),
        s if s < 0.001 => "<0.1 %".to_owned(),
        s => format!("{:.1} %", s * 100.0),
    }
}

/// Rows of the table of paths.
const PATHS_MAX: usize = 10;

fn requests(report: &Report, out: &mut String, heading: &impl Fn(&str) -> String) {
    if report.paths.is_empty() {
        return;
    }
    let head = format!(
        "{:>10}{:>10}{:>10}{:>9}  {:<18}{}",
        "REQUESTS", "P50", "P99", "OF TIME", "STATUS", "METHOD AND PATH"
    );
    let _ = writeln!(out, "\n{}", heading(&head));
    for path in report.paths.iter().take(PATHS_MAX) {
        let _ = writeln!(
            out,
            "{:>10}{:>10}{:>10}{:>9}  {:<18}{}",
            count(path.requests),
            time_us(path.p50_us),
            time_us(path.p99_us),
            cell(path.share),
            statuses(path),
            printable(&path.path),
        );
    }
}

/// How many statuses of a path are shown.
const STATUSES_MAX: usize = 2;

/// The most frequent statuses: `200`, or with their counts `200 × 95, 503 × 5`.
pub fn statuses(path: &PathShare) -> String {
    let mut order: Vec<(u64, u16)> = (path.statuses.iter())
        .map(|(status, requests)| (*requests, *status))
        .collect();
    order.sort_by_key(|(requests, status)| (std::cmp::Reverse(*requests), *status));
    match order.as_slice() {
        [] => headway_base::format::NONE.to_owned(),
        [(requests, status)] if *requests == path.requests => status.to_string(),
        all => {
            let shown = all.iter().take(STATUSES_MAX);
            let shown = shown.map(|(requests, status)| format!("{status} × {}", count(*requests)));
            let more = if all.len() > STATUSES_MAX {
                ", …"
            } else {
                ""
            };
            shown.collect::<Vec<String>>().join(", ") + more
        }
    }
}

/// Rows of the table of upstreams.
const UPSTREAMS_MAX: usize = 5;

fn upstreams(report: &Report, out: &mut String, heading: &impl Fn(&str) -> String) {
    if report.upstreams.is_empty() {
        return;
    }
    let head = format!(
        "{:>11}{:>15}{:>12}  {}",
        "CONNECTIONS", "NOT ACCEPTED", "OF LOOKS", "UPSTREAM"
    );
    let _ = writeln!(out, "\n{}", heading(&head));
    for upstream in report.upstreams.iter().take(UPSTREAMS_MAX) {
        let _ = writeln!(
            out,
            "{:>11}{:>15}{:>12}  {} {}",
            count(upstream.connections_max),
            count(upstream.waiting_max),
            cell(upstream.waiting_looks as f64 / upstream.looks.max(1) as f64),
            printable(&upstream.address),
            printable(upstream.program.as_deref().unwrap_or_default()),
        );
    }
}

/// Where the server listens.
fn listeners(report: &Report) -> String {
    let ports: Vec<String> = report.ports.iter().map(u16::to_string).collect();
    let sockets: Vec<_> = report.sockets.iter().map(|path| printable(path)).collect();
    let tcp = match ports.len() {
        0 if !sockets.is_empty() => String::new(),
        0 => "TCP ports none".to_owned(),
        1 => format!("TCP port {}", ports[0]),
        _ => format!("TCP ports {}", ports.join(", ")),
    };
    match sockets.is_empty() {
        true => tcp,
        false => format!("{tcp} unix:{}", sockets.join(", unix:"))
            .trim_start()
            .to_owned(),
    }
}

/// What the figures cover.
fn seen(report: &Report) -> Vec<String> {
    let requests = &report.requests;
    let processes = counted(report.pids.len() as u64, "process", "processes");
    let mut lines = vec![format!(
        "{processes}, {}, {}.",
        listeners(report),
        counted(requests.connections, "connection", "connections")
    )];
    if requests.sampled_one_in > 1 {
        lines.push(format!(
            "The rate was high, so at the end one in {} connections was observed.",
            requests.sampled_one_in
        ));
    }
    if let Some(seen_s) = report.calls_seen_s {
        lines.push(format!(
            "For the same reason, ready events, times between waits and failed calls are those of {}.",
            headway_base::format::duration(seen_s)
        ));
    }
    if requests.waiting > 0 && requests.answered > 0 {
        lines.push(format!(
            "Not in the tables: of those without an answer, {}.",
            waiting(report)
        ));
    }
    if requests.unanswered > 0 {
        lines.push(format!(
            "{} had no response before the connection ended. They are in no table.",
            counted(
                requests.unanswered,
                "request or closing message",
                "requests or closing messages"
            )
        ));
    }
    match report.listen_overflows {
        Some(0) => {}
        Some(overflows) => lines.push(format!(
            "{} not accepted because a queue was full: {} waited a second or more for another \
             attempt, which no table shows.",
            counted(overflows, "connection was", "connections were"),
            if overflows == 1 {
                "its client"
            } else {
                "their clients"
            }
        )),
        None => lines.push("Overflows of accept queues are not known.".to_owned()),
    }
    if report.lost_events > 0 {
        lines.push(format!(
            "{} lost, since there were too many. So counts of requests and times asleep are lower bounds, and times \
             running are upper bounds.",
            counted(report.lost_events, "event was", "events were")
        ));
    }
    lines.extend(report.missing.iter().cloned());
    lines
}

/// A paragraph with a mark before its first line and a hanging indent.
fn wrapped(text: &str, mark: &str, width: usize) -> String {
    let indent = mark.chars().count();
    let mut out = mark.to_owned();
    let mut column = indent;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column > indent && column + 1 + length > width {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            column = indent;
        }
        if column > indent {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests;
