//! One request to an HTTP/1.1 upstream, and its response.

use headway_http::chunked::{ChunkedDrain, DrainLimits, DrainProgress};

use crate::codec::{Codec, CodecError, Outbox};
use crate::fields::FieldList;
use crate::invalid_response::InvalidResponse;
use crate::proxy::request::{
    Body, Forwarding, Unforwardable, upgrades, wants_trailers, write_request,
};
use crate::proxy::response::{Ending, FinalHeadReader, Head, RequestInfo};
use crate::request::Request;
use crate::response::{HeadLimits, ResponseAction, ResponseEnd, ResponseEvent};

/// A response's body may have any size, but its framing is limited: no real upstream sends more
/// than a page of chunk extensions.
const CHUNK_LIMITS: DrainLimits = DrainLimits {
    body_bytes_max: u64::MAX,
    extension_bytes_max: 64 * 1024,
    trailer_bytes_max: 16 * 1024,
};

/// Room for the header fields that this server adds to those of a client.
const OWN_FIELDS_BYTES: usize = 512;

/// Codec of one request and its response.
///
/// ```
/// use headway_gateway::proxy::{Body, Forwarding, ProxyCodec};
/// use headway_gateway::{ResponseEvent, Codec, HeadLimits, Request};
/// use headway_http::Parsed;
///
/// let bytes = b"GET /a HTTP/1.1\r\nHost: example.org\r\n\r\n";
/// let Parsed::Complete(head) = headway_http::parse(bytes, &headway_http::HeadLimits::default())
/// else { panic!() }; let forwarding = Forwarding {
///     remote: "192.0.2.7:50000".parse().unwrap(),
///     client: None,
///     https: false,
///     certificate: None,
///     trusts_client: false,
///     authority: b"127.0.0.1:8080",
///     keeps_host: true,
///     via: b"headway",
///     strip: b"",
///     keep: true,
///     upgrades: true,
/// };
/// let request = Request::new(&head, bytes);
/// let mut codec =
///     ProxyCodec::new(&request, &forwarding, Body::None, &HeadLimits::default()).unwrap();
/// codec.sent(codec.unsent().len());
///
/// let mut input = &b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"[..];
/// assert!(matches!(codec.feed(&mut input), Ok(Some(ResponseEvent::Head(_)))));
/// assert_eq!(codec.feed(&mut input), Ok(Some(ResponseEvent::Body(b"hello"))));
/// assert!(matches!(codec.feed(&mut input), Ok(Some(ResponseEvent::End(end))) if end.reusable));
/// ```
///
/// After a response with status 101, [`ResponseEvent::Body`] carries any bytes of the upstream, and
/// [`Codec::push_body`] accepts any bytes of the client. The server itself writes `Connection` and
/// `Upgrade` into the client's response, like every field about the connection.
#[derive(Debug)]
pub struct ProxyCodec {
    out: Outbox,
    body: RequestBodyState,
    keep: bool,
    /// Of the response; `None` if the client accepts none.
    trailers: Option<FieldList>,
    incoming: ResponseState,
}

/// State of the request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestBodyState {
    Length(u64),
    Chunked,
    /// Any bytes, after an upgrade.
    Raw,
    /// All of the body has been pushed.
    Complete,
    /// The body ended before its declared length, so the upstream waits for the rest.
    Cut,
}

/// State of the response. One per request, never moved after it was created.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)]
enum ResponseState {
    Head(FinalHeadReader),
    Body { body: ResponseBody, discards: bool },
    Over,
}

#[derive(Debug)]
enum ResponseBody {
    Length {
        declared: u64,
        left: u64,
    },
    Chunked(ChunkedDrain),
    /// Until the connection ends.
    Rest,
}

impl ProxyCodec {
    /// A request with this framing of its body. `limits` apply to the response.
    ///
    /// # Errors
    /// When the server must answer the request itself.
    pub fn new(
        request: &Request<'_>,
        forwarding: &Forwarding<'_>,
        body: Body,
        limits: &HeadLimits,
    ) -> Result<ProxyCodec, Unforwardable> {
        let mut out = Outbox::with_room(request.head.length + OWN_FIELDS_BYTES);
        write_request(out.bytes(), request, forwarding, body)?;
        let trailers = wants_trailers(request).then(FieldList::default);
        let request_info = RequestInfo {
            head_only: request.head.method == headway_http::Method::Head,
            upgrades: upgrades(request, forwarding, body),
        };
        Ok(ProxyCodec {
            out,
            body: match body {
                Body::None | Body::Length(0) => RequestBodyState::Complete,
                Body::Length(bytes) => RequestBodyState::Length(bytes),
                Body::Chunked => RequestBodyState::Chunked,
            },
            keep: forwarding.keep,
            trailers,
            incoming: ResponseState::Head(FinalHeadReader::new(limits, request_info)),
        })
    }

    fn begin_body(&mut self, head: Head) -> ResponseEvent<'static> {
        self.keep &= head.keep;
        let body = match head.ending {
            Ending::None => ResponseBody::Length {
                declared: 0,
                left: 0,
            },
            Ending::Length(bytes) => ResponseBody::Length {
                declared: bytes,
                left: bytes,
            },
            Ending::Chunked => {
                let chunks = ChunkedDrain::new(CHUNK_LIMITS);
                ResponseBody::Chunked(match self.trailers {
                    Some(_) => chunks.keeping_trailers(),
                    None => chunks,
                })
            }
            Ending::Close => ResponseBody::Rest,
            Ending::Upgrade => {
                self.body = RequestBodyState::Raw;
                ResponseBody::Rest
            }
        };
        self.incoming = ResponseState::Body {
            body,
            discards: head.response.accel_redirect.is_some() || head.response.is_reset_content(),
        };
        ResponseEvent::Head(ResponseAction::Response(head.response))
    }

    fn end(&mut self, input: &[u8]) -> ResponseEvent<'static> {
        let incoming = std::mem::replace(&mut self.incoming, ResponseState::Over);
        if let ResponseState::Body {
            body: ResponseBody::Chunked(chunks),
            ..
        } = incoming
            && let Some(trailers) = &mut self.trailers
        {
            *trailers = crate::trailers::passed(chunks.trailers());
        }
        let is_clean = input.is_empty() && self.out.unsent().is_empty();
        ResponseEvent::End(ResponseEnd {
            reusable: self.keep && is_clean && self.body == RequestBodyState::Complete,
            ..ResponseEnd::default()
        })
    }
}

impl ResponseBody {
    /// The next piece of the body; `None` if more bytes are needed. The second value says whether
    /// the body is complete.
    fn next<'i>(&mut self, input: &mut &'i [u8]) -> Result<(Option<&'i [u8]>, bool), CodecError> {
        match self {
            ResponseBody::Rest => Ok((non_empty(std::mem::take(input)), false)),
            ResponseBody::Length { left, .. } => {
                let taken = input
                    .len()
                    .min(usize::try_from(*left).unwrap_or(usize::MAX));
                let (piece, rest) = input.split_at(taken);
                *input = rest;
                *left -= taken as u64;
                Ok((non_empty(piece), *left == 0))
            }
            ResponseBody::Chunked(chunks) => {
                let piece = chunks.next_piece(input);
                match chunks.feed(&[]) {
                    DrainProgress::Bad => Err(CodecError::BadChunk),
                    DrainProgress::TooLarge => Err(CodecError::ChunkTooLong),
                    progress => Ok((piece, progress == DrainProgress::Done(0))),
                }
            }
        }
    }

    /// The connection ends here.
    fn finish(self) -> Result<ResponseEnd, CodecError> {
        match self {
            ResponseBody::Rest | ResponseBody::Length { left: 0, .. } => Ok(ResponseEnd::default()),
            ResponseBody::Length { declared, left } => {
                Err(CodecError::Response(InvalidResponse::BodyCut {
                    body_bytes: declared - left,
                    declared_bytes: declared,
                }))
            }
            ResponseBody::Chunked(mut chunks) => match chunks.feed(&[]) {
                DrainProgress::Done(_) => Ok(ResponseEnd::default()),
                _ => Err(CodecError::Closed),
            },
        }
    }
}

fn non_empty(piece: &[u8]) -> Option<&[u8]> {
    (!piece.is_empty()).then_some(piece)
}

impl Codec for ProxyCodec {
    fn unsent(&self) -> &[u8] {
        self.out.unsent()
    }

    fn sent(&mut self, bytes: usize) {
        self.out.advance(bytes);
    }

    /// Takes no more than was announced.
    fn push_body(&mut self, bytes: &[u8]) -> usize {
        let announced = match self.body {
            RequestBodyState::Length(left) => {
                bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX))
            }
            RequestBodyState::Chunked | RequestBodyState::Raw => bytes.len(),
            RequestBodyState::Complete | RequestBodyState::Cut => 0,
        };
        let taken = self.out.fitting(&bytes[..announced]);
        if taken.is_empty() {
            return 0;
        }
        match &mut self.body {
            RequestBodyState::Chunked => write_chunk(self.out.bytes(), taken),
            RequestBodyState::Length(left) => {
                *left -= taken.len() as u64;
                if *left == 0 {
                    self.body = RequestBodyState::Complete;
                }
                self.out.bytes().extend_from_slice(taken);
            }
            _ => self.out.bytes().extend_from_slice(taken),
        }
        taken.len()
    }

    fn end_body(&mut self, trailers: &FieldList) {
        self.body = match self.body {
            RequestBodyState::Chunked => {
                let out = self.out.bytes();
                out.extend_from_slice(b"0\r\n");
                trailers.write(out);
                out.extend_from_slice(b"\r\n");
                RequestBodyState::Complete
            }
            RequestBodyState::Length(_) => RequestBodyState::Cut,
            RequestBodyState::Raw | RequestBodyState::Complete => RequestBodyState::Complete,
            RequestBodyState::Cut => RequestBodyState::Cut,
        };
    }

    fn feed<'i>(&mut self, input: &mut &'i [u8]) -> Result<Option<ResponseEvent<'i>>, CodecError> {
        loop {
            match &mut self.incoming {
                ResponseState::Over => return Ok(None),
                ResponseState::Head(head) => {
                    let head = head.feed(input)?;
                    return Ok(head.map(|head| self.begin_body(head)));
                }
                ResponseState::Body { body, discards } => match body.next(input)? {
                    (Some(_), _) if *discards => {}
                    (Some(piece), _) => return Ok(Some(ResponseEvent::Body(piece))),
                    (None, true) => return Ok(Some(self.end(input))),
                    (None, false) => return Ok(None),
                },
            }
        }
    }

    fn finish(&mut self) -> Result<ResponseEnd, CodecError> {
        match std::mem::replace(&mut self.incoming, ResponseState::Over) {
            ResponseState::Head(head) => Err(head.cut().into()),
            ResponseState::Body { body, .. } => body.finish(),
            ResponseState::Over => Ok(ResponseEnd::default()),
        }
    }

    fn is_open_ended(&self) -> bool {
        let body = match &self.incoming {
            ResponseState::Body { body, .. } => Some(body),
            ResponseState::Head(_) | ResponseState::Over => None,
        };
        matches!(body, Some(ResponseBody::Rest))
    }

    fn trailers(&self) -> FieldList {
        self.trailers.clone().unwrap_or_default()
    }

    fn has_head(&self) -> bool {
        !matches!(self.incoming, ResponseState::Head(_))
    }
}

fn write_chunk(out: &mut Vec<u8>, content: &[u8]) {
    out.extend_from_slice(format!("{:x}\r\n", content.len()).as_bytes());
    out.extend_from_slice(content);
    out.extend_from_slice(b"\r\n");
}
