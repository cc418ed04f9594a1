//! Messages for the error log. The master writes them, since a worker may not wait for standard error.

use headway_config::{ErrorLevel, UNIX_CLIENT};
use headway_connection::Connection;
use headway_control::{FromWorker, NoticeRequest};
use headway_metrics::calls::Call;
use headway_request::Request;

use super::context::LoopContext;

/// Messages about requests per second; others are counted. With `debug` there are as many as fit.
const MESSAGES_PER_SECOND: u32 = 20;
/// Longer targets are cut.
const TEXT_BYTES_MAX: usize = 1024;

/// How many messages about requests there may still be.
#[derive(Debug, Default)]
pub(super) struct MessageLimit {
    second: u64,
    used: u32,
    left_out: u64,
}

impl MessageLimit {
    /// If there may be another message: how many were left out before it.
    fn spend(&mut self, now_ms: u64) -> Option<u64> {
        let second = now_ms / 1000;
        if second != self.second {
            (self.second, self.used) = (second, 0);
        }
        if self.used == MESSAGES_PER_SECOND {
            self.left_out += 1;
            return None;
        }
        self.used += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

impl LoopContext {
    /// Sends a message for the operator to the master, which prints it.
    pub fn notice(&self, level: ErrorLevel, text: String) {
        self.send_notice(level, text, None);
    }

    /// The same with the request that it is about.
    pub fn notice_of(
        &mut self,
        level: ErrorLevel,
        (connection, request): (Option<&Connection>, &Request),
        text: String,
    ) {
        if !self.config.error_log.has(level) {
            return;
        }
        let text = match level {
            ErrorLevel::Debug => text,
            _ => match self.message_limit.spend(self.now_ms) {
                None => return,
                Some(0) => text,
                Some(count) => format!("{text} ({count} messages about requests left out before)"),
            },
        };
        let note = note(connection, request);
        self.send_notice(level, text, Some(Box::new(note)));
    }

    fn send_notice(&self, level: ErrorLevel, text: String, request: Option<Box<NoticeRequest>>) {
        if !self.config.error_log.has(level) {
            return;
        }
        let message = FromWorker::Notice {
            level,
            text,
            request,
        };
        // If the channel is full, many messages are unread already, so this one may be dropped.
        let _ = self
            .tracer
            .call(Call::ControlSend, || self.control.try_send(&message, &[]));
    }

    /// Reports the end of a request: one that was malformed, one that could not be answered, and with
    /// `debug` every one.
    pub(super) fn report_end(
        &mut self,
        connection: &Connection,
        request: &Request,
        (status, duration_us): (u16, u64),
    ) {
        let level = match (status, request.reject_reason) {
            (500.., _) => ErrorLevel::Warn,
            (_, Some(_)) => ErrorLevel::Info,
            _ => ErrorLevel::Debug,
        };
        if !self.config.error_log.has(level) {
            return;
        }
        let reason = match request.reject_reason {
            Some(reason) => format!(": {reason}"),
            None => String::new(),
        };
        let text = format!(
            "answered with {status} after {:.1} ms by {}{reason}",
            duration_us as f64 / 1e3,
            request.handler.as_str()
        );
        self.notice_of(level, (Some(connection), request), text);
    }
}

fn note(connection: Option<&Connection>, request: &Request) -> NoticeRequest {
    let client = connection.map(|connection| match connection.client.ip() {
        UNIX_CLIENT => "unix:".to_owned(),
        _ => connection.client.to_string(),
    });
    let id = request.trace.as_ref().map(|trace| text(trace.request_id()));
    if !request.is_parsed() {
        return NoticeRequest {
            client,
            line: text(&request.first_line),
            id,
            ..NoticeRequest::default()
        };
    }
    let head = request.head.head();
    NoticeRequest {
        client,
        host: head.host.map(text),
        line: format!("{} {}", head.method.as_str(), text(request.target())),
        id,
    }
}

fn text(bytes: &[u8]) -> String {
    let (cut, more) = match bytes.get(..TEXT_BYTES_MAX) {
        Some(cut) if bytes.len() > TEXT_BYTES_MAX => (cut, "..."),
        _ => (bytes, ""),
    };
    format!("{}{more}", String::from_utf8_lossy(cut))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_a_second_are_limited_and_the_next_one_counts_those_left_out() {
        let mut limit = MessageLimit::default();
        for _ in 0..MESSAGES_PER_SECOND {
            assert_eq!(limit.spend(5_000), Some(0));
        }
        (0..7).for_each(|_| assert_eq!(limit.spend(5_999), None));
        assert_eq!(limit.spend(6_000), Some(7));
        assert_eq!(limit.spend(6_000), Some(0));
    }

    #[test]
    fn long_targets_are_cut() {
        let long = text(&[b'a'; 5000]);
        assert_eq!(long.len(), TEXT_BYTES_MAX + 3);
        assert!(long.ends_with("a..."));
        assert_eq!(text(b"a"), "a");
    }
}
