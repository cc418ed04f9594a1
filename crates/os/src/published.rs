//! A value that is made once and then never changes, without a lock.
//!
//! `std::sync::OnceLock` is copied by `fork` as it is: if another thread was making the value, the
//! child waits for ever for a thread that it does not have. Here two threads may both make the
//! value. The first to finish publishes its own, and the others drop theirs. `loom/` has a model.

#[cfg(loom)]
use loom::sync::atomic::{AtomicPtr, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value for the rest of the process, or none yet.
///
/// ```
/// use headway_os::published::Published;
///
/// static NAME: Published<String> = Published::new();
/// assert_eq!(NAME.get(), None);
/// assert_eq!(NAME.get_or_publish(|| "first".to_owned()), "first");
/// assert_eq!(NAME.get_or_publish(|| "second".to_owned()), "first");
/// ```
#[derive(Debug)]
pub struct Published<T: 'static> {
    value: AtomicPtr<T>,
}

impl<T: Send + Sync + 'static> Published<T> {
    /// No value yet.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Published<T> {
        Published {
            value: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// The same; loom's atomics cannot be made at compile time.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Published<T> {
        Published {
            value: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// The value, if there is one.
    pub fn get(&self) -> Option<&'static T> {
        // SAFETY: null, or leaked by `get_or_publish` and only shared since.
        unsafe { self.value.load(Ordering::Acquire).as_ref() }
    }

    /// The value; `make` makes it if there is none yet.
    pub fn get_or_publish(&self, make: impl FnOnce() -> T) -> &'static T {
        if let Some(value) = self.get() {
            return value;
        }
        let fresh = Box::into_raw(Box::new(make()));
        let null = std::ptr::null_mut();
        let published =
            self.value
                .compare_exchange(null, fresh, Ordering::AcqRel, Ordering::Acquire);
        if published.is_err() {
            // SAFETY: made above, and no other code knows it.
            drop(unsafe { Box::from_raw(fresh) });
        }
        // SAFETY: not null now, leaked above or by another thread, and only shared since.
        unsafe { &*self.value.load(Ordering::Acquire) }
    }
}

impl<T: Send + Sync + 'static> Default for Published<T> {
    fn default() -> Published<T> {
        Published::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Published;
    use std::sync::Barrier;

    #[test]
    fn all_threads_get_one_value_when_several_make_it_at_once() {
        for _ in 0..200 {
            let (value, start) = (Published::new(), Barrier::new(4));
            let found: Vec<u64> = std::thread::scope(|scope| {
                let one = |number| {
                    let (value, start) = (&value, &start);
                    scope.spawn(move || {
                        start.wait();
                        *value.get_or_publish(|| number)
                    })
                };
                let threads: Vec<_> = (0..4).map(one).collect();
                threads
                    .into_iter()
                    .map(|thread| thread.join().expect("no panic"))
                    .collect()
            });
            assert!(
                found.iter().all(|one| Some(one) == value.get()),
                "{found:?}"
            );
        }
    }

    #[test]
    fn value_is_returned_when_another_one_is_being_made() {
        let value = Published::new();
        let first = value.get_or_publish(|| {
            // What a child forked in here would do.
            assert_eq!(*value.get_or_publish(|| 1), 1);
            2
        });
        assert_eq!(*first, 1);
    }
}
