//! Reads the rows of 64-bit words that `bpf/layout.h` describes. The order of fields is the same.

/// Sizes and numbers of `bpf/layout.h`.
pub(crate) const CALL_NONE: u64 = 0x1_0000_0000;
pub(crate) const STACK_UNKNOWN: u64 = 0xffff_ffff;
pub(crate) const CALLS_MAX: usize = 512;
pub(crate) const LOST_KINDS: usize = 10;
const SLEEPS_MAX: usize = 8;
const USER_FRAMES_MAX: usize = 16;
const EVENT_RECORD: u64 = 1;
const EVENT_FORK: u64 = 2;
const EVENT_EXEC: u64 = 3;
const EVENT_EXIT: u64 = 4;
const EVENT_WAITED: u64 = 5;
const WAITED_WORDS: usize = 9;
const PATH_WORDS: usize = 128 / 8;
const PROCESS_WORDS: usize = 6 + PATH_WORDS;

/// `enum target`.
pub(crate) const CHILDREN_ONLY: u64 = 1;

pub(crate) type SiteKey = [u64; 3];
pub(crate) type CallWords = [u64; 15];
pub(crate) type SleepKey = [u64; 5];
pub(crate) type SleepWords = [u64; 8];
pub(crate) type RecordWords = [u64; RECORD_WORDS];

const CALL_SLEEP_WORDS: usize = 2 + 8;
const HEAD_WORDS: usize = 18;
const RECORD_WORDS: usize = HEAD_WORDS + SLEEPS_MAX * CALL_SLEEP_WORDS + USER_FRAMES_MAX;

/// A process, as a key: its number and how often it has called exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Process {
    pub pid: u32,
    pub execs: u32,
}

impl Process {
    pub fn of(word: u64) -> Process {
        Process {
            pid: word as u32,
            execs: (word >> 32) as u32,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Site {
    pub process: Process,
    /// `None` outside any call.
    pub call: Option<u32>,
    pub address: u64,
}

impl Site {
    pub fn of(words: &[u64]) -> Site {
        Site {
            process: Process::of(words[0]),
            call: (words[1] != CALL_NONE).then_some(words[1] as u32),
            address: words[2],
        }
    }
}

/// `struct sleep`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sleep {
    pub count: u64,
    pub blocked_ns: u64,
    pub max_ns: u64,
    pub wakeup_ns: u64,
    pub entry_sum: u64,
    pub exit_sum: u64,
    pub entry_max: u64,
    pub exit_max: u64,
}

impl Sleep {
    pub fn of(words: &[u64]) -> Sleep {
        Sleep {
            count: words[0],
            blocked_ns: words[1],
            max_ns: words[2],
            wakeup_ns: words[3],
            entry_sum: words[4],
            exit_sum: words[5],
            entry_max: words[6],
            exit_max: words[7],
        }
    }
}

/// `struct record`.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub site: Site,
    pub tid: u32,
    pub result: i64,
    pub start_ns: u64,
    pub wall_ns: u64,
    pub faults_minor: u64,
    pub faults_major: u64,
    pub preemptions: u64,
    pub preempted_ns: u64,
    pub wakeup_ns: u64,
    pub sleeps_dropped: u64,
    pub comm: String,
    /// Number of the stack, kind of resource, sums.
    pub sleeps: Vec<(u64, u64, Sleep)>,
    pub user_stack: Vec<u64>,
}

impl Record {
    pub fn of(words: &[u64]) -> Record {
        let used = (words[13] as usize).min(SLEEPS_MAX);
        let frames = (words[15] as usize).min(USER_FRAMES_MAX);
        let stack = &words[RECORD_WORDS - USER_FRAMES_MAX..];
        Record {
            site: Site::of(&words[1..4]),
            tid: words[4] as u32,
            result: words[5] as i64,
            start_ns: words[6],
            wall_ns: words[7],
            faults_minor: words[8],
            faults_major: words[9],
            preemptions: words[10],
            preempted_ns: words[11],
            wakeup_ns: words[12],
            sleeps_dropped: words[14],
            comm: text(&words[16..18]),
            sleeps: words[HEAD_WORDS..]
                .chunks_exact(CALL_SLEEP_WORDS)
                .take(used)
                .map(|words| (words[0], words[1], Sleep::of(&words[2..])))
                .collect(),
            user_stack: stack[..frames]
                .iter()
                .copied()
                .take_while(|word| *word != 0)
                .collect(),
        }
    }
}

/// `struct waited`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SleepEvent {
    pub pid: u32,
    pub tid: u32,
    /// `None` outside any call.
    pub call: Option<u32>,
    pub start_ns: u64,
    pub end_ns: u64,
    pub stack: u64,
    pub resource: u64,
    pub entry: u64,
    pub exit: u64,
}

impl SleepEvent {
    fn of(words: &[u64]) -> SleepEvent {
        SleepEvent {
            pid: (words[1] >> 32) as u32,
            tid: words[1] as u32,
            call: (words[2] & CALL_NONE == 0).then_some(words[2] as u32),
            start_ns: words[3],
            end_ns: words[4],
            stack: words[5],
            resource: words[6],
            entry: words[7],
            exit: words[8],
        }
    }
}

/// `struct process_event`.
#[derive(Clone, Debug)]
pub(crate) struct ProcessEvent {
    pub process: Process,
    pub parent: Process,
    pub time_ns: u64,
    pub comm: String,
    pub path: String,
}

impl ProcessEvent {
    fn of(words: &[u64]) -> ProcessEvent {
        ProcessEvent {
            process: Process::of(words[1]),
            parent: Process::of(words[2]),
            time_ns: words[3],
            comm: text(&words[4..6]),
            path: text(&words[6..]),
        }
    }
}

/// The beginning of `struct thread`: what is known of a call under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallUnderWay {
    pub site: Site,
    pub start_ns: u64,
    /// Asleep since then; 0 if it is not.
    pub asleep_ns: u64,
    pub stack: u64,
    pub resource: u64,
}

/// When the last call of a thread began; 0 before its first.
const START_WORD: usize = 8;

/// Whether a thread has entered a call since it is observed.
pub(crate) fn has_called(words: &ThreadWords) -> bool {
    words[START_WORD] != 0
}

pub(crate) type ThreadWords = [u64; 28 + SLEEPS_MAX * CALL_SLEEP_WORDS];

impl CallUnderWay {
    /// `None` if the thread is in no call that was seen to begin.
    pub fn of(words: &ThreadWords) -> Option<CallUnderWay> {
        let (in_call, off_ns, asleep) = (words[3], words[18], words[19]);
        let start_ns = words[START_WORD];
        (in_call != 0 && start_ns != 0).then(|| CallUnderWay {
            site: Site::of(words),
            start_ns,
            asleep_ns: if asleep == 0 { 0 } else { off_ns },
            stack: words[24],
            resource: words[25],
        })
    }
}

/// One item of the ring buffer.
#[derive(Debug)]
pub(crate) enum Event {
    Record(Box<Record>),
    Fork(ProcessEvent),
    Exec(ProcessEvent),
    Exit(ProcessEvent),
    Sleep(SleepEvent),
}

impl Event {
    /// `None` for bytes that are no event of ours.
    pub fn of(bytes: &[u8]) -> Option<Event> {
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")))
            .collect();
        match (*words.first()?, words.len()) {
            (EVENT_RECORD, RECORD_WORDS) => Some(Event::Record(Box::new(Record::of(&words)))),
            (EVENT_FORK, PROCESS_WORDS) => Some(Event::Fork(ProcessEvent::of(&words))),
            (EVENT_EXEC, PROCESS_WORDS) => Some(Event::Exec(ProcessEvent::of(&words))),
            (EVENT_EXIT, PROCESS_WORDS) => Some(Event::Exit(ProcessEvent::of(&words))),
            (EVENT_WAITED, WAITED_WORDS) => Some(Event::Sleep(SleepEvent::of(&words))),
            _ => None,
        }
    }
}

fn text(words: &[u64]) -> String {
    let bytes: Vec<u8> = (words.iter())
        .flat_map(|word| word.to_ne_bytes())
        .take_while(|byte| *byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::{Event, HEAD_WORDS, RECORD_WORDS};

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn record_is_decoded_field_by_field() {
        let mut words: Vec<u64> = (0..RECORD_WORDS as u64).collect();
        words[0] = 1;
        words[13] = 1;
        words[15] = 2;
        words[16] = u64::from_ne_bytes(*b"a name\0\0");
        words[17] = 0;
        let Some(Event::Record(record)) = Event::of(&bytes(&words)) else {
            panic!("a record");
        };
        assert_eq!(
            (
                record.site.process.pid,
                record.site.call,
                record.site.address
            ),
            (1, Some(2), 3)
        );
        assert_eq!(
            (
                record.tid,
                record.start_ns,
                record.wakeup_ns,
                record.sleeps_dropped
            ),
            (4, 6, 12, 14)
        );
        assert_eq!(record.comm, "a name");
        let [(stack, kind, sleep)] = record.sleeps[..] else {
            panic!("one sleep: {record:?}");
        };
        assert_eq!((stack, kind, sleep.count, sleep.exit_max), (18, 19, 20, 27));
        assert_eq!(record.user_stack, [98, 99]);
        assert_eq!((words[HEAD_WORDS], record.result), (18, 5));
    }

    #[test]
    fn sleep_is_decoded_field_by_field() {
        let words = [5, 7 << 32 | 8, 0x1_0000_0000, 3, 4, 5, 6, 10, 11];
        let Some(Event::Sleep(waited)) = Event::of(&bytes(&words)) else {
            panic!("a sleep");
        };
        assert_eq!((waited.pid, waited.tid, waited.call), (7, 8, None));
        assert_eq!((waited.start_ns, waited.end_ns, waited.stack), (3, 4, 5));
        assert_eq!((waited.resource, waited.entry, waited.exit), (6, 10, 11));
    }

    #[test]
    fn news_of_a_process_are_decoded_field_by_field() {
        let mut words = vec![0; super::PROCESS_WORDS];
        (words[0], words[1], words[2], words[3]) = (3, 2 << 32 | 7, 1 << 32 | 6, 9);
        words[4] = u64::from_ne_bytes(*b"short\0\0\0");
        words[6] = u64::from_ne_bytes(*b"/bin/lon");
        words[7] = u64::from_ne_bytes(*b"ger\0old\0");
        let Some(Event::Exec(news)) = Event::of(&bytes(&words)) else {
            panic!("an exec");
        };
        assert_eq!((news.process.pid, news.process.execs), (7, 2));
        assert_eq!(
            (news.parent.pid, news.parent.execs, news.time_ns),
            (6, 1, 9)
        );
        assert_eq!(
            (news.comm.as_str(), news.path.as_str()),
            ("short", "/bin/longer")
        );
    }

    #[test]
    fn call_under_way_is_decoded_field_by_field() {
        let mut words: super::ThreadWords = std::array::from_fn(|at| at as u64);
        let call = super::CallUnderWay::of(&words).expect("in a call");
        assert_eq!((call.site.process.pid, call.site.call), (0, Some(1)));
        assert_eq!((call.start_ns, call.asleep_ns), (8, 18));
        assert_eq!((call.stack, call.resource), (24, 25));
        words[19] = 0;
        assert_eq!(
            super::CallUnderWay::of(&words).map(|call| call.asleep_ns),
            Some(0)
        );
        (words[3], words[8]) = (1, 0);
        assert!(super::CallUnderWay::of(&words).is_none());
        assert!(!super::has_called(&words));
        (words[3], words[8]) = (0, 8);
        assert!(super::CallUnderWay::of(&words).is_none());
        assert!(super::has_called(&words));
    }

    #[test]
    fn bytes_are_ignored_when_they_are_no_event() {
        assert!(Event::of(&[]).is_none());
        assert!(Event::of(&bytes(&[1, 2, 3])).is_none());
        assert!(Event::of(&bytes(&[9, 2, 3])).is_none());
    }
}
