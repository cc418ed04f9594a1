//! The link: a network name space for the server, and a pair of virtual Ethernet devices with a
//! limited rate between it and the machine.
//!
//! Both ends send through a token bucket (`tbf`), since a rate is kept where packets leave. The
//! bucket is short, a quarter of a millisecond of the rate, so that also a small response takes its
//! time on the wire; the queue in front of it is long, so that nothing is dropped there: a socket's
//! own queue holds a sender back, as a network card's does. Not emulated: propagation delay and
//! loss.
//!
//! Where every client address has a rate of its own, as clients that are machines with network
//! cards have, the server's end is a hierarchy of such buckets (`htb`): a class with a queue for each
//! address, all of them within the link.
//!
//! Addresses come from 198.18.0.0/15, set aside for measurements of network devices (RFC 2544,
//! appendix C; RFC 6890) and so used by no network; the first of its /24 networks that overlaps no
//! route of this machine.
//!
//! Sources: tc-tbf(8), tc-htb(8), tc-u32(8), veth(4), ip-netns(8).

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::tool;

/// A link to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSpec {
    /// In each direction, Ethernet headers included: 100 000 000 to 10 000 000 000 is what was
    /// measured; the tests measure the first.
    pub bits_per_second: u64,
    /// From the server to each address of the client, within the link; absent: the link is shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_bits_per_second: Option<u64>,
}

impl LinkSpec {
    /// A link that all addresses share.
    pub fn new(bits_per_second: u64) -> LinkSpec {
        LinkSpec {
            bits_per_second,
            client_bits_per_second: None,
        }
    }
}

/// The two ends of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Addresses {
    /// Inside the name space.
    pub server: Ipv4Addr,
    /// On the machine: the first of several.
    pub client: Ipv4Addr,
}

/// One direction of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Direction {
    /// Sent, Ethernet headers included.
    pub bytes: u64,
    /// Packets sent, counted as they are on the wire.
    pub packets: u64,
    /// Packets dropped because the queue was full.
    pub drops: u64,
    /// Bytes that wait for their turn.
    pub waiting_bytes: u64,
}

/// A client that opens and gives up thousands of connections per second uses up the ports of one
/// address: 28,000, each kept for a minute after its connection. The time in which it finds that
/// out would be the server's in every figure.
const CLIENT_ADDRESSES: u32 = 16;

impl Addresses {
    /// Every address of the client's end.
    pub fn clients(&self) -> impl Iterator<Item = Ipv4Addr> {
        let first = self.client.to_bits();
        (first..first + CLIENT_ADDRESSES).map(Ipv4Addr::from_bits)
    }
}

/// The counters of a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LinkStatus {
    /// Limit in each direction.
    pub bits_per_second: u64,
    /// Limit from the server to each address of the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_bits_per_second: Option<u64>,
    /// The server's end.
    pub server_ip: Ipv4Addr,
    /// The client's end.
    pub client_ip: Ipv4Addr,
    /// All its addresses: for a client that would run out of ports.
    pub client_ips: Vec<Ipv4Addr>,
    /// Traffic from the server to the client.
    pub to_client: Direction,
    /// Traffic from the client to the server.
    pub to_server: Direction,
}

/// Every name of a link follows from its lab's name, so that it can be removed without a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    /// Of the name space, and the alias of the client's device.
    pub space: String,
    /// The device on the machine.
    pub client_device: String,
    /// The device in the name space.
    pub server_device: String,
}

/// A device's name holds 15 bytes, so it carries a hash (FNV-1a) of the lab's name.
pub(crate) fn names(lab: &str) -> Names {
    let hash = lab.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    Names {
        space: format!("{}{lab}", crate::PREFIX),
        client_device: format!("hwl{hash:08x}c"),
        server_device: format!("hwl{hash:08x}s"),
    }
}

impl Names {
    /// The file that keeps the name space: where ip(8) looks for it, so that its `netns` commands
    /// work, too.
    pub fn file(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.space)
    }
}

/// A rate that tbf and a 32-bit bucket can keep.
pub(crate) fn check(link: &LinkSpec) -> Result<(), LabError> {
    let of_client = link.client_bits_per_second.unwrap_or(link.bits_per_second);
    for rate in [link.bits_per_second, of_client] {
        if !(1_000_000..=100_000_000_000).contains(&rate) {
            return Err(LabError::Value(format!(
                "a link of {rate} bit/s cannot be made: give 1Mbit to 100Gbit"
            )));
        }
    }
    match of_client <= link.bits_per_second {
        true => Ok(()),
        false => Err(LabError::Value(format!(
            "an address of the client cannot have {of_client} bit/s of a link of {} bit/s",
            link.bits_per_second
        ))),
    }
}

/// Creates the network namespace. Not with `ip netns add`: that turns /run/netns into a mount of
/// its own, which would stay.
pub(crate) fn make_space(names: &Names) -> Result<(), LabError> {
    let file = names.file();
    let directory = Path::new("/run/netns");
    fs::create_dir_all(directory).map_err(LabError::file("making the directory", directory))?;
    fs::File::create(&file).map_err(LabError::file("making", &file))?;
    tool::run(
        "unshare",
        &[format!("--net={}", file.display()), "true".into()],
    )?;
    Ok(())
}

/// Creates the devices with their addresses and rates.
pub(crate) fn make_link(names: &Names, link: &LinkSpec, ends: Addresses) -> Result<(), LabError> {
    let (space, client, server) = (&names.space, &names.client_device, &names.server_device);
    tool::run_line(&format!(
        "ip link add {client} alias {space} type veth peer name {server} netns {space}"
    ))?;
    // Nothing here speaks IPv6; without this each end would send router solicitations into the
    // measurement.
    tool::run_line(&format!("ip link set {client} addrgenmode none"))?;
    tool::run_line(&format!("ip -n {space} link set {server} addrgenmode none"))?;
    for address in ends.clients() {
        tool::run_line(&format!("ip addr add {address}/24 dev {client}"))?;
    }
    tool::run_line(&format!(
        "ip -n {space} addr add {}/24 dev {server}",
        ends.server
    ))?;
    let bucket = bucket(link.bits_per_second);
    tool::run_line(&format!("tc qdisc add dev {client} root {bucket}"))?;
    match link.client_bits_per_second {
        None => {
            tool::run_line(&format!(
                "tc -n {space} qdisc add dev {server} root {bucket}"
            ))?;
        }
        Some(rate) => divide(names, link.bits_per_second, rate, ends)?,
    }
    tool::run_line(&format!("ip -n {space} link set lo up"))?;
    tool::run_line(&format!("ip -n {space} link set {server} up"))?;
    tool::run_line(&format!("ip link set {client} up"))?;
    // The server's packets for other networks have nowhere to go: a lab reaches the machine and
    // nothing beyond.
    Ok(())
}

/// Gives each address of the client a class of this rate at the server's end. What goes to none of
/// them (ARP) is not delayed.
fn divide(names: &Names, link: u64, rate: u64, ends: Addresses) -> Result<(), LabError> {
    let (space, server) = (&names.space, &names.server_device);
    // htb sends a packet whole and waits afterwards, so an unsegmented one of 64 KB would arrive as
    // fast as one of 1 KB.
    tool::run_line(&format!(
        "ip -n {space} link set {server} gso_max_segs {SEGMENTS_MAX}"
    ))?;
    let tc = |words: String| tool::run_line(&format!("tc -n {space} {words}"));
    tc(format!("qdisc add dev {server} root handle 1: htb"))?;
    let of = |rate: u64| {
        let burst = burst(rate);
        format!("htb rate {rate}bit burst {burst} cburst {burst} quantum {QUANTUM}")
    };
    tc(format!(
        "class add dev {server} parent 1: classid 1:1 {}",
        of(link)
    ))?;
    // Numbers of classes are hexadecimal.
    for (number, address) in (0x10..).zip(ends.clients()) {
        tc(format!(
            "class add dev {server} parent 1:1 classid 1:{number:x} {}",
            of(rate)
        ))?;
        tc(format!(
            "qdisc add dev {server} parent 1:{number:x} bfifo limit {QUEUE_BYTES}"
        ))?;
        tc(format!(
            "filter add dev {server} parent 1: protocol ip u32 match ip dst {address}/32 flowid 1:{number:x}"
        ))?;
    }
    Ok(())
}

/// Segments of a packet that the devices pass on undivided to a link of classes.
const SEGMENTS_MAX: u32 = 2;

/// What a class may send in one turn of several that have something: two packets.
const QUANTUM: u32 = 3028;

/// A queue of 64 MiB: the first windows of 4000 connections (14 KB each), and more than any buffer
/// of a socket.
const QUEUE_BYTES: u64 = 64 << 20;

/// The bucket of a rate: a quarter of a millisecond, and a whole packet of 1514 bytes at least;
/// larger ones, which the devices pass on unsegmented, tbf divides.
fn burst(bits_per_second: u64) -> u64 {
    (bits_per_second / 8 / 4000).max(4096)
}

/// tc's words for a rate.
fn bucket(bits_per_second: u64) -> String {
    let burst = burst(bits_per_second);
    format!("tbf rate {bits_per_second}bit burst {burst} limit {QUEUE_BYTES}")
}

/// Addresses of an unused network.
///
/// # Errors
/// ip(8) fails; or every candidate overlaps a route.
pub(crate) fn free_addresses() -> Result<Addresses, LabError> {
    let text = tool::run_line("ip -4 -j route show table all")?;
    let routes = routes(&text);
    (0..512_u32)
        .map(|index| (198 << 24 | 18 << 16) + (index << 8))
        .find(|&network| !routes.iter().any(|route| overlaps(*route, (network, 24))))
        .map(|network| Addresses {
            server: Ipv4Addr::from_bits(network + 1),
            client: Ipv4Addr::from_bits(network + 2),
        })
        .ok_or_else(|| {
            let why = "every network of 198.18.0.0/15 is in use on this machine (`ip route show table all`)";
            LabError::Value(why.into())
        })
}

/// Destinations as (network, prefix length). What is not an address ("default") or covers a two
/// hundred and fifty-sixth of all addresses or more (a tunnel that takes everything) is no use of a
/// particular network.
fn routes(json: &str) -> Vec<(u32, u32)> {
    let entries: Vec<serde_json::Value> = serde_json::from_str(json.trim()).unwrap_or_default();
    entries
        .iter()
        .filter_map(|entry| {
            let destination = entry["dst"].as_str()?;
            let (address, length) = destination.split_once('/').unwrap_or((destination, "32"));
            Some((
                address.parse::<Ipv4Addr>().ok()?.to_bits(),
                length.parse().ok()?,
            ))
        })
        .filter(|&(_, length)| length > 8 && length <= 32)
        .collect()
}

fn overlaps(one: (u32, u32), other: (u32, u32)) -> bool {
    let shorter = one.1.min(other.1);
    let mask = u32::MAX.checked_shl(32 - shorter).unwrap_or(0);
    one.0 & mask == other.0 & mask
}

/// Moves the calling thread into the name space.
pub(crate) fn enter(names: &Names) -> Result<(), LabError> {
    use std::os::fd::AsFd;
    let file = names.file();
    let space = fs::File::open(&file).map_err(LabError::file("opening", &file))?;
    let kind = Some(rustix::thread::LinkNameSpaceType::Network);
    rustix::thread::move_into_link_name_space(space.as_fd(), kind)
        .map_err(|error| LabError::file("entering the name space", &file)(error.into()))
}

/// What went over the link.
pub(crate) fn status(
    names: &Names,
    link: &LinkSpec,
    ends: Addresses,
) -> Result<LinkStatus, LabError> {
    let show = |options: &str, device: &str| {
        let text = tool::run_line(&format!("tc{options} -s -j qdisc show dev {device}"))?;
        Ok::<_, LabError>(direction(&text))
    };
    Ok(LinkStatus {
        bits_per_second: link.bits_per_second,
        client_bits_per_second: link.client_bits_per_second,
        server_ip: ends.server,
        client_ip: ends.client,
        client_ips: ends.clients().collect(),
        to_client: show(&format!(" -n {}", names.space), &names.server_device)?,
        to_server: show("", &names.client_device)?,
    })
}

fn direction(json: &str) -> Direction {
    let entries: Vec<serde_json::Value> = serde_json::from_str(json.trim()).unwrap_or_default();
    let is_root = |entry: &&serde_json::Value| entry["kind"] == "tbf" || entry["kind"] == "htb";
    let Some(entry) = entries.iter().find(is_root) else {
        return Direction::default();
    };
    let number = |name: &str| entry[name].as_u64().unwrap_or(0);
    Direction {
        bytes: number("bytes"),
        packets: number("packets"),
        drops: number("drops"),
        waiting_bytes: number("backlog"),
    }
}

/// Processes inside the name space: those whose `ns/net` is the very object that the file keeps.
pub(crate) fn processes(names: &Names) -> Vec<u32> {
    use std::os::unix::fs::MetadataExt;
    let Ok(kept) = fs::metadata(names.file()) else {
        return Vec::new();
    };
    let inside = |process: &u32| {
        fs::metadata(format!("/proc/{process}/ns/net"))
            .is_ok_and(|space| space.ino() == kept.ino() && space.dev() == kept.dev())
    };
    crate::processes::all().into_iter().filter(inside).collect()
}

/// Removes the devices; fine if they are gone.
pub(crate) fn remove_link(names: &Names) -> Result<(), LabError> {
    let device = Path::new("/sys/class/net").join(&names.client_device);
    if !device.exists() {
        return Ok(());
    }
    tool::run("ip", &["link", "del", &names.client_device]).map(drop)
}

/// Removes the name space; fine if it is gone, or if only its file was made.
pub(crate) fn remove_space(names: &Names) -> Result<(), LabError> {
    let file = names.file();
    if !file.exists() {
        return Ok(());
    }
    // EINVAL: nothing is mounted on it. Detached, because a process that is just ending may still
    // hold it.
    while rustix::mount::unmount(&file, rustix::mount::UnmountFlags::DETACH).is_ok() {}
    fs::remove_file(&file).map_err(LabError::file("removing", &file))
}

/// Names of labs that a name space or a device of this machine carries.
pub(crate) fn labs_with_links() -> Vec<String> {
    let spaces = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let spaces = spaces.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let devices = fs::read_dir("/sys/class/net")
        .into_iter()
        .flatten()
        .flatten();
    let aliases = devices
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("hwl"))
        .filter_map(|entry| fs::read_to_string(entry.path().join("ifalias")).ok());
    spaces
        .chain(aliases)
        .filter_map(|name| Some(name.trim().strip_prefix(crate::PREFIX)?.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_is_in_use_when_a_route_holds_it_or_is_held_by_it() {
        let used = routes(
            r#"[{"dst":"default","gateway":"10.0.0.1"},{"dst":"198.18.0.0/16"},
                {"type":"local","dst":"198.19.3.1"},{"dst":"0.0.0.0/1"},{"dst":"128.0.0.0/1"}]"#,
        );
        assert_eq!(used.len(), 2, "{used:?}");
        let free = |network: [u8; 4]| {
            let network = Ipv4Addr::from(network).to_bits();
            !used.iter().any(|route| overlaps(*route, (network, 24)))
        };
        assert!(!free([198, 18, 7, 0]));
        assert!(!free([198, 19, 3, 0]));
        assert!(free([198, 19, 0, 0]));
    }

    #[test]
    fn device_names_fit_and_differ_when_labs_differ() {
        let one = names("quick");
        let other = names("a-name-that-has-thirty-two-bytes");
        assert_ne!(one.client_device, other.client_device);
        for name in [&other.client_device, &other.server_device] {
            assert!(name.len() <= 15 && name.starts_with("hwl"), "{name}");
        }
    }

    #[test]
    fn bucket_holds_a_packet_when_the_link_is_slow_and_a_quarter_millisecond_when_it_is_fast() {
        assert!(bucket(1_000_000).contains("burst 4096 "));
        assert!(bucket(1_000_000_000).contains("rate 1000000000bit burst 31250 "));
    }

    #[test]
    fn counts_are_those_of_the_bucket_when_tc_answers() {
        let text = r#"[{"kind":"tbf","bytes":5,"packets":2,"drops":1,"backlog":9,"qlen":0}]"#;
        let expected = Direction {
            bytes: 5,
            packets: 2,
            drops: 1,
            waiting_bytes: 9,
        };
        assert_eq!(direction(text), expected);
        assert_eq!(direction("[]"), Direction::default());
        let classes = r#"[{"kind":"bfifo","bytes":1},{"kind":"htb","bytes":5,"packets":2,"drops":1,"backlog":9}]"#;
        assert_eq!(direction(classes), expected);
    }

    #[test]
    fn rate_of_a_client_is_an_error_when_the_link_is_slower() {
        let link = |of_client| LinkSpec {
            client_bits_per_second: Some(of_client),
            ..LinkSpec::new(1_000_000_000)
        };
        assert!(check(&link(100_000_000)).is_ok());
        for rate in [999_999, 1_000_000_001] {
            let error = check(&link(rate)).expect_err("a rate").to_string();
            assert!(error.contains(&rate.to_string()), "{error}");
        }
    }
}
