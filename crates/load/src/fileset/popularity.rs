//! How often each file of a set is asked for, and the endless stream of requests that follows from
//! it.
//!
//! The stream is drawn by Walker's alias method in Vose's form (1991): one random number, one
//! multiplication and one table lookup per request, for any number of files. The table is built
//! with whole numbers only, so a seed gives the same requests on every machine and in every
//! version; a test checks the first ones. The share of a file in the stream is exact to 2^-32 of
//! the average share.
//!
//! Several agents divide the table: agent `i` of `n` draws from every `n`-th of its slots, beginning
//! with slot `i`. A slot has the average share. A file of at most this share has one slot, so
//! one agent asks for it. A popular file has parts of many slots, so all agents ask for it. Together
//! the agents ask for each file as often as one client would; if the number of files is no multiple
//! of `n`, the share of a file differs by at most `n` in the number of files. No agent gets only the
//! popular files, as it would with whole directories, so the figures of agents can be compared.

use std::sync::Arc;

use super::manifest::Manifest;
use super::shape::{FileIndex, PAGE_BYTES, Shape};
use crate::engine::{self, Part};

use headway_base::random::{Draw, Random};

/// What the stream of indices is drawn for, so that another stream of the same seed has nothing in
/// common with it.
const RANDOM_STREAM: u64 = 0x6669_6c65_7365_7421;

/// The weights of all files of a set.
#[derive(Clone, Debug)]
pub struct FilePopularity {
    weights: Vec<u64>,
    sizes: Vec<u64>,
    total: u128,
    table: Arc<[AliasSlot]>,
    /// Which slots are drawn from.
    part: Part,
}

/// One place of the alias table: the file of the same number, or with the rest of the place's share
/// another.
#[derive(Clone, Copy, Debug)]
struct AliasSlot {
    /// The file's part of the place, in units of 2^-32.
    own: u32,
    alias: FileIndex,
}

/// The endless stream of requests of a seed. Nothing is allocated once it exists.
#[derive(Clone, Debug)]
pub struct Requests {
    table: Arc<[AliasSlot]>,
    part: Part,
    /// The number of slots in the part.
    slots: u64,
    random: Random,
}

impl FilePopularity {
    /// The popularity of a set on disk.
    pub fn new(manifest: &Manifest) -> FilePopularity {
        FilePopularity::of(manifest.shape())
    }

    /// The popularity of a set that need not exist.
    pub(crate) fn of(shape: &Shape) -> FilePopularity {
        let files = 0..shape.files();
        let weights: Vec<u64> = files.clone().map(|file| shape.weight(file)).collect();
        FilePopularity {
            part: Part::WHOLE,
            sizes: files.map(|file| shape.size(file)).collect(),
            total: weights.iter().map(|&weight| u128::from(weight)).sum(),
            table: alias_table(&weights),
            weights,
        }
    }

    /// The part of one of several agents. `None` if there are fewer files than agents.
    pub fn part(self, part: Part) -> Option<FilePopularity> {
        let is_enough = self.table.len() >= part.count() as usize;
        is_enough.then_some(FilePopularity { part, ..self })
    }

    /// The lengths, added up, of the most popular files that together get a share of the requests:
    /// 0.5, 0.9 …
    pub fn top_bytes(&self, share: f64) -> u64 {
        self.top(share, |size| size)
    }

    /// The memory that these files need in whole pages of 4096 bytes, also on disk. This is how
    /// Table 1.2 of the dissertation counts.
    pub fn top_page_bytes(&self, share: f64) -> u64 {
        self.top(share, |size| size.next_multiple_of(PAGE_BYTES))
    }

    fn top(&self, share: f64, of: impl Fn(u64) -> u64) -> u64 {
        let mut order: Vec<u32> = (0..self.weights.len() as u32).collect();
        // Stable: files of equal weight stay in their order, so that the sum is the same
        // everywhere.
        order.sort_by_key(|&file| std::cmp::Reverse(self.weights[file as usize]));
        // The conversion saturates, and takes what is no number for 0.
        let wanted = ((share * self.total as f64) as u128).min(self.total);
        let (mut weight, mut bytes) = (0_u128, 0);
        for file in order {
            if weight >= wanted {
                break;
            }
            weight += u128::from(self.weights[file as usize]);
            bytes += of(self.sizes[file as usize]);
        }
        bytes
    }
}

impl Requests {
    /// The stream of a seed.
    pub fn new(popularity: &FilePopularity, seed: u64) -> Requests {
        Requests {
            table: Arc::clone(&popularity.table),
            part: popularity.part,
            slots: popularity.part.share_u64(popularity.table.len() as u64),
            random: Random::for_stream(seed, RANDOM_STREAM),
        }
    }

    /// The next file to ask for.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator's `next` may end, this one cannot"
    )]
    pub fn next(&mut self) -> FileIndex {
        // The upper half of the product is the slot, the lower half how far into it: one number is
        // both.
        let product = u128::from(self.random.next_u64()) * u128::from(self.slots);
        let index = self.part.number((product >> 64) as u64) as usize;
        let within = (product >> 32) as u32;
        let slot = self.table[index];
        if within < slot.own {
            index as FileIndex
        } else {
            slot.alias
        }
    }
}

impl engine::Popularity for FilePopularity {
    fn draws(&self, seed: u64) -> Box<dyn engine::Draws> {
        Box::new(Requests::new(self, seed))
    }
}

impl engine::Draws for Requests {
    fn next(&mut self) -> u32 {
        Requests::next(self)
    }
}

/// Fills each of n places with the share of one file, or of two. A file below the average share
/// gets a place of its own and leaves the rest of it to one above the average. 2^63 times 2^25
/// files times 2^32 is below 2^128.
fn alias_table(weights: &[u64]) -> Arc<[AliasSlot]> {
    let files = weights.len() as u128;
    let average: u128 = weights.iter().map(|&weight| u128::from(weight)).sum();
    let mut left: Vec<u128> = weights
        .iter()
        .map(|&weight| u128::from(weight) * files)
        .collect();
    let mut table: Vec<AliasSlot> = (0..weights.len() as u32)
        .map(|file| AliasSlot {
            own: u32::MAX,
            alias: file,
        })
        .collect();
    let (mut below, mut above): (Vec<u32>, Vec<u32>) =
        (0..weights.len() as u32).partition(|&file| left[file as usize] < average);
    while let (Some(small), Some(&large)) = (below.pop(), above.last()) {
        let own = left[small as usize];
        table[small as usize] = AliasSlot {
            own: ((own << 32) / average) as u32,
            alias: large,
        };
        // The rest of the small one's place comes off the large one's share.
        left[large as usize] -= average - own;
        if left[large as usize] < average {
            above.pop();
            below.push(large);
        }
    }
    table.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fileset::site::SiteFiles;

    /// Table 1.2 of the dissertation: data set in GB; MB of the files that get 50, 90, 95, 99 % of
    /// the requests.
    const TABLE_1_2: [(u64, [f64; 4]); 4] = [
        (1, [2.1, 39.5, 64.6, 138.3]),
        (2, [3.0, 72.9, 123.6, 262.8]),
        (3, [4.4, 101.8, 181.2, 385.7]),
        (4, [4.9, 131.8, 235.0, 505.0]),
    ];

    const SHARES: [f64; 4] = [0.50, 0.90, 0.95, 0.99];

    /// The share of a file in all requests.
    fn weight_share(popularity: &FilePopularity, file: usize) -> f64 {
        popularity.weights[file] as f64 / popularity.total as f64
    }

    #[test]
    fn popular_files_take_the_space_of_table_1_2_when_it_is_counted_in_pages() {
        for (gigabytes, printed) in TABLE_1_2 {
            let shape = Shape::specweb99(gigabytes * 1_000_000_000).unwrap();
            let popularity = FilePopularity::of(&shape);
            for (share, printed) in SHARES.into_iter().zip(printed) {
                let found = popularity.top_page_bytes(share) as f64 / 1e6;
                // The table prints one decimal. Some files tie (35 × 59 over 7 is 35 × 118 over
                // 14), and their order changes the sum by one file of up to 20 KB.
                assert!(
                    (found - printed).abs() <= 0.05 + 0.02,
                    "{gigabytes} GB, top {share}: {found:.2}, printed {printed}"
                );
            }
        }
    }

    #[test]
    fn popular_files_are_smaller_than_table_1_2_when_their_lengths_are_added() {
        for (gigabytes, printed) in TABLE_1_2 {
            let shape = Shape::specweb99(gigabytes * 1_000_000_000).unwrap();
            let popularity = FilePopularity::of(&shape);
            for (share, printed) in SHARES.into_iter().zip(printed) {
                let ratio = popularity.top_bytes(share) as f64 / 1e6 / printed;
                assert!((0.75..0.95).contains(&ratio), "{gigabytes} GB: {ratio}");
            }
        }
    }

    #[test]
    fn all_files_are_needed_for_all_requests() {
        let shape = Shape::SpecWeb99 { directories: 3 };
        let popularity = FilePopularity::of(&shape);
        assert_eq!(popularity.top_bytes(1.0), shape.bytes());
        assert_eq!(popularity.top_bytes(0.0), 0);
        assert_eq!(popularity.top_bytes(f64::NAN), 0);
    }

    #[test]
    fn requests_do_not_change_between_versions() {
        let popularity = FilePopularity::of(&Shape::SpecWeb99 { directories: 20 });
        let mut requests = Requests::new(&popularity, 1);
        let first: Vec<u32> = (0..16).map(|_| requests.next()).collect();
        assert_eq!(
            first,
            [
                150, 148, 161, 592, 122, 256, 13, 40, 13, 330, 153, 184, 11, 128, 148, 10
            ]
        );
    }

    /// Pearson's statistic over files drawn often enough, and its degrees of freedom.
    fn chi_square(shape: &Shape, seed: u64, draws: u32) -> (f64, f64) {
        let popularity = FilePopularity::of(shape);
        let mut requests = Requests::new(&popularity, seed);
        let mut counts = vec![0_u32; shape.files() as usize];
        for _ in 0..draws {
            counts[requests.next() as usize] += 1;
        }
        let (mut statistic, mut cells) = (0.0, 0);
        let (mut rare, mut rare_expected) = (0.0, 0.0);
        for (file, &count) in counts.iter().enumerate() {
            let expected = weight_share(&popularity, file) * f64::from(draws);
            if expected < 10.0 {
                rare += f64::from(count);
                rare_expected += expected;
            } else {
                statistic += (f64::from(count) - expected).powi(2) / expected;
                cells += 1;
            }
        }
        if rare_expected > 0.0 {
            statistic += (rare - rare_expected).powi(2) / rare_expected;
            cells += 1;
        }
        (statistic, f64::from(cells - 1))
    }

    #[test]
    fn files_are_drawn_in_proportion_to_their_weights() {
        let files = (1..=50).map(|number| (format!("/{number}"), (1, number * number)));
        let (site, _) = SiteFiles::new(files.collect());
        for shape in [
            Shape::SpecWeb99 { directories: 40 },
            Shape::SpecWeb96 { directories: 5 },
            Shape::uniform(777, 1).unwrap(),
            Shape::Site(site),
        ] {
            let (statistic, freedom) = chi_square(&shape, 5, 400_000);
            // Wilson and Hilferty: the cube root of chi-square over its freedom is nearly normal.
            // Five deviations, and the seed is fixed, so this cannot fail by chance.
            let spread = 2.0 / (9.0 * freedom);
            let deviation = ((statistic / freedom).cbrt() - (1.0 - spread)) / spread.sqrt();
            assert!(
                deviation.abs() < 5.0,
                "{}: {statistic:.0} at {freedom}",
                shape.profile()
            );
        }
    }

    /// The share of each file in the requests of one agent, from the slots it should have.
    fn shares_of_agent(table: &[AliasSlot], agent: usize, agents: usize) -> Vec<f64> {
        let slots: Vec<usize> = (agent..table.len()).step_by(agents).collect();
        let of_slot = 1.0 / slots.len() as f64;
        let mut shares = vec![0.0; table.len()];
        for slot in slots {
            let AliasSlot { own, alias } = table[slot];
            let own = f64::from(own) / 2_f64.powi(32);
            shares[slot] += own * of_slot;
            shares[alias as usize] += (1.0 - own) * of_slot;
        }
        shares
    }

    #[test]
    fn agents_together_ask_for_each_file_as_often_as_one_client() {
        for (directories, agents) in [(40, 7), (40, 8), (3, 5)] {
            let shape = Shape::SpecWeb99 { directories };
            let popularity = FilePopularity::of(&shape);
            let files = shape.files() as usize;
            let (mut sums, mut asked_by_all) = (vec![0.0; files], vec![true; files]);
            for agent in 0..agents {
                let part = popularity.clone().part(Part::new(agent, agents)).unwrap();
                let shares = shares_of_agent(&part.table, agent as usize, agents as usize);
                let mut requests = Requests::new(&part, 3);
                let mut drawn = vec![0_u32; files];
                for _ in 0..100_000 {
                    drawn[requests.next() as usize] += 1;
                }
                for (file, &share) in shares.iter().enumerate() {
                    sums[file] += share / f64::from(agents);
                    asked_by_all[file] &= share > 0.0;
                    // Six standard deviations. The seed is fixed, so this cannot fail by chance.
                    let expected = share * 1e5;
                    let off = (f64::from(drawn[file]) - expected).abs();
                    assert!(off <= 6.0 * expected.sqrt(), "agent {agent}, {file}: {off}");
                }
            }
            let error_max = f64::from(agents) / files as f64;
            for (file, sum) in sums.iter().enumerate() {
                let error = sum / weight_share(&popularity, file) - 1.0;
                assert!(error.abs() <= error_max, "{agents} agents, {file}: {error}");
            }
            let most_popular = popularity.weights.iter().enumerate();
            let (file, _) = most_popular.max_by_key(|&(_, weight)| weight).unwrap();
            assert!(asked_by_all[file]);
        }
    }

    #[test]
    fn agents_divide_files_of_equal_popularity() {
        let popularity = FilePopularity::of(&Shape::uniform(31, 1).unwrap());
        for agent in 0..3 {
            let part = popularity.clone().part(Part::new(agent, 3)).unwrap();
            let mut requests = Requests::new(&part, 3);
            let drawn: std::collections::BTreeSet<u32> =
                (0..1_000).map(|_| requests.next()).collect();
            let expected = (agent..31).step_by(3).collect();
            assert_eq!(drawn, expected);
        }
    }

    #[test]
    fn there_is_no_part_when_there_are_more_agents_than_files() {
        let popularity = FilePopularity::of(&Shape::uniform(3, 1).unwrap());
        assert!(popularity.clone().part(Part::new(2, 3)).is_some());
        assert!(popularity.part(Part::new(0, 4)).is_none());
    }

    #[test]
    fn alias_table_shares_add_up_to_the_weights() {
        for shape in [
            Shape::SpecWeb99 { directories: 700 },
            Shape::uniform(1, 9).unwrap(),
        ] {
            let popularity = FilePopularity::of(&shape);
            let mut shares = vec![0.0; shape.files() as usize];
            for (file, slot) in popularity.table.iter().enumerate() {
                let own = f64::from(slot.own) / 2_f64.powi(32);
                shares[file] += own;
                shares[slot.alias as usize] += 1.0 - own;
            }
            for (file, share) in shares.iter().enumerate() {
                let expected = weight_share(&popularity, file) * f64::from(shape.files());
                // A popular file is the alias of thousands of places, each exact to 2^-32.
                assert!(
                    (share - expected).abs() < 1e-5,
                    "{file}: {share} {expected}"
                );
            }
        }
    }
}
