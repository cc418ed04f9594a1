//! The method of requests.

/// The methods that a server may be asked with; not CONNECT, which makes a tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// The method GET.
    #[default]
    Get,
    /// `HEAD`: the response has headers only.
    Head,
    /// The method POST.
    Post,
    /// The method PUT.
    Put,
    /// The method PATCH.
    Patch,
    /// The method DELETE.
    Delete,
    /// The method OPTIONS.
    Options,
}

impl Method {
    /// Every method.
    pub const ALL: [Method; 7] = [
        Method::Get,
        Method::Head,
        Method::Post,
        Method::Put,
        Method::Patch,
        Method::Delete,
        Method::Options,
    ];

    /// As in the request line.
    pub fn name(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Patch => "PATCH",
            Method::Delete => "DELETE",
            Method::Options => "OPTIONS",
        }
    }

    /// Whether a request may be sent again without doing more than once (RFC 9110 section 9.2.2).
    pub(crate) fn is_idempotent(self) -> bool {
        !matches!(self, Method::Post | Method::Patch)
    }

    /// Whether a request without a body says so: servers expect one (RFC 9110 section 8.6).
    pub(crate) fn expects_body(self) -> bool {
        matches!(self, Method::Post | Method::Put | Method::Patch)
    }
}
