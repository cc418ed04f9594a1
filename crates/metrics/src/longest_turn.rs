//! The longest turn of an event loop, and what each of its stages took.
//!
//! The longest time of each stage (`loop_longest_*_us`) may be of many turns. This is one turn, so its
//! stages add up to it.

use serde::{Deserialize, Serialize};

macro_rules! stages {
    ($( $field:ident $name:literal, )*) => {
        /// Names of the stages of a turn, in the order in which [`LongestTurn::see`] takes their times.
        pub const TURN_STAGES: [&str; [$( $name ),*].len()] = [$( $name ),*];

        /// The longest turn so far, in microseconds.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct LongestTurn {
            /// From the end of one wait for events to the next.
            pub turn_us: u64,
            $(
                #[doc = concat!("What the stage *", $name, "* took of it.")]
                pub $field: u64,
            )*
        }

        impl LongestTurn {
            /// Takes a turn with the times of its stages, if it is longer.
            pub fn see(&mut self, turn_us: u64, stages_us: &[u64; TURN_STAGES.len()]) {
                if turn_us > self.turn_us {
                    let [$( $field ),*] = *stages_us;
                    *self = LongestTurn { turn_us, $( $field ),* };
                }
            }

            /// What each stage took.
            pub fn stages(&self) -> [(&'static str, u64); TURN_STAGES.len()] {
                [$( ($name, self.$field) ),*]
            }
        }
    };
}

stages! {
    accept_us "accept",
    client_us "client",
    crypto_us "crypto",
    send_us "send",
    handshake_us "handshake",
    helper_us "helper",
    upstream_us "upstream",
    control_us "control",
    queued_us "queued",
    maintenance_us "maintenance",
}

impl LongestTurn {
    /// The stage that took most of the turn, and its time. `None` before the first turn.
    pub fn stage(&self) -> Option<(&'static str, u64)> {
        let longest = self.stages().into_iter().max_by_key(|(_, us)| *us);
        longest.filter(|(_, us)| *us > 0)
    }

    /// Takes the turn of another loop, if it is longer.
    pub fn merge(&mut self, other: &LongestTurn) {
        if other.turn_us > self.turn_us {
            *self = *other;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_of_two_turns_are_never_mixed() {
        let mut longest = LongestTurn::default();
        assert_eq!(longest.stage(), None);
        longest.see(500, &[400, 100, 0, 0, 0, 0, 0, 0, 0, 0]);
        longest.see(450, &[0, 450, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(longest.stage(), Some(("accept", 400)));
        let mut other = LongestTurn::default();
        other.see(600, &[0, 0, 590, 0, 0, 0, 0, 0, 0, 10]);
        let mut total = longest;
        total.merge(&other);
        total.merge(&longest);
        assert_eq!(total, other);
        assert_eq!(total.stage(), Some(("crypto", 590)));
        let sum: u64 = total.stages().iter().map(|(_, us)| us).sum();
        assert_eq!(sum, total.turn_us);
    }
}
