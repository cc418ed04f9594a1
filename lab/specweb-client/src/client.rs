//! The clients of a SPECweb99-like load: each asks for one thing after the other and knows what
//! every response must hold.
//!
//! A client is one simultaneous connection and one user. It draws kind and file, remembers the last
//! advertisement it was shown, counts its posts, and judges each response as it arrives: a static
//! one by the file's checksum; a dynamic one by the page around the file, the checksum of the file
//! inside, and the cookie. If an advertisement was inserted into the file, its name must be in
//! every placeholder, and the checksum is that of the file with the placeholders restored. A
//! request allocates nothing.

use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use headway_base::random::{Draw, Random};
use headway_latency::Outcome;
use headway_latency::specweb99::RequestKind;
use headway_load::checksum::Checksum;
use headway_load::engine::{Client, Conversation, Document, RequestFacts};
use headway_load::fileset::{FILES_PER_DIRECTORY, FilePopularity, Requests};
use headway_specweb::application::FoundCookie;
use headway_specweb::page::Check;
use headway_specweb::placeholder::{PATH_BYTES, PLACEHOLDER};
use headway_specweb::request::COOKIE;
use headway_specweb::scan::{ScanPart, Scanner, ad_name};
use headway_specweb::tables::USER_FIRST;
use headway_specweb::{Ads, FileName, Reset, User};

use crate::mix;

/// What the streams of a client are drawn for, so that they have nothing in common with other
/// streams of the seed.
const RANDOM_STREAM: u64 = 0x7370_6563_7765_6239;

/// What the cookie of a posted record begins with.
const POST_COOKIE_PREFIX: &[u8] = b"posted_cookie=record=";

/// Posts without acknowledgement that need no memory during the run.
const UNACKNOWLEDGED_CAPACITY: usize = 4096;

/// What all clients of a run know.
#[derive(Debug)]
pub struct SharedClientState {
    /// The files of the set that are asked for, in its order, with their checksums.
    pub documents: Vec<Document>,
    /// The popularity of each file.
    pub popularity: FilePopularity,
    /// What the application's tables were made from.
    pub reset: Reset,
    /// The advertisements of the file set.
    pub ads: Ads,
    /// Paths of the application: of dynamic requests, and of those with a process each.
    pub paths: [String; 2],
    /// Whether only files are asked for.
    pub static_only: bool,
    /// What has been posted.
    pub posts: Posts,
}

/// The posts of all clients, over all iterations.
#[derive(Debug)]
pub struct Posts {
    sent: Vec<AtomicU32>,
    acknowledged: AtomicU64,
    /// Client and serial of posts that were not acknowledged.
    open: Mutex<Vec<(u32, u32)>>,
}

impl Posts {
    /// No posts yet, for this many clients.
    pub fn new(clients: u32) -> Posts {
        Posts {
            sent: (0..clients).map(|_| AtomicU32::new(0)).collect(),
            acknowledged: AtomicU64::new(0),
            open: Mutex::new(Vec::with_capacity(UNACKNOWLEDGED_CAPACITY)),
        }
    }

    /// The serial of each client's last post.
    pub fn sent(&self) -> Vec<u32> {
        let sent = self.sent.iter();
        sent.map(|sent| sent.load(Ordering::Relaxed)).collect()
    }

    /// Number of posts that were acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Client and serial of the others.
    pub fn open(&self) -> Vec<(u32, u32)> {
        let open = self.open.lock();
        open.map_or_else(|held| held.into_inner().clone(), |open| open.clone())
    }

    fn ended(&self, client: u32, serial: u32, acknowledged: bool) {
        if acknowledged {
            self.acknowledged.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut open = self.open.lock().unwrap_or_else(|held| held.into_inner());
        open.push((client, serial));
    }
}

/// The clients of one iteration.
#[derive(Clone, Debug)]
pub struct Clients {
    /// What the clients know.
    pub knowledge: Arc<SharedClientState>,
    /// Decides what they draw.
    pub seed: u64,
}

impl Conversation for Clients {
    fn client(&self, number: u32) -> Box<dyn Client> {
        let knowledge = Arc::clone(&self.knowledge);
        let mut random =
            Random::for_stream(self.seed, RANDOM_STREAM.wrapping_add(u64::from(number)));
        let draws = Requests::new(&knowledge.popularity, random.next_u64());
        let user = USER_FIRST + number;
        Box::new(OneClient {
            profile: User::generate(&knowledge.reset, user),
            knowledge,
            number,
            user,
            random,
            draws,
            kind: RequestKind::Static,
            file: 0,
            last_ad: None,
            shown_ad: 0,
            serial: 0,
            record: 0,
            body: String::with_capacity(128),
            cookie: String::with_capacity(128),
            expected: Expected::default(),
        })
    }
}

/// One client.
struct OneClient {
    knowledge: Arc<SharedClientState>,
    number: u32,
    user: u32,
    profile: Option<User>,
    random: Random,
    draws: Requests,
    kind: RequestKind,
    file: u32,
    last_ad: Option<u32>,
    /// The kind of the request in flight.
    shown_ad: u32,
    /// The serial of its last post, from 1.
    serial: u32,
    /// The number of the last record that it received.
    record: u64,
    /// The body of a POST.
    body: String,
    /// The cookie that the response has to set.
    cookie: String,
    expected: Expected,
}

/// A response on its way.
#[derive(Debug, Default)]
struct Expected {
    page: Check,
    content: Checksum,
    scanner: Scanner,
    /// What has to stand in the places of the file; `None`: it has none, or they stay.
    name: Option<[u8; PATH_BYTES]>,
    name_is_wrong: bool,
    cookie_came: bool,
}

impl Expected {
    /// A piece of a page.
    fn take(&mut self, piece: &[u8]) {
        let Expected {
            page,
            content,
            scanner,
            name,
            name_is_wrong,
            ..
        } = self;
        page.take(piece, &mut |bytes| match &*name {
            None => content.update(bytes),
            Some(name) => *name_is_wrong |= !restored(bytes, scanner, name, content),
        });
    }

    fn begin(&mut self, name: Option<[u8; PATH_BYTES]>) {
        self.content = Checksum::new();
        self.scanner = Scanner::new();
        self.name = name;
        self.name_is_wrong = false;
        self.cookie_came = false;
    }
}

/// Adds to the checksum what the file has on disk, and tells whether every piece of a name is the
/// expected one.
fn restored(
    bytes: &[u8],
    scanner: &mut Scanner,
    name: &[u8; PATH_BYTES],
    content: &mut Checksum,
) -> bool {
    let (mut rest, mut right) = (bytes, true);
    while !rest.is_empty() {
        let (part, count) = scanner.next(rest);
        match part {
            ScanPart::Text => content.update(&rest[..count]),
            ScanPart::Name(from) => {
                right &= rest[..count] == name[from..from + count];
                content.update(&PLACEHOLDER[from..from + count]);
            }
        }
        rest = &rest[count..];
    }
    right
}

impl OneClient {
    fn document(&self) -> &Document {
        &self.knowledge.documents[self.file as usize]
    }

    fn name(&self) -> FileName {
        let inside = self.file % FILES_PER_DIRECTORY;
        let (class, number) = ((inside / 9) as u8, (inside % 9 + 1) as u8);
        FileName::new(self.file / FILES_PER_DIRECTORY, class, number)
            .expect("a set is within the bounds of its names")
    }

    fn expect_ad(&mut self) {
        let profile = self.profile.expect("there is a user for each connection");
        let SharedClientState { ads, reset, .. } = &*self.knowledge;
        // Dates lie days before the reset or years behind it, so its moment stands for the server's
        // clock.
        let shown = ads.choose(profile, self.last_ad, reset.time_s);
        self.shown_ad = shown.ad;
        self.cookie.clear();
        // A string takes everything.
        let _ = write!(self.cookie, "{}", FoundCookie(&shown));
        let name = self.name().has_placeholders().then(|| ad_name(shown.ad));
        self.expected.begin(name);
    }

    fn write_post(&mut self) {
        self.serial =
            self.knowledge.posts.sent[self.number as usize].fetch_add(1, Ordering::Relaxed) + 1;
        let (name, client, serial) = (self.name(), self.number, self.serial);
        let (directory, class, number) = (name.directory(), name.class(), name.number());
        self.body.clear();
        let _ = write!(
            self.body,
            "dir={directory}&class={class}&file={number}&client={client}&serial={serial}"
        );
    }

    fn take_cookie(&mut self, value: &[u8]) {
        let value = value.split(|&byte| byte == b';').next().unwrap_or(value);
        match self.kind {
            RequestKind::Custom => self.expected.cookie_came |= value == self.cookie.as_bytes(),
            RequestKind::Post => {
                let number = value.strip_prefix(POST_COOKIE_PREFIX);
                let number = number.and_then(|digits| std::str::from_utf8(digits).ok());
                let number = number.and_then(|digits| digits.parse::<u64>().ok());
                // Its posts are sequential, so their numbers increase.
                if let Some(number) = number.filter(|&number| number > self.record) {
                    self.record = number;
                    self.expected.cookie_came = true;
                }
            }
            RequestKind::Static | RequestKind::Standard | RequestKind::Cgi => {}
        }
    }

    fn is_right(&self, body_bytes: u64) -> Outcome {
        let Document {
            size_bytes,
            checksum,
            ..
        } = self.document();
        let expected = &self.expected;
        let same = checksum.is_none_or(|checksum| checksum == expected.content.value());
        if self.kind == RequestKind::Static {
            return match (*size_bytes == Some(body_bytes), same) {
                (false, _) => Outcome::Length,
                (true, false) => Outcome::Content,
                (true, true) => Outcome::Ok,
            };
        }
        let cookie_due = matches!(self.kind, RequestKind::Custom | RequestKind::Post);
        let cookie = expected.cookie_came || !cookie_due;
        match expected.page.is_whole() && same && cookie && !expected.name_is_wrong {
            true => Outcome::Ok,
            false => Outcome::Content,
        }
    }
}

impl fmt::Debug for OneClient {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = out.debug_struct("OneClient");
        shown
            .field("number", &self.number)
            .field("kind", &self.kind);
        shown.field("file", &self.file).finish_non_exhaustive()
    }
}

impl Client for OneClient {
    fn choose(&mut self, _document: u32) {
        self.kind = match self.knowledge.static_only {
            true => RequestKind::Static,
            false => mix::kind(&mut self.random),
        };
        self.file = self.draws.next();
        match self.kind {
            RequestKind::Custom => self.expect_ad(),
            RequestKind::Post => {
                self.write_post();
                self.expected.begin(None);
            }
            RequestKind::Static | RequestKind::Standard | RequestKind::Cgi => {
                self.expected.begin(None);
            }
        }
        let size_bytes = self.document().size_bytes.unwrap_or(0);
        let name = self.name();
        match self.kind {
            RequestKind::Static => {}
            RequestKind::Post => self.expected.page.restart(format_args!(""), size_bytes),
            _ => self
                .expected
                .page
                .restart(format_args!("{name}"), size_bytes),
        }
    }

    fn facts(&self) -> RequestFacts {
        let document = self.document();
        RequestFacts {
            class: self.kind.class(document.class),
            // A page has the length that its head gives it.
            size_bytes: document
                .size_bytes
                .filter(|_| self.kind == RequestKind::Static),
            repeats: self.kind != RequestKind::Post,
        }
    }

    fn requests_on_connection(&mut self) -> Option<u32> {
        Some(mix::requests_on_connection(&mut self.random))
    }

    fn form(&self, common: &[u8], out: &mut Vec<u8>) {
        use std::io::Write as _;
        let (name, user, [dynamic, cgi]) = (self.name(), self.user, &self.knowledge.paths);
        // A vector takes everything.
        let _ = match self.kind {
            RequestKind::Static => write!(out, "GET {} HTTP/1.1\r\n", self.document().path),
            RequestKind::Standard => write!(out, "GET {dynamic}?{name} HTTP/1.1\r\n"),
            RequestKind::Cgi => write!(out, "GET {cgi}?{name} HTTP/1.1\r\n"),
            RequestKind::Custom => {
                let _ = write!(
                    out,
                    "GET {dynamic}?{name} HTTP/1.1\r\nCookie: {COOKIE}=user_id={user}"
                );
                match self.last_ad {
                    Some(last) => write!(out, "&last_ad={last}\r\n"),
                    None => write!(out, "\r\n"),
                }
            }
            RequestKind::Post => write!(
                out,
                "POST {dynamic} HTTP/1.1\r\nCookie: {COOKIE}=user_id={user}\r\n\
                 Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n",
                self.body.len()
            ),
        };
        out.extend_from_slice(common);
        if self.kind == RequestKind::Post {
            out.extend_from_slice(self.body.as_bytes());
        }
    }

    fn field(&mut self, name: &str, value: &[u8]) {
        if name.eq_ignore_ascii_case("set-cookie") {
            self.take_cookie(value);
        }
    }

    fn body(&mut self, piece: &[u8]) {
        match self.kind {
            RequestKind::Static => self.expected.content.update(piece),
            _ => self.expected.take(piece),
        }
    }

    fn judge(&mut self, status: u16, body_bytes: u64) -> Outcome {
        match status {
            200 => self.is_right(body_bytes),
            _ => Outcome::Status,
        }
    }

    fn ended(&mut self, outcome: Outcome) {
        let good = outcome == Outcome::Ok;
        match self.kind {
            RequestKind::Custom if good => self.last_ad = Some(self.shown_ad),
            RequestKind::Post => self.knowledge.posts.ended(self.number, self.serial, good),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
