//! How long the turns of the loop take, and how long ready events wait in them.
//!
//! A turn is what the loop does between two waits for events. The record of calls shows when the loop
//! slept. This shows when it computed for long, which holds up other clients as much.
//!
//! A turn in which another process had the CPU is longer, too: the record of calls counts preemptions.
//!
//! An event may have been ready for up to a turn before the wait that returned it. That time is not
//! counted as its wait: it is part of the turn before.

use headway_accept::LISTENER;
use headway_connection::CONNECTION;
use headway_metrics::{Counters, TURN_STAGES};

use super::tokens::{
    CONTROL, DIRECT_PROCESS, HANDSHAKES, HELPER, PROGRAM, SPAWNER, STORE, UPSTREAM_CONN,
};

/// What the loop does in a part of a turn, in the order of [`TURN_STAGES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Accepts connections.
    Accept,
    /// Receives requests, looks files up and sends short responses.
    Client,
    /// Encrypts and decrypts long data, and does handshakes that no other process does.
    Crypto,
    /// Sends long data.
    Send,
    /// Takes connections over whose handshake another process has done.
    Handshake,
    /// Takes the results of helpers, and resumes what waited for them.
    Helper,
    /// Speaks to programs and upstreams.
    Upstream,
    /// Hears from the master or the store process.
    Control,
    /// Continues responses whose share of the last turn was used up.
    Queued,
    /// Checks deadlines, sends jobs to helpers and lines to the log.
    Maintenance,
}

const STAGES: usize = TURN_STAGES.len();
const _: () = assert!(Stage::Maintenance as usize + 1 == STAGES);

impl Stage {
    /// The stage that handles events of this kind of token.
    pub(super) fn of(kind: u8) -> Stage {
        match kind {
            LISTENER => Stage::Accept,
            CONNECTION => Stage::Client,
            HELPER => Stage::Helper,
            HANDSHAKES => Stage::Handshake,
            PROGRAM | SPAWNER | DIRECT_PROCESS | UPSTREAM_CONN => Stage::Upstream,
            CONTROL | STORE => Stage::Control,
            _ => Stage::Maintenance,
        }
    }
}

/// The turn of this moment. All times are of one clock, in microseconds.
#[derive(Default)]
pub(super) struct Turn {
    begun_us: u64,
    /// The end of the last stage.
    now_us: u64,
    /// Time since then that belongs to parts with a stage of their own.
    parts_us: u64,
    stages_us: [u64; STAGES],
}

impl Turn {
    /// The wait for events is over.
    pub(super) fn begin(&mut self, now_us: u64) {
        *self = Turn {
            begun_us: now_us,
            now_us,
            parts_us: 0,
            stages_us: [0; STAGES],
        };
    }

    /// Records how long the ready event that is handled next has waited.
    pub(super) fn record_lag(&self, counters: &mut Counters) {
        counters.loop_lag_us.record(self.now_us - self.begun_us);
    }

    /// A part of the stage which ends next has taken this time, and counts as a stage of its own.
    pub(super) fn end_part(&mut self, part: Stage, us: u64) {
        self.stages_us[part as usize] += us;
        self.parts_us += us;
    }

    /// A stage has ended.
    pub(super) fn end_stage(&mut self, stage: Stage, now_us: u64) {
        let elapsed_us = now_us.saturating_sub(self.now_us);
        let parts_us = std::mem::take(&mut self.parts_us);
        self.stages_us[stage as usize] += elapsed_us.saturating_sub(parts_us);
        self.now_us = now_us.max(self.now_us);
    }

    /// The turn has ended, with maintenance.
    pub(super) fn end(&mut self, now_us: u64, counters: &mut Counters) {
        self.end_stage(Stage::Maintenance, now_us);
        let turn_us = self.now_us - self.begun_us;
        counters.loop_turn_us.record(turn_us);
        counters.loop_longest_turn.see(turn_us, &self.stages_us);
        let longest = [
            (Stage::Accept, &mut counters.loop_longest_accept_us),
            (Stage::Client, &mut counters.loop_longest_client_us),
            (Stage::Crypto, &mut counters.loop_longest_crypto_us),
            (Stage::Send, &mut counters.loop_longest_send_us),
            (Stage::Handshake, &mut counters.loop_longest_handshake_us),
            (Stage::Helper, &mut counters.loop_longest_helper_us),
            (Stage::Upstream, &mut counters.loop_longest_upstream_us),
            (Stage::Control, &mut counters.loop_longest_control_us),
            (Stage::Queued, &mut counters.loop_longest_queued_us),
            (
                Stage::Maintenance,
                &mut counters.loop_longest_maintenance_us,
            ),
        ];
        for (stage, longest) in longest {
            *longest = self.stages_us[stage as usize].max(*longest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_wait_for_those_before_them_and_the_longest_stage_is_named() {
        let (mut turn, mut counters) = (Turn::default(), Counters::default());
        turn.begin(1_000);
        for (stage, now_us) in [
            (Stage::Client, 1_010),
            (Stage::Accept, 1_500),
            (Stage::Client, 1_520),
        ] {
            turn.record_lag(&mut counters);
            turn.end_stage(stage, now_us);
        }
        turn.end(1_521, &mut counters);
        let waits: Vec<(u64, u64)> = counters.loop_lag_us.buckets().collect();
        assert_eq!(waits, [(0, 1), (10, 1), (500, 1)]);
        assert_eq!(counters.loop_turn_us.max(), 521);
        assert_eq!(counters.loop_longest_client_us, 30);
        assert_eq!(counters.loop_longest_accept_us, 490);
        // A shorter turn changes no peak.
        turn.begin(2_000);
        turn.end_stage(Stage::Accept, 2_400);
        turn.end(2_400, &mut counters);
        assert_eq!(counters.loop_longest_accept_us, 490);
        assert_eq!(counters.loop_turn_us.count(), 2);
        // A part of a stage is not counted twice.
        turn.begin(3_000);
        turn.end_part(Stage::Crypto, 300);
        turn.end_part(Stage::Send, 100);
        turn.end_stage(Stage::Client, 3_450);
        turn.end_stage(Stage::Client, 3_460);
        turn.end(3_460, &mut counters);
        assert_eq!(counters.loop_longest_crypto_us, 300);
        assert_eq!(counters.loop_longest_send_us, 100);
        assert_eq!(counters.loop_longest_client_us, 60);
        // The longest turn is still the first one, and it is shown as one.
        let longest = counters.loop_longest_turn;
        assert_eq!(
            (longest.turn_us, longest.accept_us, longest.client_us),
            (521, 490, 30)
        );
        assert_eq!((longest.crypto_us, longest.maintenance_us), (0, 1));
    }

    #[test]
    fn each_stage_has_the_name_of_its_place() {
        for stage in [
            Stage::Accept,
            Stage::Client,
            Stage::Crypto,
            Stage::Send,
            Stage::Handshake,
            Stage::Helper,
            Stage::Upstream,
            Stage::Control,
            Stage::Queued,
            Stage::Maintenance,
        ] {
            let name = format!("{stage:?}").to_lowercase();
            assert_eq!(TURN_STAGES[stage as usize], name);
            let (mut turn, mut counters) = (Turn::default(), Counters::default());
            turn.begin(0);
            turn.end_stage(stage, 7);
            turn.end(7, &mut counters);
            assert_eq!(counters.loop_longest_turn.stage(), Some((&*name, 7)));
        }
    }
}
