//! User profiles and advertisements: the two tables behind a custom GET.
//!
//! A user has a demographic profile, one bit in each of five groups: sex, age, region, two
//! interests. An advertisement has such bits, too, a weight for each group, and a minimum sum. The
//! search starts after the advertisement shown last, and takes the first whose matching groups
//! reach that sum; if none does, simply the next one. An expired advertisement is shown as well,
//! and marked as such. The groups and the rule that weights of matching groups are added are
//! published; the random numbers, and the fallback, are Headway's.
//!
//! Both tables are functions of a [`Reset`], so the benchmark's client knows them without reading
//! the server's files. They are written as lines of fixed length, so that a program that serves one
//! request reads only the line of its user.

use headway_base::random::{Draw, SplitMix64};

/// The number of the first user.
pub const USER_FIRST: u32 = 10_000;

/// Most users of a reset: 18 MB of profiles.
pub const USERS_MAX: u32 = 1_000_000;

/// Number of advertisements: 10 directories of 36 files.
pub const ADS: u32 = 360;

/// The bits of each group.
const GROUPS: [u32; 5] = [
    0x3000_0000,
    0x0f00_0000,
    0x00f0_0000,
    0x000f_fc00,
    0x0000_03ff,
];

/// Length of a user's line.
pub const USER_RECORD_BYTES: usize = 18;

/// Length of an advertisement's line.
pub const AD_RECORD_BYTES: usize = 33;

/// Expired advertisements ended a day before the reset; the others end in ten years.
const EXPIRED_AGE_S: u64 = 86_400;
const VALIDITY_S: u64 = 315_360_000;

/// The parameters of the housekeeping command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    /// Number of users: at least the number of the client's connections.
    pub users: u32,
    /// Seed of the profiles, the weights and the expired advertisements.
    pub seed: u64,
    /// The time from which dates count, in seconds since 1970.
    pub time_s: u64,
    /// Percentage of expired advertisements.
    pub expired_percent: u8,
}

/// A user's profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    demographics: u32,
}

/// An advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ad {
    demographics: u32,
    weights: [u8; 5],
    minimum: u8,
    expires_s: u64,
}

/// All advertisements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ads(Vec<Ad>);

/// The advertisement that a user is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShownAd {
    /// The number of the advertisement, from 0.
    pub ad: u32,
    /// Sum of the weights of the matching groups.
    pub weight: u32,
    /// Whether the advertisement has expired.
    pub expired: bool,
}

impl User {
    /// The user with this number after a reset, if there is one.
    pub fn generate(reset: &Reset, id: u32) -> Option<User> {
        let index = id.checked_sub(USER_FIRST)?;
        (index < reset.users).then(|| User {
            demographics: one_of_each(&mut seeded(reset.seed, 1, index)),
        })
    }

    /// Offset of the user's line in the file; `None` if there is no such user.
    pub fn offset(id: u32) -> Option<u64> {
        let index = id.checked_sub(USER_FIRST)?;
        Some(u64::from(index) * USER_RECORD_BYTES as u64)
    }

    /// Parses the user's line; `None` if it is malformed or another user's.
    pub fn parse(line: &[u8], id: u32) -> Option<User> {
        let text = std::str::from_utf8(line).ok()?;
        let (number, demographics) = text.strip_suffix('\n')?.trim_start().split_once(' ')?;
        let demographics = u32::from_str_radix(demographics, 16).ok()?;
        (number.parse() == Ok(id)).then_some(User { demographics })
    }

    fn line(self, id: u32) -> String {
        format!("{id:>8} {:08x}\n", self.demographics)
    }
}

/// The file of all users.
pub fn users_file(reset: &Reset) -> String {
    let ids = USER_FIRST..USER_FIRST + reset.users.min(USERS_MAX);
    let lines = ids.filter_map(|id| Some(User::generate(reset, id)?.line(id)));
    lines.collect()
}

impl Ads {
    /// The advertisements after a reset.
    pub fn generate(reset: &Reset) -> Ads {
        let ad = |index| {
            let mut draw = seeded(reset.seed, 2, index);
            let demographics = one_of_each(&mut draw) | one_of_each(&mut draw);
            let weights = [(); 5].map(|()| 1 + draw.below(9) as u8);
            // Between one heavy group and three light ones: some users match some advertisements.
            let minimum = 6 + draw.below(14) as u8;
            let expired = draw.below(100) < u64::from(reset.expired_percent);
            let expires_s = match expired {
                true => reset.time_s.saturating_sub(EXPIRED_AGE_S),
                false => reset.time_s.saturating_add(VALIDITY_S),
            };
            Ad {
                demographics,
                weights,
                minimum,
                expires_s,
            }
        };
        Ads((0..ADS).map(ad).collect())
    }

    /// The file of all advertisements.
    pub fn file(&self) -> String {
        let mut text = String::with_capacity(self.0.len() * AD_RECORD_BYTES);
        for (index, ad) in self.0.iter().enumerate() {
            let weights: String = ad.weights.iter().map(u8::to_string).collect();
            let (demographics, minimum, expires_s) = (ad.demographics, ad.minimum, ad.expires_s);
            text +=
                &format!("{index:>3} {demographics:08x} {weights} {minimum:>2} {expires_s:>10}\n");
        }
        text
    }

    /// Parses the file; `None` if it is malformed.
    pub fn parse(file: &str) -> Option<Ads> {
        let ads: Option<Vec<Ad>> = file.lines().enumerate().map(parse_ad).collect();
        ads.filter(|ads| ads.len() == ADS as usize).map(Ads)
    }

    /// Chooses the advertisement after `last`, at a time in seconds since 1970. Without `last` the
    /// search starts at the first.
    pub fn choose(&self, user: User, last: Option<u32>, now_s: u64) -> ShownAd {
        let count = self.0.len();
        let first = last.map_or(0, |last| last as usize + 1) % count;
        let round = (first..count).chain(0..first);
        let matching = round
            .map(|index| (index, self.0[index].weight(user)))
            .find(|&(index, weight)| weight >= u32::from(self.0[index].minimum));
        let (index, weight) = matching.unwrap_or_else(|| (first, self.0[first].weight(user)));
        ShownAd {
            ad: index as u32,
            weight,
            expired: self.0[index].expires_s < now_s,
        }
    }
}

impl Ad {
    fn weight(&self, user: User) -> u32 {
        let shared = self.demographics & user.demographics;
        let groups = GROUPS.iter().zip(self.weights);
        let matching = groups.filter(|(mask, _)| shared & *mask != 0);
        matching.map(|(_, weight)| u32::from(weight)).sum()
    }
}

fn parse_ad((index, line): (usize, &str)) -> Option<Ad> {
    let mut columns = line.split_ascii_whitespace();
    let number: usize = columns.next()?.parse().ok()?;
    let demographics = u32::from_str_radix(columns.next()?, 16).ok()?;
    let digits: Vec<u8> = columns
        .next()?
        .bytes()
        .map(|byte| byte.wrapping_sub(b'0'))
        .collect();
    let weights = <[u8; 5]>::try_from(digits).ok()?;
    let ad = Ad {
        demographics,
        weights,
        minimum: columns.next()?.parse().ok()?,
        expires_s: columns.next()?.parse().ok()?,
    };
    let whole = number == index && weights.iter().all(|&weight| weight <= 9);
    (whole && columns.next().is_none()).then_some(ad)
}

/// One bit in each group.
fn one_of_each(draw: &mut SplitMix64) -> u32 {
    let bit = |mask: &u32| {
        let chosen = draw.below(mask.count_ones().into()) as u32;
        1_u32 << (mask.trailing_zeros() + chosen)
    };
    GROUPS.iter().map(bit).fold(0, |bits, bit| bits | bit)
}

/// The random numbers of a purpose and an index under one seed.
fn seeded(seed: u64, purpose: u64, index: u32) -> SplitMix64 {
    let mut draw = SplitMix64(seed ^ purpose.rotate_right(8) ^ u64::from(index).rotate_left(20));
    draw.next_u64();
    draw
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESET: Reset = Reset {
        users: 500,
        seed: 7,
        time_s: 1_000_000_000,
        expired_percent: 20,
    };

    #[test]
    fn tables_read_back_as_written() {
        let ads = Ads::generate(&RESET);
        let file = ads.file();
        assert_eq!(file.len(), ADS as usize * AD_RECORD_BYTES);
        assert_eq!(Ads::parse(&file), Some(ads));
        let users = users_file(&RESET);
        assert_eq!(users.len(), 500 * USER_RECORD_BYTES);
        for id in [10_000, 10_001, 10_499] {
            let at = User::offset(id).expect("a user") as usize;
            let line = &users.as_bytes()[at..at + USER_RECORD_BYTES];
            assert_eq!(User::parse(line, id), User::generate(&RESET, id));
            assert!(User::parse(line, id).is_some());
            assert_eq!(User::parse(line, id + 1), None);
        }
        assert_eq!(User::generate(&RESET, 10_500), None);
        assert_eq!(User::generate(&RESET, 9_999), None);
    }

    #[test]
    fn advertisement_file_with_a_malformed_line_is_rejected() {
        let file = Ads::generate(&RESET).file();
        assert_eq!(
            Ads::parse(&file[AD_RECORD_BYTES..]),
            None,
            "the first is gone"
        );
        assert_eq!(Ads::parse(&file[..file.len() - AD_RECORD_BYTES]), None);
        assert_eq!(Ads::parse(&file.replacen(' ', "x", 1)), None);
        assert_eq!(Ads::parse(""), None);
    }

    #[test]
    fn every_profile_has_one_bit_in_each_group() {
        for id in USER_FIRST..USER_FIRST + 500 {
            let user = User::generate(&RESET, id).expect("a user");
            for mask in GROUPS {
                assert_eq!((user.demographics & mask).count_ones(), 1, "{id}");
            }
        }
        assert_eq!(
            GROUPS.iter().sum::<u32>(),
            0x3fff_ffff,
            "no bit is in two groups"
        );
    }

    /// Advertisements that match only users of the first group.
    fn three() -> Ads {
        let ad = |demographics, minimum, expires_s| Ad {
            demographics,
            weights: [5, 4, 3, 2, 1],
            minimum,
            expires_s,
        };
        Ads(vec![
            ad(0x1000_0000, 5, 100),
            ad(0x2000_0000, 5, 300),
            ad(0x1100_0001, 9, 300),
        ])
    }

    #[test]
    fn next_matching_advertisement_follows_the_last_one() {
        let ads = three();
        let user = User {
            demographics: 0x1100_0002,
        };
        let shown = |last, now_s| ads.choose(user, last, now_s);
        let first = shown(None, 50);
        assert_eq!((first.ad, first.weight, first.expired), (0, 5, false));
        assert_eq!((shown(Some(0), 50).ad, shown(Some(0), 50).weight), (2, 9));
        assert_eq!(shown(Some(2), 50).ad, 0, "after the last comes the first");
        assert!(shown(Some(2), 200).expired);
        assert_eq!(shown(Some(u32::MAX - 1), 50).ad, 0, "any number is taken");
    }

    #[test]
    fn next_advertisement_is_shown_when_none_matches() {
        let user = User { demographics: 0 };
        assert_eq!(
            three().choose(user, Some(0), 50),
            ShownAd {
                ad: 1,
                weight: 0,
                expired: false
            }
        );
    }

    #[test]
    fn users_see_different_advertisements() {
        let ads = Ads::generate(&RESET);
        let (mut seen, mut through) = (vec![false; ADS as usize], 0);
        for id in USER_FIRST..USER_FIRST + 500 {
            let user = User::generate(&RESET, id).expect("a user");
            let mut last = Some(id % ADS);
            for _ in 0..20 {
                let shown = ads.choose(user, last, RESET.time_s);
                seen[shown.ad as usize] = true;
                let minimum = ads.0[shown.ad as usize].minimum;
                through += u32::from(shown.weight < u32::from(minimum));
                last = Some(shown.ad);
            }
        }
        let ever = seen.iter().filter(|&&seen| seen).count();
        assert!(ever > 250, "{ever} of {ADS} were shown");
        assert_eq!(through, 0, "some profile matches no advertisement");
        let expired = ads
            .0
            .iter()
            .filter(|ad| ad.expires_s < RESET.time_s)
            .count();
        assert!((40..=105).contains(&expired), "{expired} have run out");
    }
}
