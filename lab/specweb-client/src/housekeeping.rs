//! Calls to the application around a run: reset its files, check a page, fetch the log.
//!
//! Outside the measured time, one request after the other. A page is taken apart by the same check
//! as during the run.

use headway_latency::specweb99::LogInfo;
use headway_load::checksum;
use headway_load::cli_types::Url;
use headway_load::session::status;
use headway_specweb::page::Check;
use headway_specweb::post;
use headway_specweb::request::{FETCH_QUERY, reset_query};
use headway_specweb::tables::Reset;

use crate::SpecWeb99Error;
use crate::client::{Posts, SharedClientState};

/// Resets the tables and empties the log.
pub(super) fn reset(url: &Url, path: &str, reset: &Reset) -> Result<(), SpecWeb99Error> {
    get(url, path, &reset_query(reset)).map(drop)
}

/// Requests the first file once at each path of the application: nothing can be measured if
/// that page is wrong.
pub(super) fn probe(url: &Url, knowledge: &SharedClientState) -> Result<(), SpecWeb99Error> {
    for path in &knowledge.paths {
        let name = "/dir00000/class0_1";
        let page = get(url, path, name)?;
        let document = &knowledge.documents[0];
        let content = content(&page, name, document.size_bytes.unwrap_or(0));
        let right = content.is_some_and(|bytes| Some(checksum::of(&bytes)) == document.checksum);
        if !right {
            return Err(SpecWeb99Error::Application {
                target: format!("{path}?{name}"),
                why: "the page is not the application's around that file: has it another file set?"
                    .to_owned(),
            });
        }
    }
    Ok(())
}

/// Fetches the log and compares it with what the clients know.
pub(super) fn log(url: &Url, path: &str, posts: &Posts) -> LogInfo {
    let mut info = LogInfo {
        acknowledged: posts.acknowledged(),
        ..LogInfo::default()
    };
    match fetched(url, path) {
        Ok(records) => {
            let found = post::compare(&records, &posts.sent(), &posts.open());
            info.records = found.records;
            info.missing = found.missing;
            info.out_of_order = found.out_of_order;
            info.unknown = found.unknown;
        }
        Err(why) => info.fault = Some(why),
    }
    info
}

fn fetched(url: &Url, path: &str) -> Result<Vec<post::Record>, String> {
    let page = get(url, path, FETCH_QUERY).map_err(|error| error.to_string())?;
    // The length of the log is what the frame leaves of the page.
    let around = content_bytes(&page).ok_or("the page around the log is not the application's")?;
    let log = content(&page, FETCH_QUERY, around).ok_or("the page around the log is torn")?;
    post::read(&log).map_err(|fault| fault.to_string())
}

/// The body of a response with status 200.
fn get(url: &Url, path: &str, query: &str) -> Result<Vec<u8>, SpecWeb99Error> {
    let target = format!("{path}?{query}");
    let url = Url {
        path: target.clone(),
        ..url.clone()
    };
    match status::get(&url) {
        Ok((200, body)) => Ok(body),
        Ok((status, body)) => Err(SpecWeb99Error::Application {
            target,
            why: format!("status {status}{}", first_line(&body)),
        }),
        Err(why) => Err(SpecWeb99Error::Application { target, why }),
    }
}

/// What an error page begins with, if that is a sentence.
fn first_line(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let line = text.lines().next().unwrap_or("");
    match line.is_empty() || line.starts_with('<') || line.len() > 200 {
        true => String::new(),
        false => format!(" ({})", headway_latency::format::printable(line)),
    }
}

/// What stands between the frame of a page that has this query.
fn content(page: &[u8], query: &str, bytes: u64) -> Option<Vec<u8>> {
    let (mut check, mut content) = (Check::default(), Vec::new());
    check.restart(format_args!("{query}"), bytes);
    check.take(page, &mut |piece| content.extend_from_slice(piece));
    check.is_whole().then_some(content)
}

fn content_bytes(page: &[u8]) -> Option<u64> {
    let begin = page.windows(6).position(|bytes| bytes == b"<pre>\n")? + 6;
    let end = page.len().checked_sub(headway_specweb::page::TAIL.len())?;
    end.checked_sub(begin).map(|bytes| bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use headway_specweb::page::{PageFields, TAIL, head};

    #[test]
    fn log_is_extracted_from_its_page() {
        let fields = PageFields {
            query: FETCH_QUERY,
            ..PageFields::default()
        };
        for log in ["", "a log\nof two lines\n"] {
            let page = [&head(&fields), log.as_bytes(), TAIL].concat();
            let bytes = content_bytes(&page).expect("a frame");
            assert_eq!(
                content(&page, FETCH_QUERY, bytes).as_deref(),
                Some(log.as_bytes())
            );
            assert_eq!(content(&page[..page.len() - 1], FETCH_QUERY, bytes), None);
        }
        assert_eq!(content_bytes(b"<html>"), None);
    }

    #[test]
    fn error_has_the_first_line_of_the_response_body() {
        assert_eq!(first_line(b"no such user\n"), " (no such user)");
        assert_eq!(first_line(b"<html>"), "");
        assert_eq!(first_line(b""), "");
    }
}
