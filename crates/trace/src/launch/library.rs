//! Where the preload library is.

use std::path::{Path, PathBuf};

/// File name of the library.
const FILE_NAME: &str = "libdebox_preload.so";

/// Why the library was not found.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// The variable names no file.
    #[error("HEADWAY_PRELOAD={0}: no such file; unset it, or let it name libdebox_preload.so")]
    Variable(PathBuf),
    /// The library is in none of the places.
    #[error(
        "libdebox_preload.so was not found in {0}; `make install` installs it, `cargo build -p headway-debox-preload` \
         builds it, HEADWAY_PRELOAD names it elsewhere"
    )]
    Nowhere(String),
    /// The loader splits LD_PRELOAD at spaces and colons, and knows no way around it.
    #[error(
        "{0}: a path with a space or a colon cannot be preloaded; copy the library elsewhere and set HEADWAY_PRELOAD"
    )]
    Separator(PathBuf),
}

/// The library's path: `HEADWAY_PRELOAD`, else next to this program (a build), else
/// `../lib/headway` or `../lib` (an installation).
///
/// # Errors
///
/// See [`LibraryError`].
pub fn library() -> Result<PathBuf, LibraryError> {
    let program = std::env::current_exe().unwrap_or_default();
    let named = std::env::var_os("HEADWAY_PRELOAD").map(PathBuf::from);
    find(named.as_deref(), &program)
}

fn find(named: Option<&Path>, program: &Path) -> Result<PathBuf, LibraryError> {
    if let Some(path) = named {
        let there = std::path::absolute(path).ok().filter(|path| path.is_file());
        return check_separators(there.ok_or_else(|| LibraryError::Variable(path.to_owned()))?);
    }
    let folder = program.parent().unwrap_or(Path::new("/"));
    let locations = [
        folder.to_owned(),
        folder.join("../lib/headway"),
        folder.join("../lib"),
    ];
    let found = locations
        .iter()
        .map(|location| location.join(FILE_NAME))
        .find(|path| path.is_file());
    let path = found.ok_or_else(|| {
        let locations: Vec<String> = locations
            .iter()
            .map(|location| location.display().to_string())
            .collect();
        LibraryError::Nowhere(locations.join(" or "))
    })?;
    check_separators(path.canonicalize().unwrap_or(path))
}

fn check_separators(path: PathBuf) -> Result<PathBuf, LibraryError> {
    let bytes = path.as_os_str().as_encoded_bytes();
    if bytes.iter().any(|byte| matches!(byte, b' ' | b':')) {
        return Err(LibraryError::Separator(path));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{FILE_NAME, LibraryError, find};

    #[test]
    fn library_is_found_beside_the_program_before_the_installed_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let (bin, lib) = (folder.path().join("bin"), folder.path().join("lib/headway"));
        std::fs::create_dir_all(&bin).expect("a folder");
        std::fs::create_dir_all(&lib).expect("a folder");
        let program = bin.join("headway");
        assert!(matches!(
            find(None, &program),
            Err(LibraryError::Nowhere(_))
        ));
        std::fs::write(lib.join(FILE_NAME), "").expect("a file");
        let installed = find(None, &program).expect("installed");
        assert_eq!(
            installed,
            lib.join(FILE_NAME).canonicalize().expect("a path")
        );
        std::fs::write(bin.join(FILE_NAME), "").expect("a file");
        let built = find(None, &program).expect("built");
        assert_eq!(built, bin.join(FILE_NAME).canonicalize().expect("a path"));
    }

    #[test]
    fn error_names_the_variable_when_its_file_is_missing() {
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
