//! The application of a SPECweb99-like measurement in the worker itself, as Flash had it.
//!
//! Its documents are found and read like any other file: by the name cache, from the shelf of small
//! files, by helpers where the loop would have to wait. The advertisements are kept in memory, and
//! the kernel is asked before each use whether their file is still the same one, which never waits.
//! What has to wait is a helper's errand ([`crate::errand`]): a record is appended under the log's
//! lock, tables are made anew, loaded, and the log handed out. Meanwhile the connection remembers
//! how far it was ([`crate::connection::Turn`]), so that nothing is done a second time.
//!
//! Bodies are at most 1 KiB, so one is received with its head and is not kept anywhere. Longer ones
//! are refused (413), as are those in chunks (411).

use std::io;
use std::rc::Rc;

use headway_files::protocol::Brought;
use headway_files::{Answer, Errand as Sharing, Failure, Full, OpenFile, RootId};
use headway_http::path::normalise;
use headway_http::{Framing, Head, Status, Target};
use headway_specweb::FileName;
use headway_specweb::application::{self, Reply, Step};
use headway_specweb::request::{Asked, BODY_BYTES_MAX, Request, asked};
use headway_specweb::scan::{PATH_BYTES, Scanner};
use headway_specweb::state::ADS_NAME;

use super::exchange::{Given, LOOKS_MAX, Served, status_of};
use super::flow::ASKS_IN_ALL_MAX;
use super::small::{Copied, Missing};
use super::{Fate, Worker};
use crate::config::Handler;
use crate::connection::{Connection, Phase, Turn, TurnStage};
use crate::errand::Errand;
use crate::lookup::Found;
use crate::request::{Entry, Piece};
use crate::respond::Representation;
use crate::respond::dynamic::Place;
use crate::respond::dynamic::application::{Words, file, log, page};

mod tables;

pub(super) use tables::Applications;
use tables::{Loaded, NoTables, Tables};

/// A file with places for an advertisement has a tenth of it; a larger one is no file of a set.
const SCANNED_BYTES_MAX: u64 = 1 << 20;

/// A request that is under way: its head, what it says, and where it belongs.
struct Ask<'a> {
    head: &'a Head<'a>,
    request: Request<'a>,
    place: &'a Place,
}

impl Worker {
    /// The rest of this request's body is still to come, and it is one that is wanted together with
    /// its head.
    pub(super) fn awaits_body(
        &self,
        connection: &Connection,
        head: &Head<'_>,
        bytes: &[u8],
    ) -> bool {
        let Framing::Length(length) = head.framing else {
            return false;
        };
        let waits = self.applications.any
            && !connection.body_read
            && length <= BODY_BYTES_MAX as u64
            && ((bytes.len() - head.length) as u64) < length;
        waits && self.is_for_an_application(connection, head)
    }

    fn is_for_an_application(&self, connection: &Connection, head: &Head<'_>) -> bool {
        let Target::Path(target) = head.target else {
            return false;
        };
        let Ok(path) = normalise(target) else {
            return false;
        };
        let place = self
            .places
            .find(self.hosts.site(connection.site), &path.bytes);
        place.is_some_and(|place| matches!(place.location.handler, Handler::SpecWeb99(_)))
    }

    /// Waits for the rest of a request, body included, as for the rest of a head.
    pub(super) fn await_rest(
        &mut self,
        connection: &mut Connection,
        head: &Head<'_>,
        bytes: &[u8],
    ) -> Fate {
        if head.expect_continue
            && bytes.len() == head.length
            && let Err(fate) = self.send_continue(connection)
        {
            return fate;
        }
        self.await_head(connection, bytes)
    }

    /// Answers a request of an application, or goes on with it: how many of the bytes belonged to
    /// it, or what becomes of the connection instead.
    pub(super) fn serve_application(
        &mut self,
        connection: &mut Connection,
        head: &Head<'_>,
        bytes: &[u8],
        number: usize,
        given: Given,
    ) -> Result<(usize, Served), Fate> {
        let end = match head.framing {
            _ if connection.body_read => head.length,
            Framing::None => head.length,
            Framing::Length(length) if length <= BODY_BYTES_MAX as u64 => {
                head.length + length as usize
            }
            refused => {
                let status = match refused {
                    Framing::Chunked => Status::LENGTH_REQUIRED,
                    _ => Status::CONTENT_TOO_LARGE,
                };
                self.record(connection, head);
                return Err(self.refuse(connection, head.request_line, status));
            }
        };
        connection.keep_alive = self.keeps(connection, head);
        let place = self.places.get(number).clone();
        let request = headway_gateway::Request::new(head, bytes);
        let words = Words::new(&place, &request, connection.peer.ip());
        let ask = Ask {
            head,
            request: words.request(&bytes[head.length..end], self.date.second),
            place: &place,
        };
        let served = match connection.turn.take() {
            None => self.begin_turn(connection, &ask),
            Some(turn) => self.take_turn(connection, &ask, turn.stage, given),
        };
        Ok((end, served))
    }

    fn begin_turn(&mut self, connection: &mut Connection, ask: &Ask<'_>) -> Served {
        self.counters.dynamic_requests += 1;
        if let Ok(Asked::Custom { .. }) = asked(&ask.request) {
            return self.decide_custom(connection, ask, TurnStage::Tables, Given::Nothing);
        }
        let step = application::step(&ask.request, &mut NoTables);
        self.take_step(connection, ask, step)
    }

    /// Goes on when a helper has answered.
    fn take_turn(
        &mut self,
        connection: &mut Connection,
        ask: &Ask<'_>,
        stage: TurnStage,
        given: Given,
    ) -> Served {
        match (stage, given) {
            (_, Given::Errand(Err(failure)) | Given::Failed(failure)) => {
                self.fail_turn(connection, ask, status_of(failure))
            }
            (stage @ (TurnStage::Tables | TurnStage::Loading(_)), given) => {
                self.decide_custom(connection, ask, stage, given)
            }
            (TurnStage::Page(reply), given) => self.send_page(connection, ask, reply, given),
            (TurnStage::Posting(entry), Given::Errand(Ok(Brought::Words(number)))) => {
                let number = std::str::from_utf8(&number).ok();
                match number.and_then(|digits| digits.parse().ok()) {
                    Some(number) => {
                        let reply = application::posted(&ask.request, &entry, number);
                        self.send_page(connection, ask, reply, Given::Nothing)
                    }
                    None => self.fail_turn(connection, ask, Status::INTERNAL_SERVER_ERROR),
                }
            }
            (TurnStage::Resetting(reset), Given::Errand(Ok(_))) => {
                // Where names are not probed, what is known of the old ones would be believed for a
                // while.
                if let Some((root, _)) = ask.place.own() {
                    self.lookup.forget(root, ADS_NAME.as_bytes());
                }
                let reply = application::was_reset(&ask.request, &reset);
                self.send_page(connection, ask, reply, Given::Nothing)
            }
            (TurnStage::Fetching, Given::Errand(Ok(brought))) => {
                let content = match brought {
                    Brought::Words(words) => Piece::bytes(words.into()),
                    Brought::File(file) => {
                        let length = file.meta().size;
                        Piece::File(file, 0..length)
                    }
                };
                let context = self.context(ask.head, connection);
                let outgoing = log(&context, &ask.request, content);
                self.reply(connection, outgoing)
            }
            // An answer to something that was not asked.
            _ => self.fail_turn(connection, ask, Status::INTERNAL_SERVER_ERROR),
        }
    }

    fn fail_turn(&mut self, connection: &mut Connection, ask: &Ask<'_>, status: Status) -> Served {
        let hosts = self.hosts();
        self.fail(connection, ask.head, hosts.site(connection.site), status)
    }

    /// Does what was decided, or has it done.
    fn take_step(
        &mut self,
        connection: &mut Connection,
        ask: &Ask<'_>,
        step: io::Result<Step>,
    ) -> Served {
        let (errand, stage) = match step {
            Ok(Step::Reply(reply)) => {
                return self.send_page(connection, ask, reply, Given::Nothing);
            }
            Ok(Step::Post(entry)) => (Errand::Append(entry), TurnStage::Posting(entry)),
            Ok(Step::Reset(reset)) => (Errand::Reset(reset), TurnStage::Resetting(reset)),
            Ok(Step::Fetch) => (Errand::Log, TurnStage::Fetching),
            Err(_) => return self.fail_turn(connection, ask, Status::INTERNAL_SERVER_ERROR),
        };
        self.run_errand(connection, ask, errand, stage)
    }

    /// Sends a helper, and has the request wait for it.
    fn run_errand(
        &mut self,
        connection: &mut Connection,
        ask: &Ask<'_>,
        errand: Errand,
        stage: TurnStage,
    ) -> Served {
        let Some((_, directory)) = ask.place.own() else {
            return self.fail_turn(connection, ask, Status::INTERNAL_SERVER_ERROR);
        };
        let sharing = match errand {
            Errand::Tables => Sharing::Shared,
            Errand::Append(_) | Errand::Reset(_) | Errand::Log => Sharing::Once,
        };
        let words = errand.words(directory);
        let asked = self.pool.errand(sharing, &words, connection.waiter());
        self.wait_turn(connection, ask, stage, Phase::Errand, asked)
    }

    /// The request waits for a helper that has been asked, or is turned away because too much waits
    /// already.
    fn wait_turn(
        &mut self,
        connection: &mut Connection,
        ask: &Ask<'_>,
        stage: TurnStage,
        phase: Phase,
        asked: Result<(), Full>,
    ) -> Served {
        if asked.is_err() {
            return self.fail_turn(connection, ask, Status::SERVICE_UNAVAILABLE);
        }
        let place = ask.place.number;
        connection.turn = Some(Box::new(Turn { place, stage }));
        self.wait(connection, phase)
    }

    /// Chooses the advertisement, when the tables are here in their present version.
    fn decide_custom(
        &mut self,
        connection: &mut Connection,
        ask: &Ask<'_>,
        stage: TurnStage,
        given: Given,
    ) -> Served {
        let tables = match self.present_tables(connection, ask, stage, given) {
            Ok(tables) => tables,
            Err(served) => return served,
        };
        let mut loaded = Loaded {
            tables: &tables,
            tracer: &self.tracer,
        };
        let step = application::step(&ask.request, &mut loaded);
        self.take_step(connection, ask, step)
    }

    /// The tables; or what becomes of the request while, or because, they are not here.
    fn present_tables(
        &mut self,
        connection: &mut Connection,
        ask: &Ask<'_>,
        stage: TurnStage,
        given: Given,
    ) -> Result<Rc<Tables>, Served> {
        let number = ask.place.number;
        let entry = match (stage, given) {
            (TurnStage::Loading(version), Given::Errand(Ok(Brought::File(content)))) => {
                return match Tables::read(content, version, &self.tracer) {
                    Some(tables) => {
                        let tables = Rc::new(tables);
                        self.applications.tables[number] = Some(tables.clone());
                        Ok(tables)
                    }
                    None => {
                        let status = Status::INTERNAL_SERVER_ERROR;
                        Err(self.fail_turn(connection, ask, status))
                    }
                };
            }
            (_, Given::Entry(entry, _)) => entry,
            _ => self.find_table(connection, ask)?,
        };
        let Answer::File(found) = &entry.answer else {
            let status = Status::INTERNAL_SERVER_ERROR;
            return Err(self.fail_turn(connection, ask, status));
        };
        let version = *found.file.meta();
        let known = self.applications.tables[number].as_ref();
        match known.filter(|tables| tables.version == version) {
            Some(tables) => Ok(tables.clone()),
            None => {
                let stage = TurnStage::Loading(version);
                Err(self.run_errand(connection, ask, Errand::Tables, stage))
            }
        }
    }

    /// The advertisements' file as it is now.
    fn find_table(
        &mut self,
        connection: &mut Connection,
        ask: &Ask<'_>,
    ) -> Result<Rc<Entry>, Served> {
        let root = ask.place.own().map_or(RootId(0), |(root, _)| root);
        let name = ADS_NAME.as_bytes();
        let found = self
            .lookup
            .find_now(root, name, self.now_ms, &self.tracer, &mut self.counters);
        match found {
            Found::Entry(entry) => Ok(entry),
            Found::AskHelper => {
                let asked = self.pool.resolve(root, name, connection.waiter());
                Err(self.wait_turn(connection, ask, TurnStage::Tables, Phase::Name, asked))
            }
        }
    }

    /// Sends a reply; the file in it is looked up and read in first.
    fn send_page(
        &mut self,
        connection: &mut Connection,
        ask: &Ask<'_>,
        reply: Reply,
        mut given: Given,
    ) -> Served {
        let Some((name, ad)) = file(&reply) else {
            return self.send_words(connection, ask, reply, None);
        };
        let hosts = self.hosts();
        let (root, path) = (hosts.site(connection.site).root, relative(name));
        for _ in 0..LOOKS_MAX {
            let (entry, copy) = match std::mem::replace(&mut given, Given::Nothing) {
                Given::Entry(entry, copy) => (entry, copy),
                _ => {
                    let found = self.lookup.find(
                        root,
                        &path,
                        self.now_ms,
                        &self.tracer,
                        &mut self.counters,
                    );
                    let Found::Entry(entry) = found else {
                        let asked = self.pool.resolve(root, &path, connection.waiter());
                        let stage = TurnStage::Page(reply);
                        return self.wait_turn(connection, ask, stage, Phase::Name, asked);
                    };
                    (entry, None)
                }
            };
            match &entry.answer {
                Answer::File(_) => {}
                Answer::Failed(Failure::Exhausted) if self.free_descriptors() => {
                    self.lookup.forget(root, &path);
                    continue;
                }
                Answer::Failed(failure) if *failure != Failure::NotFound => {
                    self.counters.io_errors += u64::from(*failure == Failure::Io);
                    return self.fail_turn(connection, ask, status_of(*failure));
                }
                _ => return self.send_words(connection, ask, Reply::missing(), None),
            }
            match self.content_of(connection, &entry, &path, ad, copy.as_ref()) {
                Ok(piece) => return self.send_words(connection, ask, reply, Some(piece)),
                Err(Missing::Changed) => {
                    self.lookup.forget(root, &path);
                    if connection.ask_window(0) > ASKS_IN_ALL_MAX {
                        break;
                    }
                }
                Err(missing) => {
                    return self.fetch_page(connection, ask, reply, &entry, &missing);
                }
            }
        }
        self.fail_turn(connection, ask, Status::SERVICE_UNAVAILABLE)
    }

    fn send_words(
        &mut self,
        connection: &mut Connection,
        ask: &Ask<'_>,
        reply: Reply,
        content: Option<Piece>,
    ) -> Served {
        let context = self.context(ask.head, connection);
        let outgoing = page(&context, reply, content);
        self.reply(connection, outgoing)
    }

    /// The file of a page, from memory or to be sent; with an advertisement in its places, a copy
    /// in memory.
    fn content_of(
        &mut self,
        connection: &Connection,
        entry: &Rc<Entry>,
        path: &[u8],
        ad: Option<[u8; PATH_BYTES]>,
        copy: Option<&Copied>,
    ) -> Result<Piece, Missing> {
        let Answer::File(found) = &entry.answer else {
            return Err(Missing::Unreadable);
        };
        let hosts = self.hosts();
        let site = hosts.site(connection.site);
        let representation = Representation::new(found, 0, site, path);
        let size = representation.file.meta().size;
        if size <= self.config.small_file_max_bytes {
            entry.prepared.used.set(true);
            let content = self.content(entry, &representation, copy)?;
            let body = content.body_at..content.bytes.len();
            return Ok(match ad {
                None => Piece::Content(content, body),
                Some(ad) => Piece::bytes(scanned(content.bytes[body].to_vec(), &ad)),
            });
        }
        let whole = representation.file.open().ok_or(Missing::Changed)?;
        let Some(ad) = ad else {
            return match self.is_unchanged(&whole) {
                true => Ok(Piece::File(whole, 0..size)),
                false => Err(Missing::Changed),
            };
        };
        if size > SCANNED_BYTES_MAX {
            return Err(Missing::Unreadable);
        }
        let mut bytes = vec![0; size as usize];
        self.read_small(copy, &whole, &mut bytes)?;
        Ok(Piece::bytes(scanned(bytes, &ad)))
    }

    /// Has a helper bring the file of a page into reach.
    fn fetch_page(
        &mut self,
        connection: &mut Connection,
        ask: &Ask<'_>,
        reply: Reply,
        entry: &Rc<Entry>,
        missing: &Missing,
    ) -> Served {
        let file = match (&entry.answer, missing) {
            (Answer::File(found), Missing::Cold | Missing::Opaque) => found.file.open(),
            _ => None,
        };
        let Some(file) = file else {
            self.counters.io_errors += 1;
            return self.fail_turn(connection, ask, Status::INTERNAL_SERVER_ERROR);
        };
        let asked = self.ask_for_content(connection, entry, &file, missing);
        let stage = TurnStage::Page(reply);
        self.wait_turn(connection, ask, stage, Phase::Content(entry.clone()), asked)
    }

    /// A helper is back from an errand.
    pub(super) fn wake_application(
        &mut self,
        waiter: headway_event::Token,
        answer: &Result<Brought<Rc<OpenFile>>, Failure>,
    ) {
        let Some(slot) = self.connections.find(waiter) else {
            return;
        };
        self.step(slot, |worker, connection| match connection.phase {
            Phase::Errand => worker.resume(connection, Given::Errand(answer.clone())),
            _ => Fate::Keep,
        });
    }
}

/// A document's name as it is looked up: below the document root.
fn relative(name: FileName) -> Vec<u8> {
    let mut path = name.to_string().into_bytes();
    path.remove(0);
    path
}

fn scanned(mut bytes: Vec<u8>, ad: &[u8; PATH_BYTES]) -> Vec<u8> {
    Scanner::new().replace(&mut bytes, ad);
    bytes
}
