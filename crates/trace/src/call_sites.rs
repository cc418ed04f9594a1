//! From addresses in a program's files to functions, files and lines.
//!
//! Names come from DWARF in the file or in the separate debug file of its build id. Otherwise they
//! come from the symbol tables, within a symbol's size: the preceding symbol is not the name of an
//! unnamed function. Nothing is read in a traced process; all of it happens afterwards, where it
//! delays no program.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};

use addr2line::Loader;
use object::{Object, ObjectSegment, ObjectSymbol, ReadCache, SymbolKind};

use crate::model::CodeLocation;

/// Files that have been opened and locations that have been found.
#[derive(Default)]
pub struct CallSites {
    modules: HashMap<String, Option<Module>>,
    found: HashMap<(String, u64), CodeLocation>,
    without_symbols: BTreeSet<String>,
}

/// A file's names.
struct Module {
    segments: Vec<Segment>,
    symbols: Vec<Symbol>,
    dwarf: Option<Loader>,
}

struct Segment {
    file_start: u64,
    file_end: u64,
    address: u64,
}

struct Symbol {
    start: u64,
    end: u64,
    name: String,
}

impl CallSites {
    /// The location of a return address. The byte before it is looked up, since the call may be the
    /// last instruction of its function.
    pub fn find(&mut self, module: &str, offset: u64) -> CodeLocation {
        let key = (module.to_owned(), offset);
        if let Some(location) = self.found.get(&key) {
            return location.clone();
        }
        let known = self
            .modules
            .entry(module.to_owned())
            .or_insert_with(|| Module::open(Path::new(module)));
        let mut location = CodeLocation {
            module: module.to_owned(),
            offset,
            ..CodeLocation::default()
        };
        if let Some(known) = known {
            known.name(&mut location);
        }
        if location.function.is_none() && module.starts_with('/') {
            self.without_symbols.insert(module.to_owned());
        }
        self.found.insert(key, location.clone());
        location
    }

    /// Files with locations that no symbol names.
    pub fn without_symbols(&self) -> impl Iterator<Item = &str> {
        self.without_symbols.iter().map(String::as_str)
    }
}

impl Module {
    fn open(path: &Path) -> Option<Module> {
        let cache = ReadCache::new(File::open(path).ok()?);
        let file = object::File::parse(&cache).ok()?;
        let segments = file
            .segments()
            .map(|segment| {
                let (file_start, bytes) = segment.file_range();
                Segment {
                    file_start,
                    file_end: file_start.saturating_add(bytes),
                    address: segment.address(),
                }
            })
            .collect();
        let build_id = file.build_id().ok().flatten();
        let separate = build_id.and_then(|id| separate_debug_file(path, id));
        let mut symbols = symbols_of(&file);
        if let Some(path) = &separate {
            symbols.extend(symbols_in(path).unwrap_or_default());
        }
        symbols.sort_by_key(|symbol| symbol.start);
        Some(Module {
            segments,
            symbols,
            dwarf: Loader::new(separate.as_deref().unwrap_or(path)).ok(),
        })
    }

    fn name(&self, location: &mut CodeLocation) {
        let Some(address) = self.address(location.offset.saturating_sub(1)) else {
            return;
        };
        if let Some(dwarf) = &self.dwarf
            && let Ok(mut frames) = dwarf.find_frames(address)
        {
            let (mut outermost, mut is_named) = (None, false);
            while let Ok(Some(frame)) = frames.next() {
                let name = frame
                    .function
                    .as_ref()
                    .and_then(|function| function.demangle().ok().map(|name| name.into_owned()));
                let file = frame.location.as_ref().and_then(|location| location.file);
                let is_own = file.is_some_and(|file| !is_wrapper(file));
                if outermost.is_none() || (is_own && !is_named) {
                    location.function.clone_from(&name);
                    location.file = file.map(str::to_owned);
                    location.line = frame.location.as_ref().and_then(|location| location.line);
                    is_named = is_own;
                }
                outermost = Some(name);
            }
            location.within = outermost
                .flatten()
                .filter(|name| Some(name) != location.function.as_ref());
        }
        if location.function.is_none() {
            location.function = self.symbol(address).map(demangled);
        }
    }

    /// The address a linker gave to an offset of the file.
    fn address(&self, offset: u64) -> Option<u64> {
        let inside = |segment: &&Segment| (segment.file_start..segment.file_end).contains(&offset);
        let segment = self.segments.iter().find(inside)?;
        Some(offset - segment.file_start + segment.address)
    }

    fn symbol(&self, address: u64) -> Option<&str> {
        let after = self
            .symbols
            .partition_point(|symbol| symbol.start <= address);
        // Aliases begin at one address; any of them that ends behind the address is right.
        self.symbols[..after]
            .iter()
            .rev()
            .take(8)
            .find(|symbol| address < symbol.end)
            .map(|symbol| symbol.name.as_str())
    }
}

/// Whether a source file only wraps system calls, so that a location in it is useless: Rust's
/// standard library and rustix. Where it is inlined, the function around it is shown.
fn is_wrapper(file: &str) -> bool {
    let library = "/lib/rustlib/src/rust/library/";
    file.starts_with("/rustc/") || file.contains(library) || file.contains("/rustix-")
}

fn symbols_of<'data>(file: &impl Object<'data>) -> Vec<Symbol> {
    file.symbols()
        .chain(file.dynamic_symbols())
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0)
        .filter_map(|symbol| {
            Some(Symbol {
                start: symbol.address(),
                end: symbol.address().saturating_add(symbol.size()),
                name: symbol.name().ok()?.to_owned(),
            })
        })
        .collect()
}

fn symbols_in(path: &Path) -> Option<Vec<Symbol>> {
    let cache = ReadCache::new(File::open(path).ok()?);
    let file = object::File::parse(&cache).ok()?;
    Some(symbols_of(&file))
}

/// The separate debug file: where distributions put it (gdb(1), "Debugging Information in Separate
/// Files"), or below the prefix that the program is installed in, as `make install` does.
fn separate_debug_file(program: &Path, build_id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = build_id.split_first()?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = format!("lib/debug/.build-id/{first:02x}/{rest}.debug");
    // The prefix of /usr/local/bin/program is /usr/local.
    let prefix = program.parent().and_then(Path::parent);
    [Some(Path::new("/usr")), prefix]
        .into_iter()
        .flatten()
        .map(|prefix| prefix.join(&name))
        .find(|path| path.exists())
}

fn demangled(name: &str) -> String {
    addr2line::demangle_auto(name.into(), None).into_owned()
}

#[cfg(test)]
mod tests {
    use super::{CallSites, is_wrapper, separate_debug_file};

    #[test]
    fn call_site_is_named_when_the_file_has_symbols() {
        let path = std::env::current_exe().expect("this test's own file");
        let path = path.to_str().expect("a path in UTF-8");
        let text = std::fs::read("/proc/self/maps").expect("own mappings");
        let address = call_site_is_named_when_the_file_has_symbols as fn() as usize as u64 + 16;
        let offset = offset_of(&String::from_utf8_lossy(&text), path, address);
        let mut locations = CallSites::default();
        let location = locations.find(path, offset.expect("code lies in the file"));
        let function = location.function.clone().unwrap_or_default();
        assert!(function.contains("call_site_is_named"), "{location:?}");
        assert!(
            location
                .file
                .is_some_and(|file| file.ends_with("call_sites.rs"))
        );
        assert_eq!(locations.without_symbols().count(), 0);
    }

    #[test]
    fn debug_file_is_found_below_the_prefix_of_the_program() {
        let prefix = tempfile::tempdir().expect("a directory");
        let program = prefix.path().join("bin/program");
        let id = [0xab, 0x01, 0xff];
        assert_eq!(separate_debug_file(&program, &id), None);
        let file = prefix.path().join("lib/debug/.build-id/ab/01ff.debug");
        std::fs::create_dir_all(file.parent().expect("a directory")).expect("it is made");
        std::fs::write(&file, "").expect("a file");
        assert_eq!(separate_debug_file(&program, &id), Some(file));
        assert_eq!(separate_debug_file(&program, &[]), None);
    }

    #[test]
    fn call_site_is_an_offset_when_the_file_is_unreadable() {
        let mut locations = CallSites::default();
        let location = locations.find("/nonexistent/program", 0x1234);
        assert_eq!(location.description(), "program+0x1234");
        assert_eq!(
            locations.without_symbols().collect::<Vec<_>>(),
            ["/nonexistent/program"]
        );
        assert_eq!(locations.find("", 0x99).description(), "0x99");
    }

    #[test]
    fn call_site_is_in_the_caller_when_a_system_call_wrapper_is_inlined() {
        assert!(is_wrapper(
            "/home/a/.cargo/registry/src/x/rustix-1.1.2/src/backend/linux_raw/arch/x86_64.rs"
        ));
        assert!(is_wrapper("/rustc/0123abc/library/std/src/os/fd/owned.rs"));
        assert!(!is_wrapper("/home/a/rustix/src/main.rs") && !is_wrapper("src/worker/flow.rs"));
    }

    fn offset_of(maps: &str, path: &str, address: u64) -> Option<u64> {
        maps.lines()
            .filter(|line| line.ends_with(path))
            .find_map(|line| {
                let mut fields = line.split_ascii_whitespace();
                let (start, end) = fields.next()?.split_once('-')?;
                let hexadecimal = |text| u64::from_str_radix(text, 16).ok();
                let (start, end) = (hexadecimal(start)?, hexadecimal(end)?);
                let offset = hexadecimal(fields.nth(1)?)?;
                (start..end)
                    .contains(&address)
                    .then(|| address - start + offset)
            })
    }
}
