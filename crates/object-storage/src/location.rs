//! `s3://BUCKET/PREFIX`.

use std::fmt;
use std::str::FromStr;

/// A bucket, and what the names in it begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    pub(crate) bucket: String,
    /// Without slashes at its ends; may be empty.
    prefix: String,
}

impl Location {
    /// Whether a text is meant as one.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with("s3://")
    }

    /// The name of an object below the prefix.
    pub(crate) fn key(&self, name: &str) -> String {
        match self.prefix.is_empty() {
            true => name.to_owned(),
            false => format!("{}/{name}", self.prefix),
        }
    }
}

impl FromStr for Location {
    type Err = String;

    fn from_str(text: &str) -> Result<Location, String> {
        let rest = text
            .strip_prefix("s3://")
            .ok_or("write s3://BUCKET/PREFIX")?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_of_bucket = |character: char| {
            character.is_ascii_lowercase()
                || character.is_ascii_digit()
                || ".-_".contains(character)
        };
        if bucket.len() < 3 || !bucket.chars().all(is_of_bucket) {
            return Err(format!(
                "the bucket is `{bucket}`, but a name has at least three characters: a-z, 0-9, `.`, `-` and `_`; write \
                 s3://BUCKET/PREFIX"
            ));
        }
        Ok(Location {
            bucket: bucket.to_owned(),
            prefix: prefix.trim_matches('/').to_owned(),
        })
    }
}

impl fmt::Display for Location {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "s3://{}/{}", self.bucket, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn location_has_a_bucket_and_may_have_a_prefix() {
        for (text, bucket, key) in [
            ("s3://abc", "abc", "x"),
            ("s3://abc/", "abc", "x"),
            ("s3://a.b-c/d/e/", "a.b-c", "d/e/x"),
        ] {
            let location: Location = text.parse().unwrap();
            assert_eq!((&*location.bucket, &*location.key("x")), (bucket, key));
        }
        for text in ["s3:/abc/d", "https://abc/d"] {
            let error = text.parse::<Location>().unwrap_err();
            assert_eq!(error, "write s3://BUCKET/PREFIX");
        }
        for (text, bucket) in [
            ("s3://", ""),
            ("s3://ab", "ab"),
            ("s3://a?c/d", "a?c"),
            ("s3:///abc", ""),
        ] {
            let error = text.parse::<Location>().unwrap_err();
            let named = format!("the bucket is `{bucket}`, but ");
            assert!(error.starts_with(&named), "{error}");
        }
    }
}
