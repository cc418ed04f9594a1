//! A call in a thread of its own, for a file system that may not answer.
//!
//! A thread that is not waited for any more ends when the file system answers, or with the process.

use std::fmt;
use std::io;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use crate::exec::BlockedSignals;

/// What a call returns, once it has returned.
///
/// ```
/// use std::time::Duration;
/// use headway_os::answer::Answer;
///
/// let answer = Answer::of("metadata", || std::fs::metadata("/").is_ok())?;
/// assert_eq!(answer.within(Duration::from_secs(10)), Some(true));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Answer<T>(Receiver<T>);

impl<T: Send + 'static> Answer<T> {
    /// Starts the call in a thread with this name.
    ///
    /// # Errors
    /// Those of `pthread_create(3)`. The call was not made.
    pub fn of(name: &str, call: impl FnOnce() -> T + Send + 'static) -> io::Result<Answer<T>> {
        let (sender, answer) = channel();
        // Signals are for the main thread.
        let _blocked = BlockedSignals::all();
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                // Perhaps it is not waited for any more.
                let _ = sender.send(call());
            })?;
        Ok(Answer(answer))
    }

    /// Waits for at most this long. `None` if the call has not returned; it can be asked for again.
    pub fn within(&self, time: Duration) -> Option<T> {
        self.0.recv_timeout(time).ok()
    }
}

impl<T> fmt::Debug for Answer<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Answer")
    }
}
