//! Kernel addresses to names, from /proc/kallsyms.
//!
//! Loading reads and parses about ten megabytes of text. It belongs into a process that may block
//! (the master, a command), never into a worker. The result is valid for one boot only, since
//! addresses are random.
//!
//! The result is one block of bytes ([`Symbols::image`]), which other processes of the same boot
//! can map and use directly: a header, the sorted start addresses, the names. The reader trusts no
//! byte of it.

use std::borrow::Cow;
use std::io;
use std::path::Path;

use crate::labels::Label;
use crate::record::CodeOffset;

pub(crate) mod waiting;

/// An address this far beyond the last symbol belongs to none of them.
const LAST_FUNCTION_BYTES: u64 = 64 * 1024;

/// The functions of the running kernel and its modules.
///
/// ```
/// let symbols = headway_debox::Symbols::load()?;
/// // Without the privilege the kernel hides all addresses.
/// if !symbols.hidden() {
///     let start = symbols.address("schedule").expect("every kernel schedules");
///     assert_eq!(symbols.name(start + 4), Some(("schedule", 4)));
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Symbols {
    /// The header ([`head`]), then for each function its start, and the offset and length of its
    /// name in half a word each; then the names.
    image: Cow<'static, [u8]>,
    count: usize,
}

/// Positions of the words in the header of an image.
mod head {
    pub const MAGIC: usize = 0;
    pub const BOOT: usize = 1;
    pub const COUNT: usize = 3;
    pub const HIDDEN: usize = 4;
    pub const TEXT_START: usize = 5;
    pub const WORDS: usize = 6;
}

const MAGIC: u64 = u64::from_ne_bytes(*b"DBXSYMS1");
const WORD_BYTES: usize = 8;
const ENTRY_BYTES: usize = 2 * WORD_BYTES;
const STARTS: usize = head::WORDS * WORD_BYTES;

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

    /// Takes what [`Symbols::image`] gave, perhaps to another process. `None` if it is none, or of
    /// another boot.
    pub fn from_image(image: Cow<'static, [u8]>) -> Option<Symbols> {
        let symbols = Symbols { image, count: 0 };
        let boot = [symbols.word(head::BOOT), symbols.word(head::BOOT + 1)];
        if symbols.word(head::MAGIC) != MAGIC || boot != boot_id_words() {
            return None;
        }
        let count = usize::try_from(symbols.word(head::COUNT)).ok()?;
        let names = count.checked_mul(ENTRY_BYTES)?.checked_add(STARTS)?;
        (names <= symbols.image.len()).then_some(Symbols { count, ..symbols })
    }

    /// All of it as one piece of bytes, for [`Symbols::from_image`].
    pub fn image(&self) -> &[u8] {
        &self.image
    }

    /// True if the kernel gave names but no addresses. Nothing resolves then;
    /// `kernel.kptr_restrict=0` (with `kernel.perf_event_paranoid` ≤ 1) or `CAP_SYSLOG` shows them.
    pub fn hidden(&self) -> bool {
        self.word(head::HIDDEN) != 0
    }

    /// The function an address lies in, and how far behind its start.
    pub fn name(&self, address: u64) -> Option<(&str, u64)> {
        let after = self.after(address);
        let last = after.checked_sub(1)?;
        let offset = address - self.start(last);
        if after == self.count && offset >= LAST_FUNCTION_BYTES {
            return None;
        }
        Some((self.name_at(last)?, offset))
    }

    /// The start address of a function. Slow: it compares every name.
    pub fn address(&self, name: &str) -> Option<u64> {
        let named = |index: &usize| self.name_at(*index) == Some(name);
        (0..self.count).find(named).map(|index| self.start(index))
    }

    /// Where the kernel's own functions begin, which differs from boot to boot.
    pub fn text_start(&self) -> Option<u64> {
        Some(self.word(head::TEXT_START)).filter(|start| *start != 0)
    }

    /// How many functions start at or before an address.
    fn after(&self, address: u64) -> usize {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low.midpoint(high);
            if self.start(middle) <= address {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    fn start(&self, index: usize) -> u64 {
        self.word(head::WORDS + 2 * index)
    }

    fn name_at(&self, index: usize) -> Option<&str> {
        let packed = self.word(head::WORDS + 2 * index + 1);
        let (start, length) = ((packed >> 32) as usize, packed as u32 as usize);
        let start = STARTS + self.count * ENTRY_BYTES + start;
        std::str::from_utf8(self.image.get(start..start + length)?).ok()
    }

    /// The word at this index; zero beyond the end.
    fn word(&self, index: usize) -> u64 {
        let at = index * WORD_BYTES;
        let bytes = self.image.get(at..at + WORD_BYTES);
        bytes
            .and_then(|bytes| bytes.try_into().ok())
            .map_or(0, u64::from_ne_bytes)
    }

    /// What a stack (innermost first) waits in: the innermost function that is not part of the
    /// scheduler. If that is a general primitive, such as a lock or a page flag, its caller
    /// follows, since it names the resource: `folio_wait_bit_common < filemap_update_page`.
    pub fn waiting_site(&self, stack: &[u64]) -> Option<String> {
        waiting::describe(self.names(stack))
    }

    /// The names of the functions of a stack, innermost first.
    fn names<'s>(&'s self, stack: &'s [u64]) -> impl Iterator<Item = &'s str> {
        // Return addresses point behind the call, which may already be the next function.
        (stack.iter())
            .filter_map(|address| self.name(address.saturating_sub(1)))
            .map(|(name, _)| name)
    }

    /// The functions of a stack, innermost first, without those of the scheduler and of observers.
    pub fn functions<'s>(&'s self, stack: &'s [u64]) -> impl Iterator<Item = &'s str> {
        (self.names(stack))
            .map(waiting::without_suffix)
            .filter(|name| !waiting::is_machinery(name))
    }

    /// The innermost function of a stack that is not the scheduler's, and where in it.
    pub fn site(&self, stack: &[u64]) -> Option<CodeOffset> {
        stack.iter().find_map(|address| self.waits_at(*address))
    }

    /// A stack without the functions that only implement the waiting or its observation, since
    /// those depend on which tracers are active. The whole stack if nothing else is left.
    pub fn without_scheduler<'a>(&self, stack: &'a [u64]) -> &'a [u64] {
        let waits = |address: &u64| self.waits_at(*address).is_some();
        let begin = stack.iter().position(waits).unwrap_or(0);
        &stack[begin..]
    }

    /// The position of a return address, unless its function is unknown or part of the scheduler.
    fn waits_at(&self, address: u64) -> Option<CodeOffset> {
        let inside = address.saturating_sub(1);
        let (name, offset) = self.name(inside)?;
        let waits = !waiting::is_machinery(waiting::without_suffix(name));
        waits.then_some(CodeOffset {
            function: inside - offset,
            offset: offset as u32 + 1,
        })
    }

    /// A position as kernel developers write it: `folio_wait_bit_common+0x13b`.
    pub fn format_site(&self, site: CodeOffset) -> Option<String> {
        let (name, _) = self.name(site.function)?;
        Some(format!("{name}+{:#x}", site.offset))
    }

    /// The resource a stack (innermost first) was waiting for.
    pub fn label(&self, stack: &[u64]) -> Label {
        Label::of(self.names(stack))
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
        Symbols::index(functions, zeroed, text_start)
    }

    fn index(mut functions: Vec<(u64, &str)>, zeroed: bool, text_start: Option<u64>) -> Symbols {
        // A stable sort, so that of several aliases the first one in the list gives the name.
        functions.sort_by_key(|(address, _)| *address);
        functions.dedup_by_key(|(address, _)| *address);
        let count = functions.len();
        let hidden = functions.is_empty() && zeroed;
        let names: usize = functions.iter().map(|(_, name)| name.len()).sum();
        let mut image = Vec::with_capacity(STARTS + count * ENTRY_BYTES + names);
        let [boot_high, boot_low] = boot_id_words();
        for word in [
            MAGIC,
            boot_high,
            boot_low,
            count as u64,
            u64::from(hidden),
            text_start.unwrap_or(0),
        ] {
            image.extend(word.to_ne_bytes());
        }
        let mut name_start = 0_u64;
        for (address, name) in &functions {
            image.extend(address.to_ne_bytes());
            image.extend((name_start << 32 | name.len() as u64).to_ne_bytes());
            name_start += name.len() as u64;
        }
        for (_, name) in &functions {
            image.extend(name.as_bytes());
        }
        Symbols {
            image: Cow::Owned(image),
            count,
        }
    }
}

/// The boot id, as two words; zero if the kernel does not provide it.
fn boot_id_words() -> [u64; 2] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16).unwrap_or(0);
    [(number >> 64) as u64, number as u64]
}

#[cfg(test)]
mod tests {
    use super::{CodeOffset, Symbols};

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
    fn stacks_are_equal_when_they_differ_only_in_observers() {
        let symbols = Symbols::parse(&format!(
            "{TEXT}ffffffffc0001000 t bpf_prog_1_observe\t[bpf]\nffffffffc0002000 t __traceiter_sched_switch\n"
        ));
        let way = [0xffffffff81000410, 0xffffffff81000310];
        let (schedule, program, iterator) =
            (0xffffffff81000610, 0xffffffffc0001010, 0xffffffffc0002010);
        let alone = [program, schedule, way[0], way[1]];
        let beside_another = [program, iterator, schedule, way[0], way[1]];
        assert_eq!(symbols.without_scheduler(&alone), way);
        assert_eq!(symbols.without_scheduler(&beside_another), way);
        assert_eq!(
            symbols.without_scheduler(&[schedule]),
            [schedule],
            "nothing else"
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
        // The last address is the very end of filemap_update_page: a return address behind its last
        // call.
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
    fn site_is_formatted_as_function_and_offset_when_its_symbol_is_known() {
        let symbols = Symbols::parse(TEXT);
        let site = CodeOffset {
            function: 0xffffffff81000400,
            offset: 0x10,
        };
        let shown = symbols.format_site(site).expect("a function starts there");
        assert!(shown.ends_with("+0x10"), "{shown}");
    }

    #[test]
    fn symbols_are_the_same_when_the_image_is_loaded_in_another_process() {
        let symbols = Symbols::parse(TEXT);
        let image = symbols.image().to_vec();
        let taken = Symbols::from_image(image.clone().into()).expect("of this boot");
        assert_eq!(taken.name(0xffffffff81000210), Some(("vfs_read", 0x110)));
        assert_eq!(taken.address("__schedule"), Some(0xffffffff81000600));
        assert_eq!(taken.text_start(), Some(0xffffffff81000000));
        assert!(!taken.hidden());

        // A damaged image gives some name or none, and no byte beyond its end is read.
        for at in 0..image.len() {
            let mut damaged = image.clone();
            damaged[at] ^= 0xff;
            if let Some(symbols) = Symbols::from_image(damaged.into()) {
                let _ = (symbols.name(u64::MAX), symbols.name(0xffffffff81000210));
                let _ = symbols.address("none");
            }
            let cut = Symbols::from_image(image[..at].to_vec().into());
            let _ = cut.map(|symbols| symbols.name(0xffffffffc0000010).is_some());
        }
        let mut of_another_boot = image;
        of_another_boot[9] ^= 1;
        assert!(Symbols::from_image(of_another_boot.into()).is_none());
    }

    #[test]
    fn symbols_are_hidden_when_all_addresses_are_zero() {
        let symbols = Symbols::parse("0000000000000000 T _stext\n0000000000000000 t vfs_read\n");
        assert!(symbols.hidden());
        assert_eq!(symbols.name(0), None);
        assert!(!Symbols::parse(TEXT).hidden());
    }
}
