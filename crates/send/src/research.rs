//! The ways of the papers to send files. They may block where those of Headway do not; each says
//! where.

mod chunk_lru;
mod let_go;
mod mmap;

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use headway_config::{Config, SendVariant};
use headway_files::OpenFile;
use headway_metrics::Counters;
use headway_request::Outgoing;

use crate::{SendContext, SendFiles, SendProgress, chunk, sendfile};

use chunk_lru::ChunkLru;

/// Makes the configured way to send files, if it is one of the papers.
pub fn sender(config: &Config) -> Option<Box<dyn SendFiles>> {
    let research = &config.research;
    let variant = research.send_method?;
    Some(of(
        variant,
        research.mapped_max_bytes,
        research.close_mapped,
    ))
}

/// Makes a way to send files, which maps or remembers at most `bytes_max`, and closes what it has
/// mapped if `closes`.
pub fn of(variant: SendVariant, bytes_max: u64, closes: bool) -> Box<dyn SendFiles> {
    match variant {
        SendVariant::SendfileResident => Box::new(SendfileResident {
            without_more: false,
        }),
        SendVariant::SendfilePlain => Box::new(SendfileResident { without_more: true }),
        SendVariant::SendfileRecent => Box::new(SendfileRecent(ChunkLru::new(bytes_max))),
        SendVariant::SendfileMapped => Box::new(mmap::SendfileMapped::new(bytes_max)),
        SendVariant::Mmap => Box::new(mmap::MappedFiles::new(bytes_max, closes)),
    }
}

/// `sendfile` after a probe of each chunk, without reading ahead.
struct SendfileResident {
    /// The header leaves in a packet of its own, as with FreeBSD's unmodified call (dissertation
    /// 2.5.6, Figure 2.7).
    without_more: bool,
}

impl SendFiles for SendfileResident {
    fn send_some(
        &mut self,
        outgoing: &mut Outgoing,
        socket: BorrowedFd<'_>,
        context: &mut SendContext<'_>,
    ) -> Option<SendProgress> {
        context.without_more = self.without_more;
        sendfile::send_some(
            outgoing,
            socket,
            context,
            &mut chunk::expect_resident,
            false,
        )
    }
}

/// `sendfile` without a probe: a recently used chunk counts as resident. It blocks where this guess
/// is wrong.
struct SendfileRecent(ChunkLru<()>);

impl SendFiles for SendfileRecent {
    fn send_some(
        &mut self,
        outgoing: &mut Outgoing,
        socket: BorrowedFd<'_>,
        context: &mut SendContext<'_>,
    ) -> Option<SendProgress> {
        let mut expect = |file: &Rc<OpenFile>, range: Range<u64>, context: &mut SendContext<'_>| {
            expect_recent(&mut self.0, file, range.start, context)
        };
        sendfile::send_some(outgoing, socket, context, &mut expect, false)
    }

    fn residency(&self) -> Option<&'static str> {
        Some("used lately (a guess)")
    }

    fn chunk_was_read(&mut self, file: &OpenFile, offset: u64) {
        self.0.insert(file, offset, ());
        while self.0.pop_excess().is_some() {}
    }

    fn gauges(&self, counters: &mut Counters) {
        counters.recent_cache_entries = self.0.count();
        counters.recent_cache_bytes = self.0.bytes();
    }
}

/// Fails unless the chunk at `offset` was used recently.
fn expect_recent(
    recent: &mut ChunkLru<()>,
    file: &Rc<OpenFile>,
    offset: u64,
    context: &mut SendContext<'_>,
) -> Result<(), SendProgress> {
    // A helper's copy is always in memory.
    if file.is_memory() || recent.get(file, offset).is_some() {
        context.counters.recent_cache_hits += 1;
        return Ok(());
    }
    context.counters.recent_cache_misses += 1;
    Err(chunk::not_resident(file, offset, context))
}
