//! Networks of addresses, such as `10.0.0.0/8`, and which proxies in front of the server are trusted.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use headway_gateway::client_address::UNIX_CLIENT;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::error::Findings;
use super::keys::Setting;
use super::ranges::{span, value};
use super::settings::Settings;
use super::units::OneOrMany;

/// The word for clients of Unix sockets.
const UNIX: &str = "unix";

/// What `private` stands for: this machine, its Unix sockets, and the addresses of private networks (RFC
/// 1918, RFC 4193).
const PRIVATE: [&str; 7] = [
    "0.0.0.0/32",
    "127.0.0.0/8",
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "::1/128",
    "fc00::/7",
];

/// The default of `client-address-header`.
const CLIENT_ADDRESS_HEADER: &str = "X-Forwarded-For";

/// One network as it is written, or all that a word stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network(Vec<IpNet>);

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "private" {
            return Ok(Network(
                PRIVATE.iter().filter_map(|one| one.parse().ok()).collect(),
            ));
        }
        if text == UNIX {
            return Ok(Network(vec![UNIX_CLIENT.into()]));
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Network(vec![address.to_canonical().into()]));
        }
        let network: IpNet = text.parse().map_err(|_| {
            format!("`{text}` is not a network; write an address, a network such as 10.0.0.0/8, private or unix")
        })?;
        let mapped = "::ffff:0:0/96".parse::<IpNet>();
        if mapped.is_ok_and(|mapped| mapped.contains(&network)) {
            return Err(format!(
                "`{text}` is of IPv4; write it in the form 10.0.0.0/8"
            ));
        }
        match network.trunc() {
            whole if whole == network => Ok(Network(vec![network])),
            whole => Err(format!(
                "`{text}` is an address within a network; write {whole}"
            )),
        }
    }
}

/// Several networks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Networks(Vec<IpNet>);

impl Networks {
    /// Whether the address is in one of them. An IPv4 address in the form of IPv6 is that IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&OneOrMany<Network>> for Networks {
    fn from(list: &OneOrMany<Network>) -> Networks {
        Networks(list.0.iter().flat_map(|one| one.0.clone()).collect())
    }
}

/// As a list of TOML.
impl fmt::Display for Networks {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |one: &IpNet| match *one == IpNet::from(UNIX_CLIENT) {
            true => format!("\"{UNIX}\""),
            false => format!("\"{one}\""),
        };
        let all: Vec<String> = self.0.iter().map(shown).collect();
        write!(out, "[{}]", all.join(", "))
    }
}

/// Whose requests are answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// Clients outside get 403; if there is none, all are served.
    pub allow: Networks,
    /// Clients inside get 403.
    pub deny: Networks,
}

impl Access {
    pub(super) fn new(
        allow: &Setting<OneOrMany<Network>>,
        deny: &Setting<OneOrMany<Network>>,
    ) -> Access {
        let networks = |item: &Setting<OneOrMany<Network>>| {
            let item = item.as_ref();
            item.map_or_else(Networks::default, |item| item.get_ref().into())
        };
        Access {
            allow: networks(allow),
            deny: networks(deny),
        }
    }

    /// Whether a client is served.
    pub fn admits(&self, client: IpAddr) -> bool {
        (self.allow.is_empty() || self.allow.contains(client)) && !self.deny.contains(client)
    }

    /// Whether all clients are.
    pub fn is_open(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty()
    }
}

/// The proxies in front of the server which name their client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrustedProxies {
    /// Their addresses.
    pub networks: Networks,
    /// The header in which they say it.
    pub header: String,
    /// Whether each of their connections begins with a PROXY header.
    pub proxy_protocol: bool,
}

/// Returns the checked settings.
pub(super) fn trusted_proxies(from: &Settings, to: &mut Findings<'_>) -> TrustedProxies {
    let networks = from.trusted_proxies.as_ref();
    let networks = networks.map_or_else(Networks::default, |item| item.get_ref().into());
    let header = match &from.client_address_header {
        None => CLIENT_ADDRESS_HEADER,
        Some(item) => item.get_ref().as_str(),
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if header.is_empty() || !header.bytes().all(is_plain) {
        let problem = format!("`{header}` is not the name of a header, such as X-Forwarded-For");
        let position = span(&from.client_address_header);
        to.usage_error("client-address-header", position, problem);
    }
    let proxy_protocol = value(&from.proxy_protocol).unwrap_or(false);
    let alone = [
        ("client-address-header", span(&from.client_address_header)),
        (
            "proxy-protocol",
            span(&from.proxy_protocol).filter(|_| proxy_protocol),
        ),
    ];
    for (key, position) in alone {
        if networks.is_empty() && position.is_some() {
            let problem = "no proxy is trusted; set trusted-proxies as well";
            to.usage_error(key, position, problem.into());
        }
    }
    TrustedProxies {
        networks,
        header: header.to_owned(),
        proxy_protocol,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(texts: &[&str]) -> Networks {
        let all = texts.iter().map(|text| text.parse().unwrap()).collect();
        Networks::from(&OneOrMany(all))
    }

    #[test]
    fn networks_contain_their_addresses_and_no_others() {
        let some = networks(&["::ffff:192.0.2.7", "10.0.0.0/8", "2001:db8::/32"]);
        for (address, is_in) in [
            ("192.0.2.7", true),
            ("192.0.2.8", false),
            ("10.255.255.255", true),
            ("11.0.0.0", false),
            ("::ffff:10.1.2.3", true),
            ("2001:db8:ffff::1", true),
            ("2001:db9::1", false),
        ] {
            assert_eq!(some.contains(address.parse().unwrap()), is_in, "{address}");
        }
        let private = networks(&["private"]);
        for (address, is_in) in [
            ("127.0.0.1", true),
            ("172.31.0.1", true),
            ("172.32.0.1", false),
            ("::1", true),
            ("fd00::1", true),
            ("192.0.2.1", false),
            ("0.0.0.0", true),
        ] {
            assert_eq!(
                private.contains(address.parse().unwrap()),
                is_in,
                "{address}"
            );
        }
        assert!(!Networks::default().contains("127.0.0.1".parse().unwrap()));
    }

    #[test]
    fn clients_are_served_when_they_are_allowed_and_not_denied() {
        let access = |allow: &[&str], deny: &[&str]| Access {
            allow: networks(allow),
            deny: networks(deny),
        };
        let (all, some) = (
            access(&[], &["10.1.0.0/16"]),
            access(&["10.0.0.0/8"], &["10.1.0.0/16"]),
        );
        for (client, by_all, by_some) in [
            ("10.2.0.1", true, true),
            ("10.1.0.1", false, false),
            ("192.0.2.1", true, false),
        ] {
            let client = client.parse().unwrap();
            assert_eq!(
                (all.admits(client), some.admits(client)),
                (by_all, by_some),
                "{client}"
            );
        }
        assert!(Access::default().is_open() && !all.is_open() && !some.is_open());
    }

    #[test]
    fn networks_read_back_as_printed() {
        let printed = networks(&["10.0.0.0/8", "unix", "::1"]).to_string();
        assert_eq!(printed, "[\"10.0.0.0/8\", \"unix\", \"::1/128\"]");
    }

    #[test]
    fn network_is_an_error_when_it_is_none_or_ambiguous() {
        for (text, part) in [
            ("10.0.0.1/8", "write 10.0.0.0/8"),
            ("::ffff:10.0.0.0/104", "is of IPv4"),
            ("10.0.0.0/33", "is not a network"),
            ("example.com", "is not a network"),
            ("", "is not a network"),
            ("10.0.0.0-10.0.0.9", "is not a network"),
        ] {
            let error = text.parse::<Network>().expect_err(text);
            assert!(error.contains(part), "{error}");
        }
    }
}
