//! Single requests of S3, each tried again while that may help.

use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use headway_http_client::{Client, Timeouts};
use http::{Request, Response};

use crate::sign::{Signed, encoded_key, encoded_query, sha256};
use crate::{Settings, StorageError, xml};

/// Pieces of a file that is downloaded.
pub(crate) const PIECE_BYTES: u64 = 8 << 20;

const TIMEOUTS: Timeouts = Timeouts {
    connect: Duration::from_secs(10),
    io: Duration::from_secs(30),
    response: Duration::from_secs(120),
};

/// How often a request is tried, with a pause that doubles.
const ATTEMPTS_MAX: u32 = 6;
const PAUSE: Duration = Duration::from_millis(250);

/// Sends requests about one bucket.
#[derive(Debug)]
pub(crate) struct Requests {
    client: Client,
    settings: Settings,
    /// The server, and the bucket's path there.
    url: String,
    path: String,
}

/// One request, without what all have.
#[derive(Clone, Copy, Default)]
pub(crate) struct Call<'a> {
    pub(crate) method: &'a str,
    pub(crate) key: &'a str,
    pub(crate) query: &'a [(&'a str, &'a str)],
    pub(crate) headers: &'a [(&'static str, &'a str)],
}

/// A page of names.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// Names and lengths.
    pub(crate) objects: Vec<(String, u64)>,
    /// Where the next page begins.
    pub(crate) next: Option<String>,
}

/// A part that the storage has.
#[derive(Debug)]
pub(crate) struct StoredPart {
    pub(crate) number: u64,
    pub(crate) bytes: u64,
    pub(crate) etag: String,
}

impl Requests {
    pub(crate) fn new(bucket: &str, settings: Settings) -> Result<Requests, StorageError> {
        let (url, path) = settings.bucket_url(bucket);
        let client = match url.starts_with("https:") {
            true => Client::new(settings.authorities.as_deref(), TIMEOUTS),
            false => Ok(Client::without_tls(TIMEOUTS)),
        };
        let client = client.map_err(|source| StorageError::Request {
            what: url.clone(),
            source,
        })?;
        let room_for_headers = 1 << 20;
        Ok(Requests {
            client: client.with_response_max(PIECE_BYTES as usize + room_for_headers),
            settings,
            url,
            path,
        })
    }

    /// Sends a request until it is answered well, or another try would not help.
    pub(crate) fn send(
        &self,
        call: Call<'_>,
        body: &Bytes,
    ) -> Result<Response<Bytes>, StorageError> {
        patiently(|| self.send_once(call, body))
    }

    /// Sends a request once.
    pub(crate) fn send_once(
        &self,
        call: Call<'_>,
        body: &Bytes,
    ) -> Result<Response<Bytes>, StorageError> {
        let what = || format!("{} {}{}/{}", call.method, self.url, self.path, call.key);
        let path = format!("{}/{}", self.path, encoded_key(call.key));
        let host = self.url.split_once("://").map_or("", |(_, host)| host);
        let checksum = sha256(body);
        let mut headers = vec![("host", host.to_owned())];
        let own = call.headers.iter();
        headers.extend(own.map(|(name, value)| (*name, (*value).to_owned())));
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let mut signed = Signed {
            method: call.method,
            path: &path,
            query: call.query,
            headers,
            body_sha256: &checksum,
            at: now.as_secs() as i64,
        };
        let authorization = signed.authorize(&self.settings);
        let query = encoded_query(call.query);
        let mark = if query.is_empty() { "" } else { "?" };
        let mut request = Request::builder()
            .method(call.method)
            .uri(format!("{}{path}{mark}{query}", self.url))
            .header("authorization", authorization);
        for (name, value) in signed.headers.iter().filter(|(name, _)| *name != "host") {
            request = request.header(*name, value);
        }
        let request = request.body(body.clone());
        let request =
            request.map_err(|error| StorageError::Settings(format!("{}: {error}", what())))?;
        let response = self.client.exchange(&request);
        let response = response.map_err(|source| StorageError::Request {
            what: what(),
            source,
        })?;
        match response.status().is_success() {
            true => Ok(response),
            false => Err(refusal(what(), &response)),
        }
    }

    /// A page of the names with this prefix.
    pub(crate) fn list(
        &self,
        prefix: &str,
        from: Option<&str>,
        count: u32,
    ) -> Result<Page, StorageError> {
        let count = count.to_string();
        let mut query = vec![
            ("list-type", "2"),
            ("max-keys", &*count),
            ("prefix", prefix),
        ];
        query.extend(from.map(|token| ("continuation-token", token)));
        let call = Call {
            method: "GET",
            query: &query,
            ..Call::default()
        };
        let response = self.send(call, &Bytes::new())?;
        let text = String::from_utf8_lossy(response.body());
        let unexpected = |why: &str| StorageError::Unexpected {
            what: format!("list of {prefix} in {}{}", self.url, self.path),
            why: why.to_owned(),
        };
        if !text.contains("<ListBucketResult") {
            return Err(unexpected("this is no list of a bucket"));
        }
        let object = |content: &str| {
            let key = xml::text(content, "Key")?;
            Some((key, xml::text(content, "Size")?.parse().ok()?))
        };
        let objects = xml::elements(&text, "Contents").into_iter().map(object);
        let objects: Option<Vec<_>> = objects.collect();
        Ok(Page {
            objects: objects.ok_or_else(|| unexpected("an entry without a name or a size"))?,
            next: match xml::text(&text, "IsTruncated").as_deref() {
                Some("true") => xml::text(&text, "NextContinuationToken"),
                _ => None,
            },
        })
    }

    /// All names with this prefix.
    pub(crate) fn list_all(&self, prefix: &str) -> Result<Vec<(String, u64)>, StorageError> {
        let (mut all, mut from) = (Vec::new(), None);
        loop {
            let page = self.list(prefix, from.as_deref(), 1000)?;
            all.extend(page.objects);
            from = page.next;
            if from.is_none() {
                return Ok(all);
            }
        }
    }

    /// The length of an object; `None` if there is none.
    pub(crate) fn length(&self, key: &str) -> Result<Option<u64>, StorageError> {
        let call = Call {
            method: "HEAD",
            key,
            ..Call::default()
        };
        let response = match self.send(call, &Bytes::new()) {
            Err(error) if error.is_absent() => return Ok(None),
            other => other?,
        };
        let length = header(&response, "content-length").and_then(|text| text.parse().ok());
        length.map(Some).ok_or_else(|| StorageError::Unexpected {
            what: format!("HEAD {}{}/{key}", self.url, self.path),
            why: "the answer has no length".to_owned(),
        })
    }

    /// The parts of an upload that the storage has.
    pub(crate) fn parts(&self, key: &str, upload: &str) -> Result<Vec<StoredPart>, StorageError> {
        let (mut all, mut from) = (Vec::new(), "0".to_owned());
        loop {
            let query = [("uploadId", upload), ("part-number-marker", &*from)];
            let call = Call {
                method: "GET",
                key,
                query: &query,
                ..Call::default()
            };
            let response = self.send(call, &Bytes::new())?;
            let text = String::from_utf8_lossy(response.body());
            let parts = xml::elements(&text, "Part").into_iter().filter_map(|part| {
                Some(StoredPart {
                    number: xml::text(part, "PartNumber")?.parse().ok()?,
                    bytes: xml::text(part, "Size")?.parse().ok()?,
                    etag: xml::text(part, "ETag")?,
                })
            });
            all.extend(parts);
            let next = xml::text(&text, "NextPartNumberMarker").filter(|next| *next != from);
            match (xml::text(&text, "IsTruncated").as_deref(), next) {
                (Some("true"), Some(next)) => from = next,
                _ => return Ok(all),
            }
        }
    }
}

/// A header as text.
pub(crate) fn header(response: &Response<Bytes>, name: &str) -> Option<String> {
    let value = response.headers().get(name)?;
    value.to_str().ok().map(str::to_owned)
}

/// The error in an answer.
fn refusal(what: String, response: &Response<Bytes>) -> StorageError {
    let text = String::from_utf8_lossy(response.body());
    StorageError::Answer {
        what,
        status: response.status().as_u16(),
        code: xml::text(&text, "Code").unwrap_or_default(),
        message: xml::text(&text, "Message").unwrap_or_else(|| "no reason is given".to_owned()),
    }
}

/// Tries again while that may help.
pub(crate) fn patiently<T>(
    mut once: impl FnMut() -> Result<T, StorageError>,
) -> Result<T, StorageError> {
    let mut pause = PAUSE;
    for _ in 1..ATTEMPTS_MAX {
        match once() {
            Err(error) if error.is_passing() => {
                thread::sleep(pause);
                pause *= 2;
            }
            other => return other,
        }
    }
    once()
}
