//! Where the storage is, and the keys for it: from the variables of the environment that other clients of S3 read too.

use std::env;
use std::fmt;
use std::path::PathBuf;

use crate::StorageError;

/// Where the storage is, and the keys for it.
#[derive(Clone)]
pub struct Settings {
    /// The URL of a server that speaks S3. `None` is Amazon's.
    pub endpoint: Option<String>,
    /// The region, which is part of each signature.
    pub region: String,
    /// Names the secret key.
    pub access_key: String,
    /// Signs requests.
    pub secret_key: String,
    /// Belongs to keys that are valid for a time only.
    pub session_token: Option<String>,
    /// Authorities of the server, a PEM file. `None` is those of the system.
    pub authorities: Option<PathBuf>,
}

/// Without the secrets.
impl fmt::Debug for Settings {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Settings")
            .field("endpoint", &self.endpoint)
            .field("region", &self.region)
            .field("access_key", &self.access_key)
            .finish_non_exhaustive()
    }
}

impl Settings {
    /// Reads `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION` or
    /// `AWS_DEFAULT_REGION`, `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL`, and `AWS_CA_BUNDLE`.
    ///
    /// # Errors
    /// A key is missing, or the endpoint is not a URL.
    pub fn from_environment() -> Result<Settings, StorageError> {
        Settings::from_variables(|name| env::var(name).ok())
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Settings, StorageError> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let key = |name: &str| {
            let text = || {
                format!(
                    "object storage needs keys in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; {name} is not set"
                )
            };
            set(name).ok_or_else(|| StorageError::Settings(text()))
        };
        let endpoint = set("AWS_ENDPOINT_URL_S3").or_else(|| set("AWS_ENDPOINT_URL"));
        let endpoint = endpoint.map(|url| url.trim_end_matches('/').to_owned());
        if let Some(url) = &endpoint {
            let rest = url
                .strip_prefix("http://")
                .or_else(|| url.strip_prefix("https://"));
            if !rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(['/', '@', '?'])) {
                let text = format!(
                    "AWS_ENDPOINT_URL: {url} is not the URL of a server: https://HOST:PORT"
                );
                return Err(StorageError::Settings(text));
            }
        }
        Ok(Settings {
            endpoint,
            region: set("AWS_REGION")
                .or_else(|| set("AWS_DEFAULT_REGION"))
                .unwrap_or_else(|| "us-east-1".to_owned()),
            access_key: key("AWS_ACCESS_KEY_ID")?,
            secret_key: key("AWS_SECRET_ACCESS_KEY")?,
            session_token: set("AWS_SESSION_TOKEN"),
            authorities: set("AWS_CA_BUNDLE").map(PathBuf::from),
        })
    }

    /// The URL and the path of a bucket. A server of one's own has all buckets under one name; a name with a dot
    /// does not fit Amazon's certificates.
    pub(crate) fn bucket_url(&self, bucket: &str) -> (String, String) {
        match &self.endpoint {
            Some(endpoint) => (endpoint.clone(), format!("/{bucket}")),
            None if bucket.contains('.') => {
                let url = format!("https://s3.{}.amazonaws.com", self.region);
                (url, format!("/{bucket}"))
            }
            None => {
                let url = format!("https://{bucket}.s3.{}.amazonaws.com", self.region);
                (url, String::new())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Settings, String> {
        let found = |name: &str| {
            let one = variables.iter().find(|(other, _)| *other == name);
            one.map(|(_, value)| (*value).to_owned())
        };
        Settings::from_variables(found).map_err(|error| error.to_string())
    }

    const KEYS: [(&str, &str); 2] = [
        ("AWS_ACCESS_KEY_ID", "k"),
        ("AWS_SECRET_ACCESS_KEY", "geheim"),
    ];

    #[test]
    fn settings_are_those_of_other_clients() {
        let amazon = of(&KEYS).unwrap();
        assert!(!format!("{amazon:?}").contains("geheim"));
        let url = amazon.bucket_url("runs");
        assert_eq!(
            url,
            (
                "https://runs.s3.us-east-1.amazonaws.com".into(),
                String::new()
            )
        );
        assert_eq!(amazon.bucket_url("a.b").1, "/a.b");
        let more = [
            ("AWS_ENDPOINT_URL", "http://10.0.0.1:9000/"),
            ("AWS_DEFAULT_REGION", "eu-1"),
        ];
        let own = of(&[KEYS.as_slice(), &more].concat()).unwrap();
        assert_eq!(
            own.bucket_url("runs"),
            ("http://10.0.0.1:9000".into(), "/runs".into())
        );
        assert_eq!(own.region, "eu-1");
    }

    #[test]
    fn missing_keys_and_a_wrong_endpoint_are_errors_that_name_the_variable() {
        let error = of(&KEYS[..1]).unwrap_err();
        assert!(
            error.contains("AWS_SECRET_ACCESS_KEY is not set"),
            "{error}"
        );
        for url in [
            "minio:9000",
            "https://",
            "http://host/bucket",
            "http://a:b@host",
        ] {
            let error = of(&[KEYS.as_slice(), &[("AWS_ENDPOINT_URL", url)]].concat()).unwrap_err();
            assert!(error.contains("AWS_ENDPOINT_URL"), "{url}: {error}");
        }
    }
}
