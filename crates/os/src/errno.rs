//! `errno` kept over work of our own: a program that is watched must not notice.
//!
//! Source: errno(3).

/// Puts `errno` back to what it was when this was made.
#[derive(Debug)]
pub struct SavedErrno(i32);

impl SavedErrno {
    /// Remembers the calling thread's `errno`.
    pub fn now() -> SavedErrno {
        SavedErrno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }
}

impl Drop for SavedErrno {
    fn drop(&mut self) {
        // SAFETY: the call only answers with an address.
        let location = unsafe { libc::__errno_location() };
        // SAFETY: it is the calling thread's own, valid as long as the thread lives.
        unsafe { *location = self.0 };
    }
}

#[cfg(test)]
mod tests {
    use super::SavedErrno;

    #[test]
    fn errno_is_restored_when_calls_fail_in_between() {
        std::fs::File::open("/nowhere/at/all").expect_err("no such file");
        let before = std::io::Error::last_os_error().raw_os_error();
        {
            let _kept = SavedErrno::now();
            std::fs::read("/").expect_err("a directory");
        }
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), before);
        assert_eq!(before, Some(libc::ENOENT));
    }
}
