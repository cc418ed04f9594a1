//! AWS Signature Version 4, for S3 with a checksum of the body.
//!
//! Sources: "Authenticating requests: using the Authorization header" of the Amazon S3 API reference; its examples are
//! the tests.

use std::fmt::Write;

use aws_lc_rs::{digest, hmac};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::Settings;

/// What is not encoded in a path or a query (RFC 3986, section 2.3).
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// What a signature covers. Names of headers are in lower case.
pub(crate) struct Signed<'a> {
    pub(crate) method: &'a str,
    /// Encoded.
    pub(crate) path: &'a str,
    /// Not encoded.
    pub(crate) query: &'a [(&'a str, &'a str)],
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body_sha256: &'a str,
    /// Seconds since 1970.
    pub(crate) at: i64,
}

impl Signed<'_> {
    /// The value of `Authorization`. Adds the headers with the date, the checksum and the token.
    pub(crate) fn authorize(&mut self, settings: &Settings) -> String {
        let stamp = stamp(self.at);
        let day = &stamp[..8];
        let checksum = self.body_sha256.to_owned();
        self.headers.push(("x-amz-content-sha256", checksum));
        self.headers.push(("x-amz-date", stamp.clone()));
        if let Some(token) = &settings.session_token {
            self.headers.push(("x-amz-security-token", token.clone()));
        }
        self.headers.sort_unstable();
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let scope = format!("{day}/{}/s3/aws4_request", settings.region);
        let canonical = sha256(self.canonical(&names).as_bytes());
        let text = format!("AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{canonical}");
        let mut key = format!("AWS4{}", settings.secret_key).into_bytes();
        for part in [day, &*settings.region, "s3", "aws4_request"] {
            key = authenticate(&key, part);
        }
        let signature = hex(&authenticate(&key, &text));
        let access_key = &settings.access_key;
        format!(
            "AWS4-HMAC-SHA256 Credential={access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
        )
    }

    fn canonical(&self, names: &str) -> String {
        let query = encoded_query(self.query);
        let mut text = format!("{}\n{}\n{query}\n", self.method, self.path);
        for (name, value) in &self.headers {
            let _ = writeln!(text, "{name}:{}", value.trim());
        }
        let _ = write!(text, "\n{names}\n{}", self.body_sha256);
        text
    }
}

/// A query in the order that a signature wants.
pub(crate) fn encoded_query(query: &[(&str, &str)]) -> String {
    let encoded = |text: &str| utf8_percent_encode(text, UNRESERVED).to_string();
    let pairs = query.iter();
    let mut pairs: Vec<(String, String)> = pairs
        .map(|(name, value)| (encoded(name), encoded(value)))
        .collect();
    pairs.sort_unstable();
    let pairs: Vec<String> = pairs
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    pairs.join("&")
}

/// The name of an object as a path.
pub(crate) fn encoded_key(key: &str) -> String {
    let parts = key.split('/');
    let parts: Vec<String> = parts
        .map(|part| utf8_percent_encode(part, UNRESERVED).to_string())
        .collect();
    parts.join("/")
}

/// A checksum as text.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

fn authenticate(key: &[u8], text: &str) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hmac::sign(&key, text.as_bytes()).as_ref().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// `20130524T000000Z`, out of `Fri, 24 May 2013 00:00:00 GMT`.
fn stamp(at: i64) -> String {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let date = headway_http::date::format(at);
    let date = String::from_utf8_lossy(&date);
    let month = MONTHS.iter().position(|name| *name == &date[8..11]);
    let month = month.map_or(1, |at| at + 1);
    let time = date[17..25].replace(':', "");
    format!("{}{month:02}{}T{time}Z", &date[12..16], &date[5..7])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(session_token: Option<&str>) -> Settings {
        Settings {
            endpoint: None,
            region: "us-east-1".into(),
            access_key: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            session_token: session_token.map(Into::into),
            authorities: None,
        }
    }

    /// 24 May 2013.
    const DAY: i64 = 1_369_353_600;

    #[test]
    fn signatures_are_those_of_the_documentation() {
        let nothing = sha256(b"");
        let host = || ("host", "examplebucket.s3.amazonaws.com".to_owned());
        for (path, query, range, expected) in [
            (
                "/test.txt",
                [].as_slice(),
                Some("bytes=0-9"),
                "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
            ),
            (
                "/",
                [("lifecycle", "")].as_slice(),
                None,
                "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
            ),
            (
                "/",
                [("prefix", "J"), ("max-keys", "2")].as_slice(),
                None,
                "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
            ),
        ] {
            let mut headers = vec![host()];
            headers.extend(range.map(|range| ("range", range.to_owned())));
            let mut signed = Signed {
                method: "GET",
                path,
                query,
                headers,
                body_sha256: &nothing,
                at: DAY,
            };
            let value = signed.authorize(&settings(None));
            assert!(value.ends_with(&format!("Signature={expected}")), "{value}");
            let names = match range {
                Some(_) => "host;range;x-amz-content-sha256;x-amz-date",
                None => "host;x-amz-content-sha256;x-amz-date",
            };
            assert!(
                value.contains(&format!("SignedHeaders={names},")),
                "{value}"
            );
        }
    }

    /// The expected value is of botocore 1.43.11.
    #[test]
    fn part_with_a_token_and_special_characters_is_signed_as_by_botocore() {
        let body = sha256(b"hello");
        let path = encoded_key("/bucket/a b/agent=0/\u{e4}+.json");
        assert_eq!(path, "/bucket/a%20b/agent%3D0/%C3%A4%2B.json");
        let mut signed = Signed {
            method: "PUT",
            path: &path,
            query: &[("uploadId", "a+b/c"), ("partNumber", "2")],
            headers: vec![("host", "storage.example:9000".to_owned())],
            body_sha256: &body,
            at: DAY + 3_725,
        };
        let value = signed.authorize(&settings(Some("token")));
        let expected = "557eb5437c0df31a38674406a55373c40fa4a50cd237f4bb999dbe16b279b8ce";
        assert!(value.ends_with(&format!("Signature={expected}")), "{value}");
        assert_eq!(
            encoded_query(signed.query),
            "partNumber=2&uploadId=a%2Bb%2Fc"
        );
    }
}
