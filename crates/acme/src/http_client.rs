//! Requests to the authority, by HTTPS only.
//!
//! The client remembers `Retry-After`, which the library drops from errors.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
pub(crate) use headway_http_client::RequestError;
use headway_http_client::Timeouts;
use http::Request;
use http_body_util::BodyExt;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};

/// A client which trusts certain authorities.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    client: headway_http_client::Client,
    retry_after: Arc<Mutex<Option<String>>>,
}

impl Client {
    /// One which trusts the certificates in this file, or those of the system.
    pub(crate) fn new(authorities: Option<&Path>) -> Result<Client, RequestError> {
        Ok(Client {
            client: headway_http_client::Client::new(authorities, Timeouts::default())?,
            retry_after: Arc::default(),
        })
    }

    /// `Retry-After` of the last response, and forgets it.
    pub(crate) fn take_retry_after(&self) -> Option<String> {
        self.last_retry_after().take()
    }

    fn last_retry_after(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.retry_after
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl HttpClient for Client {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let client = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let Ok(body) = body.collect().await;
            let request = Request::from_parts(parts, body.to_bytes());
            // RFC 8555, 6.1: nothing is sent without TLS.
            let response = match request.uri().scheme_str() {
                Some("https") => client.client.exchange(&request),
                _ => Err(RequestError::Url(request.uri().to_string())),
            };
            let (parts, body) = response
                .map_err(|error| Error::Other(Box::new(error)))?
                .into_parts();
            let wait = parts.headers.get(http::header::RETRY_AFTER);
            let wait = wait.and_then(|value| value.to_str().ok());
            *client.last_retry_after() = wait.map(str::to_owned);
            Ok(BytesResponse {
                parts,
                body: Box::new(body),
            })
        })
    }
}
