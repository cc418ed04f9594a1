//! Certificates that are not valid now. After a mistake in a renewal, such a certificate must not replace a valid one.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use headway_config::TlsIdentity;
use headway_http::date;
use headway_tls::Certified;

/// When a certificate is valid.
pub(super) struct Validity {
    file: PathBuf,
    names: Vec<String>,
    from_s: i64,
    until_s: i64,
}

impl Validity {
    /// `None` if the certificate cannot be parsed. Then only clients can check it.
    pub(super) fn of(files: &TlsIdentity, certified: &Certified) -> Option<Validity> {
        let facts = certified.facts()?;
        Some(Validity {
            file: files.certificate.clone(),
            names: certified.names.clone(),
            from_s: facts.not_before_s,
            until_s: facts.not_after_s,
        })
    }

    /// The first name, or the file if there is none, and when the certificate expires.
    pub(super) fn expiry_s(&self) -> (String, u64) {
        let name = self.names.first().cloned();
        let name = name.unwrap_or_else(|| self.file.display().to_string());
        (name, self.until_s.max(0) as u64)
    }

    fn is_now(&self, now_s: i64) -> bool {
        (self.from_s..=self.until_s).contains(&now_s)
    }

    /// Whether this one can be used instead of another one.
    fn stands_in_for(&self, other: &Validity) -> bool {
        self.file == other.file || other.names.iter().all(|name| self.names.contains(name))
    }

    /// Why the certificate is not valid now, if it is not.
    fn fault(&self, now_s: i64) -> Option<String> {
        let file = self.file.display();
        match now_s {
            _ if self.is_now(now_s) => None,
            _ if now_s < self.from_s => {
                let from = text(self.from_s);
                Some(format!("tls-certificate {file} is valid only from {from}"))
            }
            _ => {
                let until = text(self.until_s);
                Some(format!("tls-certificate {file} has expired on {until}"))
            }
        }
    }
}

/// Returns a message for each certificate that is not valid now.
///
/// # Errors
/// If one of them would replace a valid one.
pub(super) fn check(new: &[Validity], before: &[Validity]) -> Result<Vec<String>, String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    check_at(new, before, now.map_or(0, |now| now.as_secs() as i64))
}

fn check_at(new: &[Validity], before: &[Validity], now_s: i64) -> Result<Vec<String>, String> {
    let mut faults = Vec::new();
    for one in new {
        let Some(fault) = one.fault(now_s) else {
            continue;
        };
        let is_better = |other: &&Validity| other.is_now(now_s) && other.stands_in_for(one);
        if let Some(better) = before.iter().find(is_better) {
            let until = text(better.until_s);
            return Err(format!("{fault}; the one in use is valid until {until}"));
        }
        faults.push(fault);
    }
    Ok(faults)
}

fn text(time_s: i64) -> String {
    String::from_utf8_lossy(&date::format(time_s)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(file: &str, name: &str, from_s: i64, until_s: i64) -> Validity {
        Validity {
            file: file.into(),
            names: vec![name.to_owned()],
            from_s,
            until_s,
        }
    }

    #[test]
    fn invalid_certificate_does_not_replace_a_valid_one() {
        let valid = || one("/a", "a", 0, 200);
        let expired = one("/a", "a", 0, 99);
        let error = check_at(&[expired], &[valid()], 100).unwrap_err();
        let expected = "tls-certificate /a has expired on Thu, 01 Jan 1970 00:01:39 GMT; the one in use is \
             valid until Thu, 01 Jan 1970 00:03:20 GMT";
        assert_eq!(error, expected);
        let early = || one("/b", "a", 101, 200);
        let error = check_at(&[early()], &[valid()], 100).unwrap_err();
        assert!(error.contains("/b is valid only from "), "{error}");
        // The one in use is not valid either.
        for before in [
            vec![],
            vec![one("/b", "a", 0, 99)],
            vec![one("/a", "other", 0, 200)],
        ] {
            let faults = check_at(&[early()], &before, 100).unwrap();
            assert_eq!(faults.len(), 1, "{faults:?}");
        }
        assert_eq!(check_at(&[valid()], &[valid()], 100), Ok(Vec::new()));
    }
}
