//! What the server may answer: every byte of a reply belongs to one version of a file that existed
//! when it was asked for, or an injected fault explains the error.

use std::collections::BTreeMap;

use headway_base::random::{Draw, SplitMix64};

use crate::clock;
use crate::reply::{Head, parts};
use crate::request::{Planned, Range, Subject};
use crate::site::{Site, Version};

/// How much later than promised a change may be noticed: the time of an iteration is read once.
const SLACK_NS: u64 = 50_000_000;
/// The same where the worker may be stopped several times in one iteration.
const SLACK_PREEMPTED_NS: u64 = 3_000_000_000;

/// How long a helper may take to follow a link.
const FOLLOW_NS: u64 = 1_000_000_000;

/// For how long a known answer is used when a helper cannot look again (`stale-while-revalidate`).
const STALE_NS: u64 = 60_000_000_000;

/// How long before another one a request may begin that makes its file busy.
const BUSY_NS: u64 = 5_000_000_000;

/// What faults explain, at the time of a reply.
#[derive(Clone, Copy, Default, Debug)]
pub struct Excuses {
    pub disk_failed: bool,
    pub exhausted: bool,
    /// A lookup has had to wait for a helper.
    pub lookup_waited: bool,
    /// The exchange took longer than the shortest timeout.
    pub timed_out: bool,
    /// A fault has broken the connection.
    pub is_broken: bool,
    /// The worker is about to end: it answers what it has begun, and closes.
    pub is_draining: bool,
}

/// What the model has learned from the replies.
pub struct Model {
    /// For how long an answer may be used after a change.
    stale_ns: u64,
    /// What a directory without an index file is answered with.
    pub directory_status: u16,
    /// Replies of 503.
    pub unavailable: usize,
    /// The entity tags of versions, by path and number.
    tags: BTreeMap<(String, usize), String>,
    /// Whose tag it is.
    owners: BTreeMap<String, (String, usize)>,
    /// Requests of files, which make their files busy.
    requests: Vec<FileRequest>,
}

/// When a path was requested, and when the reply was there.
struct FileRequest {
    path: String,
    begun_ns: u64,
    done_ns: Option<u64>,
}

/// The reply that one version of a file explains.
struct Expected {
    status: u16,
    /// The bytes, and the value of Content-Range for each piece of them.
    pieces: Vec<(Option<String>, Vec<u8>)>,
}

impl Model {
    pub fn new(revalidate_ms: u64, is_preempted: bool, directory_status: u16) -> Model {
        let slack_ns = match is_preempted {
            true => SLACK_PREEMPTED_NS,
            false => SLACK_NS,
        };
        Model {
            directory_status,
            unavailable: 0,
            stale_ns: revalidate_ms * 1_000_000 + slack_ns,
            tags: BTreeMap::new(),
            owners: BTreeMap::new(),
            requests: Vec::new(),
        }
    }

    /// A client begins to send this request.
    pub fn note_request(&mut self, planned: &Planned) {
        if let Subject::File(path) = &planned.subject {
            self.requests.push(FileRequest {
                path: path.clone(),
                begun_ns: planned.begun_ns,
                done_ns: None,
            });
        }
    }

    /// A client has got the reply to this request.
    pub fn note_reply(&mut self, planned: &Planned) {
        let is_it = |one: &&mut FileRequest| one.is_of(planned) && one.begun_ns == planned.begun_ns;
        if let Some(request) = self.requests.iter_mut().find(is_it) {
            request.done_ns = Some(clock::now_ns());
        }
    }

    /// Whether the file of a request was rewritten in place since.
    pub fn is_rewritten(&self, planned: &Planned, site: &Site) -> bool {
        let Subject::File(path) = &planned.subject else {
            return false;
        };
        let compressed = planned.accepts_gzip.then(|| format!("{path}.gz"));
        let paths = [Some(path), compressed.as_ref()].into_iter().flatten();
        paths
            .flat_map(|path| site.versions(path))
            .any(|one| one.is_rewritten && one.until_ns >= planned.begun_ns)
    }

    /// Whether another request makes the file of this one busy: it waits for a lookup, which may find
    /// that the file changed long ago. Meanwhile this one gets the last version.
    fn is_busy(&self, planned: &Planned) -> bool {
        let since = planned.begun_ns.saturating_sub(BUSY_NS);
        let requests = self.requests.iter().filter(|one| {
            one.is_of(planned)
                && one.begun_ns >= since
                && one
                    .done_ns
                    .is_none_or(|done_ns| done_ns >= planned.begun_ns)
        });
        requests.count() > 1
    }

    /// A tag of this path that was seen, with its version.
    pub fn any_tag(&self, path: &str, random: &mut SplitMix64) -> Option<(usize, String)> {
        let known = self.tags.iter().filter(|((of, _), _)| of == path);
        let known: Vec<_> = known.collect();
        if known.is_empty() {
            return None;
        }
        let ((_, version), tag) = known[random.index(known.len())];
        Some((*version, tag.clone()))
    }

    /// A date that may be that of a version.
    pub fn any_date(&self, _path: &str, random: &mut SplitMix64) -> i64 {
        clock::EPOCH_S - 100_000 + random.below(40) as i64
    }

    /// Checks a reply, or what came of one before the connection ended.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(
        &mut self,
        planned: &Planned,
        (head, content, is_complete): (&Head, &[u8], bool),
        site: &Site,
        excuses: Excuses,
    ) -> Result<(), String> {
        self.unavailable += usize::from(head.status == 503);
        if excused(head.status, excuses) {
            return Ok(());
        }
        check_dates(head)?;
        // A release whose successor cannot be looked up has perhaps been deleted.
        let is_lost = excuses.disk_failed || excuses.exhausted;
        if is_lost && head.status == 404 && planned.root == "other" && site.release().is_some() {
            return Ok(());
        }
        match &planned.subject {
            Subject::Status(status) if head.status == *status => {
                let has_page = planned.root == "other" && matches!(status, 403 | 404);
                match !has_page || !is_complete || content == site.error_page {
                    true => Ok(()),
                    false => Err("not the error page of the host".to_owned()),
                }
            }
            Subject::Status(status) => Err(format!("status {} instead of {status}", head.status)),
            Subject::Redirect(name) => {
                let to = format!("/{name}/");
                let location = head.field("location").unwrap_or_default();
                match head.status == 301 && location.ends_with(&to) {
                    true => Ok(()),
                    false => Err(format!("no redirect to {to}: {head:?}")),
                }
            }
            Subject::File(path) => {
                self.check_file(planned, path, (head, content, is_complete), site, excuses)
            }
        }
    }

    fn check_file(
        &mut self,
        planned: &Planned,
        path: &str,
        (head, content, is_complete): (&Head, &[u8], bool),
        site: &Site,
        excuses: Excuses,
    ) -> Result<(), String> {
        let encoded = head.field("content-encoding").is_some();
        if encoded && !planned.accepts_gzip {
            return Err("an encoding that the client does not accept".to_owned());
        }
        let path = match encoded {
            true => format!("{path}.gz"),
            false => path.to_owned(),
        };
        let since = self.since_ns(planned, site, excuses);
        // Nothing is sent of a file that changes again and again.
        let changed = site
            .versions(&path)
            .iter()
            .any(|one| one.is_rewritten && one.until_ns >= since);
        if head.status == 503 && changed {
            return Ok(());
        }
        let mut reasons = Vec::new();
        for (number, version) in site.versions(&path).iter().enumerate() {
            if version.until_ns < since {
                continue;
            }
            let mut expected = expected(planned, number, version);
            if planned.names_directory && expected.status == 404 {
                // A listing has no tag that could match.
                expected.status = match planned.if_match.is_some() && self.directory_status == 200 {
                    true => 412,
                    false => self.directory_status,
                };
            }
            if planned.root == "other" && version.content.is_none() {
                expected.pieces = vec![(None, site.error_page.clone())];
            }
            match compare(&expected, planned, (head, content, is_complete)) {
                Ok(()) if is_complete || version.is_rewritten || may_be_cut(excuses) => {
                    // Two versions can explain a reply without content.
                    match self.learn(&path, number, version, head) {
                        Ok(()) => return Ok(()),
                        Err(reason) => reasons.push(format!("version {number}: {reason}")),
                    }
                }
                Ok(()) => reasons.push(format!(
                    "version {number}: cut off after {} bytes",
                    content.len()
                )),
                // Only a whole body is what the file held at one moment.
                Err(_)
                    if !is_complete
                        && version.is_rewritten
                        && is_mixed(&expected, &site.versions(&path)[number..], head, content) =>
                {
                    return Ok(());
                }
                Err(reason) => reasons.push(format!("version {number}: {reason}")),
            }
        }
        Err(format!(
            "{path}: no version explains it: {}; {head:?}",
            reasons.join("; ")
        ))
    }

    /// What was replaced before this time may not be answered.
    fn since_ns(&self, planned: &Planned, site: &Site, excuses: Excuses) -> u64 {
        let is_checked = excuses.lookup_waited && self.is_busy(planned);
        let stale_ns = match excuses.disk_failed || excuses.exhausted || is_checked {
            true => self.stale_ns + STALE_NS,
            false => self.stale_ns,
        };
        // While a helper follows the link to a root, what was checked just before is still valid.
        let stale_ns = match site.release() {
            Some(_) if planned.root == "other" => 2 * stale_ns + FOLLOW_NS,
            _ => stale_ns,
        };
        planned.begun_ns.saturating_sub(stale_ns)
    }

    /// Remembers the validators of a version, which must be the same every time.
    fn learn(
        &mut self,
        path: &str,
        number: usize,
        version: &Version,
        head: &Head,
    ) -> Result<(), String> {
        if !matches!(head.status, 200 | 206 | 304) || version.content.is_none() {
            return Ok(());
        }
        let modified = head.field("last-modified").map(str::as_bytes);
        // A 206 to If-Range leaves it out: the client has it.
        let is_omitted = modified.is_none() && head.status == 206;
        let modified = modified.and_then(headway_http::date::parse);
        if modified != Some(version.modified_s) && !is_omitted {
            return Err(format!("Last-Modified is not {}", version.modified_s));
        }
        let tag = head.field("etag").ok_or("no ETag")?.to_owned();
        // A compressed file has another tag than as a variant of the plain one.
        let coding = head.field("content-encoding").unwrap_or_default();
        let owner = (format!("{path}{coding}"), number);
        let known = self
            .owners
            .entry(tag.clone())
            .or_insert_with(|| owner.clone());
        if *known != owner {
            return Err(format!("{tag} is the tag of {known:?} and of {owner:?}"));
        }
        let known = self.tags.entry(owner).or_insert_with(|| tag.clone());
        if *known != tag {
            return Err(format!("one version has the tags {known} and {tag}"));
        }
        Ok(())
    }
}

impl FileRequest {
    fn is_of(&self, planned: &Planned) -> bool {
        matches!(&planned.subject, Subject::File(path) if *path == self.path)
    }
}

/// Whether a fault explains that a reply ends early.
pub fn may_be_cut(excuses: Excuses) -> bool {
    excuses.disk_failed || excuses.exhausted || excuses.timed_out || excuses.is_broken
}

/// Whether a fault explains an error response.
fn excused(status: u16, excuses: Excuses) -> bool {
    match status {
        408 => excuses.timed_out,
        500 => excuses.disk_failed,
        503 => excuses.exhausted || excuses.timed_out,
        _ => false,
    }
}

/// The date is now, give or take what the calendar was stepped by.
fn check_dates(head: &Head) -> Result<(), String> {
    let of = |name| {
        head.field(name)
            .map(|value| (value, headway_http::date::parse(value.as_bytes())))
    };
    let Some((_, Some(date))) = of("date") else {
        return Err(format!("no date: {head:?}"));
    };
    if (clock::calendar_ns() / 1_000_000_000 - date).abs() > 2 * 86_400 {
        return Err(format!("a date of another time: {head:?}"));
    }
    match of("last-modified") {
        Some((_, Some(modified))) if modified <= date => Ok(()),
        None => Ok(()),
        Some((text, _)) => Err(format!("Last-Modified {text} is not before Date")),
    }
}

/// Whether a reply is the expected one, or the beginning of it.
fn compare(
    expected: &Expected,
    planned: &Planned,
    (head, content, is_complete): (&Head, &[u8], bool),
) -> Result<(), String> {
    if head.status != expected.status {
        return Err(format!(
            "status {} instead of {}",
            head.status, expected.status
        ));
    }
    let no_content = planned.is_head || head.status == 304;
    match expected.pieces.as_slice() {
        [] => Ok(()),
        [(range, bytes)] => {
            if head.field("content-range") != range.as_deref() {
                return Err(format!("Content-Range is not {range:?}"));
            }
            let is_length_told = head.status != 304 && head.status != 416;
            if is_length_told && head.stated_length() != Some(bytes.len()) {
                return Err(format!("Content-Length is not {}", bytes.len()));
            }
            if head.status == 416
                || no_content
                || bytes.starts_with(content) && (!is_complete || bytes.len() == content.len())
            {
                return Ok(());
            }
            let same = bytes
                .iter()
                .zip(content)
                .take_while(|(one, other)| one == other);
            Err(format!("bytes differ from {} on", same.count()))
        }
        several if is_complete && !no_content => {
            let found = parts(head, content)?;
            let same = found.len() == several.len()
                && found
                    .iter()
                    .zip(several)
                    .all(|((range, bytes), (wanted, right))| {
                        Some(range) == wanted.as_ref() && bytes == right
                    });
            match same {
                true => Ok(()),
                false => Err("other parts".to_owned()),
            }
        }
        _ => Ok(()),
    }
}

/// Whether each byte of an expected reply is one that its file held at some time.
fn is_mixed(expected: &Expected, versions: &[Version], head: &Head, content: &[u8]) -> bool {
    let [(range, bytes)] = expected.pieces.as_slice() else {
        return false;
    };
    let first: Option<usize> = range.as_deref().map_or(Some(0), |range| {
        range
            .strip_prefix("bytes ")?
            .split_once('-')?
            .0
            .parse()
            .ok()
    });
    let Some(first) = first else {
        return false;
    };
    let held = |version: &Version, at: usize| Some(*version.content.as_ref()?.get(at)?);
    head.status == expected.status
        && head.field("content-range") == range.as_deref()
        && head.stated_length() == Some(bytes.len())
        && content.iter().zip(first..).all(|(byte, at)| {
            versions
                .iter()
                .any(|version| held(version, at) == Some(*byte))
        })
}

/// What a server answers that has this version (RFC 9110, 13.2.2 and 14).
fn expected(planned: &Planned, number: usize, version: &Version) -> Expected {
    let status = |status| Expected {
        status,
        pieces: Vec::new(),
    };
    let Some(content) = &version.content else {
        return status(if version.is_forbidden { 403 } else { 404 });
    };
    let is_this = |validator: &crate::request::Validator| validator.version == Some(number);
    if planned.if_match.as_ref().is_some_and(|tag| !is_this(tag)) {
        return status(412);
    }
    if planned
        .if_unmodified_since
        .is_some_and(|date| version.modified_s > date)
    {
        return status(412);
    }
    if planned.if_none_match.as_ref().is_some_and(is_this) {
        return status(304);
    }
    if planned
        .if_modified_since
        .is_some_and(|date| version.modified_s <= date)
    {
        return status(304);
    }
    let applies = planned.if_range.as_ref().is_none_or(is_this)
        && planned
            .if_range_date
            .is_none_or(|date| version.modified_s == date);
    let size = content.len();
    if planned.is_head || planned.ranges.is_empty() || !applies {
        return Expected {
            status: 200,
            pieces: vec![(None, content.to_vec())],
        };
    }
    let ranges: Vec<_> = planned
        .ranges
        .iter()
        .filter_map(|range| bounds(*range, size))
        .collect();
    // No Content-Range can express the end of an empty file.
    let has_end = planned
        .ranges
        .iter()
        .any(|range| matches!(range, Range::Last(_)));
    if ranges.is_empty() && size == 0 && has_end {
        return Expected {
            status: 200,
            pieces: vec![(None, Vec::new())],
        };
    }
    if ranges.is_empty() {
        return Expected {
            status: 416,
            pieces: vec![(Some(format!("bytes */{size}")), Vec::new())],
        };
    }
    let piece = |&(first, last): &(usize, usize)| {
        let range = format!("bytes {first}-{last}/{size}");
        (Some(range), content[first..=last].to_vec())
    };
    Expected {
        status: 206,
        pieces: ranges.iter().map(piece).collect(),
    }
}

/// The first and last byte of a range; `None` if there is none in the file.
fn bounds(range: Range, size: usize) -> Option<(usize, usize)> {
    let (first, last) = match range {
        Range::FromTo(first, last) => (first, last.min(size.checked_sub(1)?)),
        Range::From(first) => (first, size.checked_sub(1)?),
        Range::Last(length) => (size.saturating_sub(length), size.checked_sub(1)?),
    };
    (first <= last).then_some((first, last))
}
