//! What is asked how often, and the number of requests per connection: the shares of a
//! SPECweb99-like load.
//!
//! Pure. 70 % of the requests are static. The dynamic 30 % are 42 % custom GETs, 16 % POSTs, 0.5 %
//! CGI GETs, the rest standard GETs: 12.6, 4.8, 0.15 and 12.45 % of all. 70 % of all requests
//! travel on kept connections, of 5 to 15 requests each, every number as likely, and the others
//! have a connection each.
//!
//! Sources: dissertation section 1.1 (70 and 30 %, 0.15 % by CGI); SPECweb99's public white paper
//! for the rest, whose figures we know at second hand. That the numbers from 5 to 15 are equally
//! likely is our reading of their mean, 10.

use headway_base::random::{Draw, Random};
use headway_latency::specweb99::RequestKind;

/// The share of each kind, in ten thousandths.
pub const SHARES: [(RequestKind, u64); 5] = [
    (RequestKind::Static, 7000),
    (RequestKind::Standard, 1245),
    (RequestKind::Custom, 1260),
    (RequestKind::Post, 480),
    (RequestKind::Cgi, 15),
];

/// Requests on a kept connection.
const KEEPALIVE_REQUESTS_MIN: u32 = 5;
const KEEPALIVE_REQUESTS_MAX: u32 = 15;

/// Of 100 requests 70 are on 7 keep-alive connections, 10 on each on average, and 30 on one
/// connection each: 7 of 37 connections are keep-alive.
const KEEPALIVE_CONNECTIONS_OF: (u64, u64) = (7, 37);

/// The kind of the next request.
pub fn kind(random: &mut Random) -> RequestKind {
    let mut drawn = random.below(10_000);
    for (kind, share) in SHARES {
        if drawn < share {
            return kind;
        }
        drawn -= share;
    }
    RequestKind::Static
}

/// How many requests the next connection carries.
pub fn requests_on_connection(random: &mut Random) -> u32 {
    let (kept, of) = KEEPALIVE_CONNECTIONS_OF;
    match random.below(of) < kept {
        true => {
            KEEPALIVE_REQUESTS_MIN
                + random.below(u64::from(KEEPALIVE_REQUESTS_MAX - KEEPALIVE_REQUESTS_MIN) + 1)
                    as u32
        }
        false => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_shares_are_the_published_ones() {
        let all: u64 = SHARES.iter().map(|(_, share)| share).sum();
        assert_eq!(all, 10_000);
        let dynamic = all - SHARES[0].1;
        assert_eq!(dynamic, 3000);
        let of_dynamic = |index: usize| SHARES[index].1 as f64 / dynamic as f64;
        assert_eq!(
            (of_dynamic(2), of_dynamic(3), of_dynamic(4)),
            (0.42, 0.16, 0.005)
        );
    }

    #[test]
    fn request_kinds_are_drawn_in_proportion_to_their_shares() {
        let mut random = Random::new(5);
        let mut counts = [0_u64; 5];
        for _ in 0..1_000_000 {
            counts[kind(&mut random) as usize] += 1;
        }
        for (kind, share) in SHARES {
            let (found, expected) = (counts[kind as usize] as f64, share as f64 * 100.0);
            // Five deviations of a binomial count; the seed is fixed, so this cannot fail by
            // chance.
            assert!(
                (found - expected).abs() < 5.0 * expected.sqrt(),
                "{}: {found}",
                kind.name()
            );
        }
    }

    #[test]
    fn seventy_percent_of_the_requests_are_on_keep_alive_connections() {
        let mut random = Random::new(6);
        let lengths: Vec<u32> = (0..200_000)
            .map(|_| requests_on_connection(&mut random))
            .collect();
        let all: u32 = lengths.iter().sum();
        let kept: Vec<u32> = lengths.into_iter().filter(|&length| length > 1).collect();
        let on_kept = kept.iter().sum::<u32>();
        assert!((f64::from(on_kept) / f64::from(all) - 0.7).abs() < 0.005);
        assert!((f64::from(on_kept) / kept.len() as f64 - 10.0).abs() < 0.1);
        assert_eq!(
            (kept.iter().min(), kept.iter().max()),
            (Some(&5), Some(&15))
        );
    }
}
