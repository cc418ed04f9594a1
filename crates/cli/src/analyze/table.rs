//! Headings and signed differences.

use headway_latency::format::time_us;

/// How text is set off.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Headings are bold.
    pub bold: bool,
}

impl Style {
    /// A heading on a line of its own.
    pub fn heading(self, text: &str) -> String {
        if self.bold {
            format!("\n\u{1b}[1m{text}\u{1b}[0m\n")
        } else {
            format!("\n{text}\n")
        }
    }
}

/// A difference of two times, with its sign.
pub fn signed_time(us: f64) -> String {
    match us > 0.0 {
        true => format!("+{}", time_us(us)),
        false => time_us(us),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_has_its_sign_when_it_is_positive_or_negative() {
        assert_eq!(
            [5.0, -5.0].map(signed_time),
            ["+5.00 µs", "-5.00 µs"].map(str::to_owned)
        );
    }
}
