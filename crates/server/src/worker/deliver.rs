//! Delivers the results of helpers' jobs: what each result is to each phase that waits for one.
//!
//! Jobs are submitted where they are needed (`Pool::submit_*`), and the phase says what for. A
//! result is stored once, in the cache that it belongs to, and delivered to every connection that
//! waits for it.

use std::ops::ControlFlow::Break;
use std::rc::Rc;
use std::time::Duration;

use headway_connection::{Connection, LookupFor, Next, Phase};
use headway_files::protocol::CustomResult;
use headway_files::{AbsentSiblings, Failure, OpenFile, Outcome};
use headway_request::{LoadedContent, LookedUp, Request};

use super::application::Turn;
use super::context::LoopContext;
use super::listings::Listings;
use super::router::Router;

/// A result, as the waiting phases get it.
pub(super) enum Delivery {
    /// A path has been looked up.
    LookedUp(LookedUp),
    /// A listing has been rendered, in this version of the root.
    Listing(Result<Rc<OpenFile>, Failure>, u32),
    /// A file, or a chunk of one, has been read into the page cache.
    ReadIn(Result<(), Failure>),
    /// The same, as a copy in a memfd.
    Copy(Result<Rc<OpenFile>, Failure>),
    /// A small file has been read.
    Content(Result<Rc<[u8]>, Failure>),
    /// A job of an embedded application has run.
    Job(Result<CustomResult<Rc<OpenFile>>, Failure>),
    /// A part of a body or a response has been written to this temporary file.
    Spooled(Result<Rc<OpenFile>, Failure>),
}

impl Delivery {
    fn is_stale(&self) -> bool {
        matches!(
            self,
            Delivery::ReadIn(Err(Failure::Stale))
                | Delivery::Copy(Err(Failure::Stale))
                | Delivery::Content(Err(Failure::Stale))
        )
    }
}

impl Router {
    /// Stores the outcome of a job in its cache. `age`: since the job was started.
    pub(super) fn store(
        &mut self,
        context: &mut LoopContext,
        outcome: Outcome,
        age: Duration,
    ) -> Delivery {
        let lookup = &mut self.files.lookup;
        match outcome {
            Outcome::LookedUp {
                root,
                version,
                path,
                answer,
                content,
                absent,
            } => {
                let entry = lookup.store((root, version), &path, answer, context.now_ms);
                let age_ms = age.as_millis() as u64 + 1;
                entry.seen_ms.set(context.now_ms.saturating_sub(age_ms));
                if absent == AbsentSiblings::AssumeAbsent {
                    entry.absent_checked_ms.set(None);
                }
                Delivery::LookedUp(LookedUp {
                    entry,
                    content: content.map(LoadedContent::Bytes),
                })
            }
            Outcome::Touched { root, path } => {
                Delivery::LookedUp(lookup.reopen(root, &path, context.lookup_context()).into())
            }
            Outcome::Listed {
                root,
                version,
                path,
                answer,
            } => {
                let root = (root, version);
                Delivery::Listing(self.listings.store(context, root, &path, answer), version)
            }
            Outcome::ReadIn { result, .. } => Delivery::ReadIn(result),
            Outcome::Copied {
                device,
                inode,
                modified,
                offset,
                content,
            } => {
                if offset == 0
                    && let Ok(copy) = &content
                {
                    let version = (device, inode, modified);
                    self.files.keep_copy(context, version, copy);
                }
                Delivery::Copy(content)
            }
            Outcome::Fetched { content, .. } => Delivery::Content(content),
            Outcome::Custom { answer } => Delivery::Job(answer),
            Outcome::Spooled { file } => Delivery::Spooled(file),
        }
    }

    /// Continues a request with what it has waited for. A phase that waits for something else stays
    /// as it is. `input` is what was received behind the request.
    pub(super) fn deliver(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        phase: Phase,
        input: &mut &[u8],
        result: &Delivery,
    ) -> Next {
        match phase {
            Phase::AwaitLookup(request, purpose) => match result {
                Delivery::LookedUp(looked_up) => {
                    let looked_up = looked_up.clone();
                    self.resume_lookup(context, connection, request, input, purpose, looked_up)
                }
                _ => Next::Wait(Phase::AwaitLookup(request, purpose)),
            },
            Phase::AwaitListing(request) => {
                self.deliver_listing(context, connection, request, result)
            }
            Phase::AwaitContent(request, _, LookupFor::File) if result.is_stale() => {
                self.look_up_again(context, connection, request)
            }
            Phase::AwaitContent(request, entry, purpose) => {
                let content = match result {
                    Delivery::ReadIn(Ok(())) => None,
                    Delivery::Copy(Ok(copy)) => Some(LoadedContent::File(copy.clone())),
                    Delivery::Content(Ok(bytes)) => Some(LoadedContent::Bytes(bytes.clone())),
                    Delivery::ReadIn(Err(failure))
                    | Delivery::Copy(Err(failure))
                    | Delivery::Content(Err(failure)) => {
                        return context.send_failure(connection, request, *failure);
                    }
                    _ => return Next::Wait(Phase::AwaitContent(request, entry, purpose)),
                };
                let looked_up = LookedUp { entry, content };
                self.resume_lookup(context, connection, request, input, purpose, looked_up)
            }
            Phase::AwaitChunk(request)
                if result.is_stale() && connection.outgoing.sent_bytes == 0 =>
            {
                self.look_up_again(context, connection, request)
            }
            Phase::AwaitChunk(request) => match result {
                Delivery::ReadIn(Ok(())) => {
                    context.note_chunk_read(connection, &request);
                    context.continue_sending(connection, request)
                }
                Delivery::Copy(Ok(copy)) => context.send_copy(connection, request, copy),
                Delivery::ReadIn(Err(failure)) | Delivery::Copy(Err(failure)) => {
                    context.chunk_failed(connection, request, *failure)
                }
                _ => Next::Wait(Phase::AwaitChunk(request)),
            },
            Phase::AwaitJob(request, progress) => match result {
                Delivery::Job(result) => {
                    self.resume_job(context, connection, request, *progress, result)
                }
                _ => Next::Wait(Phase::AwaitJob(request, progress)),
            },
            // Nothing is awaited, or not from a helper.
            other => Next::Wait(other),
        }
    }

    /// Continues a request whose path a helper has looked up, or whose file it has read.
    fn resume_lookup(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        request: Box<Request>,
        input: &mut &[u8],
        purpose: LookupFor,
        looked_up: LookedUp,
    ) -> Next {
        match purpose {
            LookupFor::File => {
                let (files, looked_up) = (&mut self.files, Some(looked_up));
                let Break(next) = files.answer(context, connection, request, input, looked_up);
                next
            }
            LookupFor::Program(part) => {
                let looked_up = Some((part, looked_up));
                self.route(context, connection, request, input, looked_up)
            }
            LookupFor::Application(progress) => {
                let mut turn = Turn {
                    files: &mut self.files,
                    context,
                    connection,
                };
                self.applications
                    .resume_after_file(&mut turn, request, *progress, looked_up)
            }
        }
    }

    /// The file server has forgotten an open file, perhaps because it was restarted: what has the name
    /// now is sent. Once for a request.
    fn look_up_again(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        mut request: Box<Request>,
    ) -> Next {
        connection.outgoing.clear();
        let lookup = &mut self.files.lookup;
        lookup.invalidate(request.virtual_host, request.path());
        match std::mem::replace(&mut request.was_stale, true) {
            true => context.send_failure(connection, request, Failure::Stale),
            false => Next::Start(request),
        }
    }

    /// Continues a request that has waited for a listing.
    fn deliver_listing(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        request: Box<Request>,
        result: &Delivery,
    ) -> Next {
        let Delivery::Listing(page, version) = result else {
            return Next::Wait(Phase::AwaitListing(request));
        };
        let root = request.virtual_host;
        if self.files.has_root_moved(context, &request, root, *version) {
            return context.route_again(connection, request);
        }
        match page {
            Ok(page) => Listings::send(context, connection, request, page.clone()),
            Err(failure) => context.send_failure(connection, request, *failure),
        }
    }
}
