//! Reasons that many figures share, said once.
//!
//! A reason has the form `PLACE: text`, such as `disk, nginx, 80%: 3.1 % of the requests started
//! late`. Ten servers may have ten reasons that differ only in their figures. They are joined into
//! one, with the range of the figures and the number of places; a single place is named.

/// Reasons in the order in which the first of each kind came.
#[derive(Clone, Debug, Default)]
pub struct Reasons {
    kinds: Vec<ReasonKind>,
}

#[derive(Clone, Debug)]
struct ReasonKind {
    reasons: Vec<String>,
    parts: Vec<ReasonPart>,
}

/// A piece of the words, or a figure as it was written: smallest and largest so far.
#[derive(Clone, Debug)]
enum ReasonPart {
    Text(String),
    Figure(String, String),
}

impl<R: AsRef<str>> FromIterator<R> for Reasons {
    fn from_iter<I: IntoIterator<Item = R>>(all: I) -> Reasons {
        let mut reasons = Reasons::default();
        for one in all {
            reasons.add(one.as_ref());
        }
        reasons
    }
}

impl Reasons {
    /// Adds a reason and returns the number of its kind, from 0. Equal ones count once.
    pub fn add(&mut self, reason: &str) -> usize {
        let parts = parts(without_subject(reason));
        let known = self
            .kinds
            .iter()
            .position(|kind| alike(&kind.parts, &parts));
        let at = known.unwrap_or_else(|| {
            self.kinds.push(ReasonKind {
                reasons: Vec::new(),
                parts: parts.clone(),
            });
            self.kinds.len() - 1
        });
        let kind = &mut self.kinds[at];
        if !kind.reasons.iter().any(|known| known == reason) {
            kind.reasons.push(reason.to_owned());
            kind.parts.iter_mut().zip(parts).for_each(widen);
        }
        at
    }

    /// One sentence a kind, in the order of [`Reasons::add`]'s numbers.
    ///
    /// ```
    /// use headway_latency::study::reasons::Reasons;
    ///
    /// let mut reasons = Reasons::default();
    /// reasons.add("disk, nginx, 80%: 3.1 % late");
    /// reasons.add("disk, h2o, 80%: 12 % late");
    /// reasons.add("disk, h2o: no package");
    /// assert_eq!(reasons.sentences(), ["2 figures: 3.1 to 12 % late", "disk, h2o: no package"]);
    /// ```
    pub fn sentences(&self) -> Vec<String> {
        self.kinds.iter().map(ReasonKind::sentence).collect()
    }
}

impl ReasonKind {
    fn sentence(&self) -> String {
        if let [only] = self.reasons.as_slice() {
            return only.clone();
        }
        let sentence: String = self.parts.iter().map(ReasonPart::shown).collect();
        format!("{} figures: {sentence}", self.reasons.len())
    }
}

impl ReasonPart {
    fn shown(&self) -> String {
        match self {
            ReasonPart::Text(text) => text.clone(),
            ReasonPart::Figure(least, most) if least == most => least.clone(),
            ReasonPart::Figure(least, most) => format!("{least} to {most}"),
        }
    }
}

/// A reason without what it is about, which is before the colon.
fn without_subject(reason: &str) -> &str {
    reason.split_once(": ").map_or(reason, |(_, rest)| rest)
}

/// Figures are digits with points and commas between them; a point or comma that ends them belongs
/// to the words.
fn parts(reason: &str) -> Vec<ReasonPart> {
    let mut parts = Vec::new();
    let mut rest = reason;
    while !rest.is_empty() {
        let begin = rest.find(|c: char| c.is_ascii_digit());
        let (before, from) = rest.split_at(begin.unwrap_or(rest.len()));
        if !before.is_empty() {
            parts.push(ReasonPart::Text(before.to_owned()));
        }
        let end = from.find(|c: char| !c.is_ascii_digit() && !".,".contains(c));
        let figure = from[..end.unwrap_or(from.len())].trim_end_matches(['.', ',']);
        if !figure.is_empty() {
            parts.push(ReasonPart::Figure(figure.to_owned(), figure.to_owned()));
        }
        rest = &from[figure.len()..];
    }
    parts
}

fn alike(one: &[ReasonPart], other: &[ReasonPart]) -> bool {
    one.len() == other.len()
        && one.iter().zip(other).all(|pair| match pair {
            (ReasonPart::Text(one), ReasonPart::Text(other)) => one == other,
            (ReasonPart::Figure(..), ReasonPart::Figure(..)) => true,
            _ => false,
        })
}

fn widen((kept, new): (&mut ReasonPart, ReasonPart)) {
    if let (ReasonPart::Figure(least, most), ReasonPart::Figure(figure, _)) = (kept, new) {
        if value(&figure) < value(least) {
            *least = figure;
        } else if value(&figure) > value(most) {
            *most = figure;
        }
    }
}

fn value(figure: &str) -> f64 {
    figure.replace(',', "").parse().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(all: &[&str]) -> Vec<String> {
        all.iter().collect::<Reasons>().sentences()
    }

    #[test]
    fn reasons_are_joined_when_only_place_and_figures_differ() {
        let late = |who: &str, ms: &str| {
            format!("disk, {who}, 80% of best-peer: p99 of actual minus intended start is {ms} ms")
        };
        let all = [
            late("a", "2.5"),
            late("b", "10"),
            late("c", "1,203.5"),
            late("d", "9.1"),
        ];
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        assert_eq!(
            gathered(&all),
            ["4 figures: p99 of actual minus intended start is 2.5 to 1,203.5 ms"]
        );
    }

    #[test]
    fn reasons_keep_their_order_when_no_other_is_alike() {
        assert_eq!(
            gathered(&[
                "a: no package",
                "b: took 3 s, then 4.",
                "c: took 3 s",
                "no place"
            ]),
            [
                "a: no package",
                "b: took 3 s, then 4.",
                "c: took 3 s",
                "no place"
            ]
        );
    }

    #[test]
    fn reason_counts_once_when_it_is_given_twice() {
        let mut reasons = Reasons::default();
        assert_eq!(reasons.add("a: 1 s"), 0);
        assert_eq!(reasons.add("b"), 1);
        assert_eq!(reasons.add("a: 1 s"), 0);
        assert_eq!(reasons.sentences(), ["a: 1 s", "b"]);
        assert_eq!(reasons.add("c: 0.5 s"), 0);
        assert_eq!(reasons.sentences(), ["2 figures: 0.5 to 1 s", "b"]);
    }
}
