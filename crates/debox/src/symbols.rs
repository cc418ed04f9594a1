//! Kernel addresses to names, from /proc/kallsyms.
//!
//! Loading reads and parses some ten megabytes of text, so it belongs to a process that may wait (the
//! master, a command line), never to a worker. It answers for one boot only: addresses are random.

use std::io;
use std::path::Path;

use crate::labels::Label;
use crate::record::Site;

pub(crate) mod waiting;

/// An address this far beyond the last symbol belongs to none of them.
const LAST_FUNCTION_BYTES: u64 = 64 * 1024;

/// The functions of the running kernel and its modules.
pub struct Symbols {
    /// Start of each function and of its name in `names`, by address.
    starts: Vec<(u64, u32)>,
    /// Names, each ended by a newline.
    names: String,
    hidden: bool,
    text_start: Option<u64>,
}

impl Symbols {
    /// Reads /proc/kallsyms. Slow: tens of milliseconds.
    ///
    /// # Errors
    ///
    /// The file cannot be read, as in a container that masks it. Addresses zeroed by
    /// `kernel.kptr_restrict` are no error, see [`Symbols::hidden`].
    pub fn load() -> io::Result<Symbols> {
        let path = Path::new("/proc/kallsyms");
        let text = std::fs::read_to_string(path).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        })?;
        Ok(Symbols::parse(&text))
    }

    /// True if the kernel gave names but no addresses. Nothing resolves then; `kernel.kptr_restrict=0`
    /// (with `kernel.perf_event_paranoid` ≤ 1) or `CAP_SYSLOG` shows them.
    pub fn hidden(&self) -> bool {
        self.hidden
    }

    /// The function an address lies in, and how far behind its start.
    pub fn name(&self, address: u64) -> Option<(&str, u64)> {
        let after = self.starts.partition_point(|(start, _)| *start <= address);
        let (start, name) = *self.starts.get(after.checked_sub(1)?)?;
        let offset = address - start;
        if after == self.starts.len() && offset >= LAST_FUNCTION_BYTES {
            return None;
        }
        Some((self.names[name as usize..].lines().next()?, offset))
    }

    /// Where a function starts. Slow: it looks at every name.
    pub fn address(&self, name: &str) -> Option<u64> {
        let named =
            |start: &&(u64, u32)| self.names[start.1 as usize..].lines().next() == Some(name);
        self.starts.iter().find(named).map(|(address, _)| *address)
    }

    /// Where the kernel's own functions begin, which differs from boot to boot.
    pub fn text_start(&self) -> Option<u64> {
        self.text_start
    }

    /// What a stack (innermost first) was waiting for: the innermost function that is not the scheduler's
    /// machinery. Where that is a general way of waiting, such as a lock or a page flag, its caller
    /// follows, since it names the resource: `folio_wait_bit_common < filemap_update_page`.
    pub fn waiting_site(&self, stack: &[u64]) -> Option<String> {
        // Return addresses point behind the call, which may already be the next function.
        let names = stack
            .iter()
            .filter_map(|address| self.name(address.saturating_sub(1)))
            .map(|(name, _)| name);
        waiting::describe(names)
    }

    /// The innermost function of a stack that is not the scheduler's, and where in it.
    pub fn site(&self, stack: &[u64]) -> Option<Site> {
        stack.iter().find_map(|address| {
            let inside = address.saturating_sub(1);
            let (name, offset) = self.name(inside)?;
            let waits = !waiting::is_machinery(waiting::without_suffix(name));
            waits.then_some(Site {
                function: inside - offset,
                offset: offset as u32 + 1,
            })
        })
    }

    /// A place as kernel developers write it: `folio_wait_bit_common+0x13b`.
    pub fn place(&self, site: Site) -> Option<String> {
        let (name, _) = self.name(site.function)?;
        Some(format!("{name}+{:#x}", site.offset))
    }

    /// The resource a stack (innermost first) was waiting for.
    pub fn label(&self, stack: &[u64]) -> Label {
        Label::of(
            stack
                .iter()
                .filter_map(|address| self.name(address.saturating_sub(1)))
                .map(|(name, _)| name),
        )
    }

    /// Lines are `address type name [module]`.
    pub(crate) fn parse(text: &str) -> Symbols {
        let mut functions = Vec::new();
        let mut zeroed = false;
        let mut text_start = None;
        for line in text.lines() {
            let mut parts = line.split_ascii_whitespace();
            let (Some(address), Some(kind), Some(name)) =
                (parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            // `__pfx_` marks the padding in front of a function, where nothing ever runs.
            if !matches!(kind, "t" | "T" | "w" | "W") || name.starts_with("__pfx_") {
                continue;
            }
            match u64::from_str_radix(address, 16) {
                Ok(0) => zeroed = true,
                Ok(address) => {
                    text_start = text_start.or((name == "_stext").then_some(address));
                    functions.push((address, name));
                }
                Err(_) => {}
            }
        }
        Symbols {
            text_start,
            ..Symbols::index(functions, zeroed)
        }
    }

    fn index(mut functions: Vec<(u64, &str)>, zeroed: bool) -> Symbols {
        // Stable, so among aliases the one listed first gives the name.
        functions.sort_by_key(|(address, _)| *address);
        functions.dedup_by_key(|(address, _)| *address);
        let mut names = String::new();
        let mut starts = Vec::with_capacity(functions.len());
        for (address, name) in functions {
            starts.push((address, names.len() as u32));
            names.push_str(name);
            names.push('\n');
        }
        let hidden = starts.is_empty() && zeroed;
        Symbols {
            starts,
            names,
            hidden,
            text_start: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Site, Symbols};

    const TEXT: &str = "\
ffffffff81000000 T _stext
ffffffff81000100 t vfs_read
ffffffff81000100 t alias_of_vfs_read
ffffffff810000f0 t __pfx_vfs_read
ffffffff81000200 d some_data
ffffffff81000300 T filemap_update_page
ffffffff81000400 T folio_wait_bit_common
ffffffff81000500 t io_schedule
ffffffff81000600 T __schedule
ffffffffc0000000 t ext4_file_read_iter\t[ext4]
";

    #[test]
    fn offset_is_from_the_function_when_an_address_lies_inside() {
        let symbols = Symbols::parse(TEXT);
        assert_eq!(symbols.name(0xffffffff81000100), Some(("vfs_read", 0)));
        assert_eq!(symbols.name(0xffffffff81000210), Some(("vfs_read", 0x110)));
        assert_eq!(symbols.name(0xffffffff810000f8), Some(("_stext", 0xf8)));
        assert_eq!(
            symbols.name(0xffffffffc0000010),
            Some(("ext4_file_read_iter", 0x10))
        );
    }

    #[test]
    fn address_has_no_name_when_it_is_outside_every_function() {
        let symbols = Symbols::parse(TEXT);
        assert_eq!(symbols.name(0xffffffff80ffffff), None);
        assert_eq!(symbols.name(0xffffffffd0000000), None);
    }

    #[test]
    fn caller_is_named_too_when_the_wait_is_a_general_one() {
        let symbols = Symbols::parse(TEXT);
        // The last address is the very end of filemap_update_page: a return address behind its last call.
        let stack = [
            0xffffffff81000610,
            0xffffffff81000510,
            0xffffffff81000410,
            0xffffffff81000400,
        ];
        assert_eq!(
            symbols.waiting_site(&stack).as_deref(),
            Some("folio_wait_bit_common < filemap_update_page")
        );
        assert_eq!(symbols.waiting_site(&[]), None);
    }

    #[test]
    fn place_has_function_and_offset_when_the_site_is_known() {
        let symbols = Symbols::parse(TEXT);
        let site = Site {
            function: 0xffffffff81000400,
            offset: 0x10,
        };
        let place = symbols.place(site).expect("a function starts there");
        assert!(place.ends_with("+0x10"), "{place}");
    }

    #[test]
    fn symbols_are_hidden_when_all_addresses_are_zero() {
        let symbols = Symbols::parse("0000000000000000 T _stext\n0000000000000000 t vfs_read\n");
        assert!(symbols.hidden());
        assert_eq!(symbols.name(0), None);
        assert!(!Symbols::parse(TEXT).hidden());
    }
}
