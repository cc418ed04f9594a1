//! A request to a server behind this one: what is said to it, by its protocol.
//!
//! Source: `gateway`, which has the protocols.

use headway_gateway::fastcgi::FastCgiExchange;
use headway_gateway::proxy::{Forwarding, ProxyExchange, Unforwardable};
use headway_gateway::scgi::ScgiExchange;
use headway_gateway::upstream::Address;
use headway_gateway::{Exchange, HeadLimits, Request};
use headway_http::{Method, Status};

use super::{LocalParty, Place, Places, variables};
use crate::config::{Protocol, Upstreams};
use crate::request::{ProgramName, VirtualHost};

/// What a request asks for, from whom.
pub struct Asked<'a> {
    /// Its location.
    pub place: &'a Place,
    /// Its host.
    pub site: &'a VirtualHost,
    /// What its path names.
    pub program: &'a ProgramName,
    /// Both ends of the client's connection.
    pub parties: LocalParty,
    /// The body's length, if it has one or should have.
    pub body_bytes: Option<u64>,
}

/// The exchange with the back end at `address`. `keep`: the connection is wanted again.
///
/// # Errors
/// When the server has to answer the request itself, in this way.
pub fn talk(
    places: &Places,
    peers: &Upstreams,
    asked: &Asked<'_>,
    request: &Request<'_>,
    address: &Address,
    keep: bool,
) -> Result<Box<dyn Exchange>, Status> {
    let limits = HeadLimits::default();
    let head_only = request.head.method == Method::Head;
    let variables = || {
        let Asked {
            place,
            site,
            program,
            parties,
            body_bytes,
        } = *asked;
        let mut all = variables(places, place, site, program, request, parties, body_bytes);
        // The configuration's come last, and take no place of a request's.
        for (name, value) in &place.location.variables {
            all.add(name.as_bytes(), value.as_bytes());
        }
        all
    };
    Ok(match peers.protocol {
        Protocol::FastCgi => Box::new(FastCgiExchange::new(&variables(), keep, &limits, head_only)),
        Protocol::Scgi => {
            let body_bytes = asked.body_bytes.unwrap_or(0);
            Box::new(ScgiExchange::new(
                &variables(),
                body_bytes,
                &limits,
                head_only,
            ))
        }
        Protocol::Proxy => {
            let authority = address.authority();
            let forwarding = Forwarding {
                remote: asked.parties.remote,
                https: false,
                trusts_client: peers.trust_forwarded,
                authority: authority.as_bytes(),
                keeps_host: peers.preserve_host,
                via: b"headway",
                target: None,
                keep,
                upgrades: peers.max_upgrades > 0,
            };
            let body = request.head.framing.into();
            let exchange = ProxyExchange::new(request, &forwarding, body, &limits);
            Box::new(exchange.map_err(status_of)?)
        }
    })
}

fn status_of(why: Unforwardable) -> Status {
    match why {
        Unforwardable::Method => Status::METHOD_NOT_ALLOWED,
        Unforwardable::MaxForwards => Status::NO_CONTENT,
        Unforwardable::Target => Status::INTERNAL_SERVER_ERROR,
    }
}
