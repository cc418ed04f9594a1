//! A request of an HTTP/2 client of the crate h2, and what has come of its response.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Request};

/// A request, and what has come of its response.
pub struct Exchange {
    response: Option<ResponseFuture>,
    /// Where its body is sent.
    pub send: SendStream<Bytes>,
    /// What is left of its body.
    body: VecDeque<u8>,
    is_sent: bool,
    /// More of its body may follow, as on a WebSocket.
    pub is_open: bool,
    /// What follows its body.
    pub own_trailers: Option<HeaderMap>,
    receive: Option<RecvStream>,
    /// A client that does not read the response gives no room for more of it.
    pub reads: bool,
    /// 0 until it is known.
    pub status: u16,
    /// The headers of the response.
    pub headers: HeaderMap,
    /// The body of the response.
    pub received: Vec<u8>,
    /// What followed the body.
    pub trailers: HeaderMap,
    /// How it ended: `Ok`, or the reason of a reset.
    pub end: Option<Result<(), Reason>>,
}

impl Exchange {
    /// Begins a request with this body, if it has one. The sender is ready.
    pub fn begin(
        sender: &mut SendRequest<Bytes>,
        request: Request<()>,
        body: Option<&[u8]>,
    ) -> Exchange {
        let (response, send) = sender.send_request(request, body.is_none()).unwrap();
        Exchange {
            response: Some(response),
            send,
            body: body.unwrap_or_default().iter().copied().collect(),
            is_sent: body.is_none(),
            is_open: false,
            own_trailers: None,
            receive: None,
            reads: true,
            status: 0,
            headers: HeaderMap::new(),
            received: Vec::new(),
            trailers: HeaderMap::new(),
            end: None,
        }
    }

    /// Sends and takes what it can now.
    pub fn step(&mut self) {
        let context = &mut Context::from_waker(Waker::noop());
        if !self.is_sent {
            self.send.reserve_capacity(self.body.len());
            let count = self.send.capacity().min(self.body.len());
            let data: Vec<u8> = self.body.drain(..count).collect();
            let is_last = self.body.is_empty() && !self.is_open;
            let trailers = self.own_trailers.take_if(|_| is_last);
            if count > 0 || is_last {
                // A stream that was reset takes no more.
                let ends = is_last && trailers.is_none();
                self.is_sent = self.send.send_data(data.into(), ends).is_err() || is_last;
            }
            if let Some(trailers) = trailers {
                let _ = self.send.send_trailers(trailers);
            }
        }
        let failed = |error: h2::Error| Some(Err(error.reason().unwrap_or(Reason::NO_ERROR)));
        if let Some(response) = &mut self.response
            && let Poll::Ready(response) = Pin::new(response).poll(context)
        {
            self.response = None;
            match response {
                Ok(response) => {
                    self.status = response.status().as_u16();
                    self.headers = response.headers().clone();
                    self.receive = Some(response.into_body());
                }
                Err(error) => self.end = failed(error),
            }
        }
        while self.reads
            && self.end.is_none()
            && let Some(receive) = &mut self.receive
            && let Poll::Ready(data) = receive.poll_data(context)
        {
            match data {
                Some(Ok(data)) => {
                    self.received.extend_from_slice(&data);
                    let _ = receive.flow_control().release_capacity(data.len());
                }
                Some(Err(error)) => self.end = failed(error),
                None => {
                    if let Poll::Ready(Ok(Some(trailers))) = receive.poll_trailers(context) {
                        self.trailers = trailers;
                    }
                    self.end = Some(Ok(()));
                }
            }
        }
    }

    /// Sends more of the body.
    pub fn say(&mut self, bytes: &[u8]) {
        self.body.extend(bytes);
    }

    /// A header of the response.
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }

    /// The body of a response that has ended well.
    pub fn text(&self) -> String {
        assert_eq!(self.end, Some(Ok(())), "{}", self.status);
        String::from_utf8_lossy(&self.received).into_owned()
    }
}
