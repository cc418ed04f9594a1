//! The servers of the papers, rebuilt for comparisons: which steps they differ in from Headway.
//!
//! Nothing of the server refers to this code. A program contains it if it names [`RESEARCH`] among
//! its [`Extensions`](crate::Extensions), as `headway-lab` does and `headway` does not. Switches that
//! are a single condition in the loop stay there, as fields of
//! [`ResearchConfig`](headway_config::ResearchConfig): eager reads and writes, full reads, accept on
//! close.
//!
//! - [`headway_send::research`]: the ways to send files which may block;
//! - `fork`: programs which the worker makes itself;
//! - `worker/gateway/piped.rs`: direct programs whose responses pass through the worker.
//!
//! Sources: 2006 paper, sections 2.1, 3 and 5; dissertation 2.5 and Table 3.3; Brecht and Ostrowski,
//! sections 4 and 5.

mod fork;

use headway_config::RESEARCH_TABLE;

use crate::extensions::Research;
use crate::worker::gateway::piped::PIPED;

/// Everything of the papers.
pub static RESEARCH: Research = Research {
    table: &RESEARCH_TABLE,
    sender: headway_send::research::sender,
    reopen: |resolver, root, path| resolver.resolve_on_loop(root, path),
    fork: fork::fork,
    piped: &PIPED,
};
