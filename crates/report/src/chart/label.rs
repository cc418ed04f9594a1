//! Text in a chart: how wide it is, and how labels get out of one another's way.
//!
//! SVG cannot measure text without a browser, so widths are estimated, on the wide side: a label
//! with some air beside it is better than one cut off where the reader's font is broad.

/// Size of all text in charts, in the chart's own units.
pub const FONT: f64 = 12.0;
/// Distance between the lines of neighbouring labels.
pub const LINE: f64 = 14.5;

/// The estimated width of a text in [`FONT`] size, after the widest of the common interface fonts.
pub fn width(text: &str) -> f64 {
    text.chars().map(|c| em(c) * FONT).sum()
}

fn em(character: char) -> f64 {
    match character {
        'i' | 'j' | 'l' | '\'' | '|' | '.' | ',' | ':' | ';' | '!' | 'I' => 0.34,
        'f' | 't' | 'r' | '(' | ')' | '[' | ']' | '/' | ' ' | '-' => 0.42,
        '\u{202f}' | '\u{2009}' => 0.22,
        'm' | 'w' | 'M' | 'W' | '%' | '@' | '…' | '—' => 1.0,
        'A'..='Z' | '+' | '<' | '>' | '=' | '≤' | '×' | '±' | '~' => 0.78,
        c if c.is_ascii() => 0.64,
        'µ' | 'à'..='ÿ' | '–' | '·' => 0.66,
        // Everything else may be as wide as an ideograph.
        _ => 1.0,
    }
}

/// Moves positions apart until neighbours are `distance` apart, all within `low..=high`, as near to
/// where they were as one pass down and one pass up can do. Their order stays.
pub fn spread(wanted: &[f64], distance: f64, low: f64, high: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|&a, &b| wanted[a].total_cmp(&wanted[b]));
    let mut placed: Vec<f64> = order
        .iter()
        .map(|&index| wanted[index].clamp(low, high))
        .collect();
    // Clusters of labels that touch share their displacement, hence settle around their common
    // middle.
    let mut clusters: Vec<(f64, usize)> = Vec::new();
    for &position in &placed {
        let mut cluster = (position, 1usize);
        while let Some(&(middle, count)) = clusters.last() {
            let reach = distance * (count + cluster.1) as f64 / 2.0;
            if cluster.0 - middle >= reach {
                break;
            }
            clusters.pop();
            let total = count + cluster.1;
            let sum = middle * count as f64 + cluster.0 * cluster.1 as f64;
            cluster = (sum / total as f64, total);
            let half = distance * (total - 1) as f64 / 2.0;
            cluster.0 = cluster.0.min(high - half).max(low + half);
        }
        clusters.push(cluster);
    }
    let mut next = 0;
    for (middle, count) in clusters {
        let first = middle - distance * (count as f64 - 1.0) / 2.0;
        for offset in 0..count {
            placed[next] = first + distance * offset as f64;
            next += 1;
        }
    }
    let mut out = vec![0.0; wanted.len()];
    for (position, index) in placed.into_iter().zip(order) {
        out[index] = position;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_do_not_overlap_when_their_lines_end_together() {
        let placed = spread(&[50.0, 50.0, 52.0, 100.0], 10.0, 0.0, 200.0);
        for (index, first) in placed.iter().enumerate() {
            for second in &placed[index + 1..] {
                assert!((first - second).abs() >= 10.0 - 1e-9, "{placed:?}");
            }
        }
        assert_eq!(placed[3], 100.0);
        assert!(placed[0] < placed[1] && placed[1] < placed[2]);
    }

    #[test]
    fn labels_stay_inside_when_their_lines_end_at_the_border() {
        let placed = spread(&[0.0, 0.0, 100.0, 100.0], 10.0, 0.0, 100.0);
        assert_eq!(placed, [0.0, 10.0, 90.0, 100.0]);
    }

    #[test]
    fn single_label_is_not_moved() {
        assert_eq!(spread(&[7.0], 10.0, 0.0, 100.0), [7.0]);
        assert!(spread(&[], 10.0, 0.0, 100.0).is_empty());
    }
}
