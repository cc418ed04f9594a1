//! Programs that the worker makes itself, in a research server ([`OwnProgram`]).
//!
//! No event reports the exit of such a program. While there is one, the loop polls for it
//! regularly, and whenever its output ends.

use std::os::fd::AsFd;

use headway_config::ErrorLevel;
use headway_http::Status;
use headway_spawner::escape_control;
use headway_spawner::wire::Launch;

use super::Gateway;
use super::launch::Streamed;
use crate::extensions::OwnProgram;
use crate::worker::context::LoopContext;

/// How often exits are polled for.
const POLL_INTERVAL_MS: u64 = 20;

impl Gateway {
    /// When exits are polled for next.
    pub(super) fn forked_next_ms(&self, now_ms: u64) -> Option<u64> {
        let mut programs = self.programs.values();
        let any = programs.any(|program| program.forked.is_some());
        any.then_some(now_ms + POLL_INTERVAL_MS)
    }

    /// Makes the process right now.
    pub(super) fn fork(
        &mut self,
        context: &mut LoopContext,
        launch: &Launch,
        theirs: &Streamed,
    ) -> Result<Box<dyn OwnProgram>, Status> {
        let null = self.null.as_ref().map(AsFd::as_fd);
        let input = theirs.input.as_ref().map(AsFd::as_fd).or(null);
        let (Some(input), Some(research)) = (input, self.research) else {
            return Err(Status::SERVICE_UNAVAILABLE);
        };
        let begun = std::time::Instant::now();
        match (research.fork)(launch, input, theirs.output.as_fd(), &context.tracer) {
            Ok(program) => {
                context.counters.handler_processes_started += 1;
                let spawn_us = begun.elapsed().as_micros() as u64;
                context.counters.handler_spawn_us.record(spawn_us);
                Ok(program)
            }
            Err(error) => {
                context.counters.handler_process_spawn_failures += 1;
                let name = escape_control(launch.path.as_bytes());
                context.notice(ErrorLevel::Error, format!("{name}: {error}"));
                Err(Status::SERVICE_UNAVAILABLE)
            }
        }
    }

    /// Polls for exited programs, and kills those whose time is over.
    pub(super) fn reap_forked(&mut self, context: &mut LoopContext) {
        let now_ms = context.now_ms;
        let mut gone = Vec::new();
        for (id, program) in &mut self.programs {
            let forked = program.forked.as_mut();
            if let Some(end) = forked.and_then(|forked| forked.poll(now_ms, &context.tracer)) {
                gone.push((*id, end));
            }
        }
        for (id, end) in gone {
            self.on_program_ended(context, id, end);
        }
    }
}
