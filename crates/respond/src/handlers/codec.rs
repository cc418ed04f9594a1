//! Creates the codec for a request to an upstream: FastCGI, SCGI or HTTP/1.1. The protocols
//! themselves are in the `gateway` crate.

use headway_config::{Protocol, Upstreams};
use headway_gateway::fastcgi::FastCgiCodec;
use headway_gateway::proxy::{Forwarding, ProxyCodec, Unforwardable};
use headway_gateway::scgi::ScgiCodec;
use headway_gateway::upstream::Address;
use headway_gateway::{Codec, Request};
use headway_http::{Method, Status};
use headway_request::{ProgramName, VirtualHost};

use super::{Endpoints, Route, Routes, variables};

/// What a codec needs to know about a request.
pub struct CodecContext<'a> {
    /// The location.
    pub route: &'a Route,
    /// The virtual host.
    pub site: &'a VirtualHost,
    /// The program that the path names.
    pub program: &'a ProgramName,
    /// The two addresses of the client's connection.
    pub endpoints: Endpoints<'a>,
    /// Length of the body, if it has one or should have one.
    pub body_bytes: Option<u64>,
}

/// Creates the codec for a request to the upstream at `address`. `keep`: the connection should be
/// kept alive.
///
/// # Errors
/// The status with which the server answers the request itself.
pub fn new_codec(
    routes: &Routes,
    upstreams: &Upstreams,
    context: &CodecContext<'_>,
    request: &Request<'_>,
    address: &Address,
    keep: bool,
) -> Result<Box<dyn Codec>, Status> {
    let limits = context.route.location.response_limits();
    let head_only = request.head.method == Method::Head;
    let variables = || {
        let CodecContext {
            route,
            site,
            program,
            endpoints,
            body_bytes,
        } = *context;
        let mut all = variables(routes, route, site, program, request, endpoints, body_bytes);
        // The configured variables come last and do not replace those of the request.
        for (name, value) in &route.location.variables {
            all.add(name.as_bytes(), value.as_bytes());
        }
        all
    };
    Ok(match upstreams.protocol {
        Protocol::FastCgi => Box::new(FastCgiCodec::new(&variables(), keep, &limits, head_only)),
        Protocol::Scgi => {
            let body_bytes = context.body_bytes.unwrap_or(0);
            Box::new(ScgiCodec::new(&variables(), body_bytes, &limits, head_only))
        }
        Protocol::Proxy => {
            let authority = upstreams.authority(address);
            let forwarding = Forwarding {
                remote: context.endpoints.sender,
                client: context.endpoints.named_client(),
                https: context.endpoints.is_tls,
                certificate: context.endpoints.tls.and_then(|tls| tls.certificate),
                trusts_client: upstreams.trust_forwarded,
                authority: authority.as_bytes(),
                keeps_host: upstreams.preserve_host,
                via: b"headway",
                strip: upstreams.strip.as_bytes(),
                keep,
                upgrades: upstreams.max_upgrades > 0,
            };
            let body = request.head.framing.into();
            let exchange = ProxyCodec::new(request, &forwarding, body, &limits);
            Box::new(exchange.map_err(status_of)?)
        }
    })
}

fn status_of(why: Unforwardable) -> Status {
    match why {
        Unforwardable::Method => Status::METHOD_NOT_ALLOWED,
        Unforwardable::MaxForwards => Status::OK,
        Unforwardable::Loop => Status::LOOP_DETECTED,
        Unforwardable::Target => Status::INTERNAL_SERVER_ERROR,
    }
}
