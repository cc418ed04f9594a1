//! Text on its way into a page: everything that did not come from this crate passes through here.
//!
//! Labels, commands and `Server` headers come from outside and may be hostile. Nothing here builds
//! elements; the sections write those themselves and call [`escaped`] for every text from outside.

pub use headway_base::html::escaped;

/// Up to `most` characters, with an ellipsis at the end if something was left out.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.into();
    }
    let kept: String = text.chars().take(most.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_name_ends_in_an_ellipsis() {
        assert_eq!(shortened("nginx 1.22", 10), "nginx 1.22");
        assert_eq!(shortened("nginx 1.22.1", 10), "nginx 1.2…");
        assert_eq!(shortened("ab cd ef", 4), "ab…");
    }
}
