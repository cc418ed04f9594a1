//! Where the preload library is.

use std::path::{Path, PathBuf};

/// Its file name.
const NAME: &str = "libdebox_preload.so";

/// Why the library was not found.
#[derive(Debug, thiserror::Error)]
pub enum NoLibrary {
    /// The variable names no file.
    #[error("HEADWAY_PRELOAD={0}: no such file; unset it, or let it name libdebox_preload.so")]
    Variable(PathBuf),
    /// It is nowhere.
    #[error(
        "libdebox_preload.so was not found in {0}; `make install` installs it, `cargo build -p headway-debox-preload` \
         builds it, HEADWAY_PRELOAD names it elsewhere"
    )]
    Nowhere(String),
    /// The loader splits LD_PRELOAD at spaces and colons, and knows no way around it.
    #[error(
        "{0}: a path with a space or a colon cannot be preloaded; copy the library elsewhere and set HEADWAY_PRELOAD"
    )]
    Unspeakable(PathBuf),
}

/// The library's path: `HEADWAY_PRELOAD`, else next to this program (a build), else
/// `../lib/headway` or `../lib` (an installation).
///
/// # Errors
///
/// See [`NoLibrary`].
pub fn library() -> Result<PathBuf, NoLibrary> {
    let program = std::env::current_exe().unwrap_or_default();
    let named = std::env::var_os("HEADWAY_PRELOAD").map(PathBuf::from);
    find(named.as_deref(), &program)
}

fn find(named: Option<&Path>, program: &Path) -> Result<PathBuf, NoLibrary> {
    if let Some(path) = named {
        let there = std::path::absolute(path).ok().filter(|path| path.is_file());
        return speakable(there.ok_or_else(|| NoLibrary::Variable(path.to_owned()))?);
    }
    let folder = program.parent().unwrap_or(Path::new("/"));
    let locations = [
        folder.to_owned(),
        folder.join("../lib/headway"),
        folder.join("../lib"),
    ];
    let found = locations
        .iter()
        .map(|location| location.join(NAME))
        .find(|path| path.is_file());
    let path = found.ok_or_else(|| {
        let locations: Vec<String> = locations
            .iter()
            .map(|location| location.display().to_string())
            .collect();
        NoLibrary::Nowhere(locations.join(" or "))
    })?;
    speakable(path.canonicalize().unwrap_or(path))
}

fn speakable(path: PathBuf) -> Result<PathBuf, NoLibrary> {
    let bytes = path.as_os_str().as_encoded_bytes();
    if bytes.iter().any(|byte| matches!(byte, b' ' | b':')) {
        return Err(NoLibrary::Unspeakable(path));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{NAME, NoLibrary, find};

    #[test]
    fn library_is_found_beside_the_program_before_the_installed_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let (bin, lib) = (folder.path().join("bin"), folder.path().join("lib/headway"));
        std::fs::create_dir_all(&bin).expect("a folder");
        std::fs::create_dir_all(&lib).expect("a folder");
        let program = bin.join("headway");
        assert!(matches!(find(None, &program), Err(NoLibrary::Nowhere(_))));
        std::fs::write(lib.join(NAME), "").expect("a file");
        let installed = find(None, &program).expect("installed");
        assert_eq!(installed, lib.join(NAME).canonicalize().expect("a path"));
        std::fs::write(bin.join(NAME), "").expect("a file");
        let built = find(None, &program).expect("built");
        assert_eq!(built, bin.join(NAME).canonicalize().expect("a path"));
    }

    #[test]
    fn message_names_the_variable_when_it_leads_nowhere() {
        let error = find(
            Some(Path::new("/nonexistent/lib.so")),
            Path::new("/bin/headway"),
        );
        let text = error.expect_err("no file").to_string();
        assert!(
            text.contains("HEADWAY_PRELOAD=/nonexistent/lib.so"),
            "{text}"
        );
    }
}
