//! The colours of runs: enough contrast with the paper, and distinguishable with any kind of colour
//! blindness.
//!
//! Simulations after G. Machado, M. Oliveira, L. Fernandes, *A Physiologically-based Model for
//! Simulation of Color Vision Deficiency*, 2009 (severity 1); distances in Oklab (B. Ottosson,
//! 2020); contrast as WCAG 2 defines it.

type Colour = [f64; 3];

const STYLE: &str = include_str!("../src/page.css");

const NORMAL: [Colour; 3] = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]];
const NO_RED: [Colour; 3] = [
    [0.152286, 1.052583, -0.204868],
    [0.114503, 0.786281, 0.099216],
    [-0.003882, -0.048116, 1.051998],
];
const NO_GREEN: [Colour; 3] = [
    [0.367322, 0.860646, -0.227968],
    [0.280085, 0.672501, 0.047413],
    [-0.011820, 0.042940, 0.968881],
];
const NO_BLUE: [Colour; 3] = [
    [1.255528, -0.076749, -0.178779],
    [-0.078411, 0.930809, 0.147602],
    [0.004733, 0.691367, 0.303900],
];

/// The three blocks of colours: light, dark, print.
fn themes() -> Vec<&'static str> {
    let blocks: Vec<&str> = STYLE.split("color-scheme: light").skip(1).collect();
    let dark = STYLE
        .split("prefers-color-scheme: dark) { :root {")
        .nth(1)
        .expect("a dark theme");
    assert_eq!(blocks.len(), 2, "a theme for light and one for print");
    vec![blocks[0], dark, blocks[1]]
}

/// A variable's colour in linear light.
fn colour(theme: &str, name: &str) -> Colour {
    let text = theme
        .split(&format!("--{name}: #"))
        .nth(1)
        .unwrap_or_else(|| panic!("--{name} is not there"));
    let hex: String = text.chars().take_while(char::is_ascii_hexdigit).collect();
    let hex = if hex.len() == 3 {
        hex.chars().flat_map(|c| [c, c]).collect()
    } else {
        hex
    };
    std::array::from_fn(|index| {
        let part = u8::from_str_radix(&hex[index * 2..index * 2 + 2], 16).expect("two digits");
        let part = f64::from(part) / 255.0;
        if part <= 0.04045 {
            part / 12.92
        } else {
            ((part + 0.055) / 1.055).powf(2.4)
        }
    })
}

fn seen(matrix: &[Colour; 3], colour: Colour) -> Colour {
    matrix.map(|row| {
        row.iter()
            .zip(colour)
            .map(|(a, b)| a * b)
            .sum::<f64>()
            .clamp(0.0, 1.0)
    })
}

fn oklab([r, g, b]: Colour) -> Colour {
    let l = (0.412_221_470_8 * r + 0.536_332_536_3 * g + 0.051_445_992_9 * b).cbrt();
    let m = (0.211_903_498_2 * r + 0.680_699_545_1 * g + 0.107_396_956_6 * b).cbrt();
    let s = (0.088_302_461_9 * r + 0.281_718_837_6 * g + 0.629_978_700_5 * b).cbrt();
    [
        0.210_454_255_3 * l + 0.793_617_785_0 * m - 0.004_072_046_8 * s,
        1.977_998_495_1 * l - 2.428_592_205_0 * m + 0.450_593_709_9 * s,
        0.025_904_037_1 * l + 0.782_771_766_2 * m - 0.808_675_766_0 * s,
    ]
}

fn distance(left: Colour, right: Colour) -> f64 {
    let (left, right) = (oklab(left), oklab(right));
    let squares = left.iter().zip(right).map(|(a, b)| (a - b).powi(2));
    squares.sum::<f64>().sqrt() * 100.0
}

fn contrast(left: Colour, right: Colour) -> f64 {
    let luminance = |[r, g, b]: Colour| 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
    let (left, right) = (luminance(left), luminance(right));
    left.max(right) / left.min(right)
}

#[test]
fn run_colours_differ_for_colour_blind_readers() {
    for (theme, which) in themes().into_iter().zip(["light", "dark", "print"]) {
        for (first, second) in (0..6).flat_map(|a| (a + 1..6).map(move |b| (a, b))) {
            // The first three are what most reports have; the others also differ by dash and shape.
            let least = if second < 3 { 9.0 } else { 6.5 };
            for (eyes, matrix) in [
                ("normal", NORMAL),
                ("no red", NO_RED),
                ("no green", NO_GREEN),
                ("no blue", NO_BLUE),
            ] {
                let of = |index: usize| seen(&matrix, colour(theme, &format!("c{index}")));
                let apart = distance(of(first), of(second));
                assert!(
                    apart >= least,
                    "{which}, {eyes}: c{first} and c{second} are {apart:.1} apart"
                );
            }
        }
    }
}

#[test]
fn text_and_lines_have_enough_contrast_on_the_page() {
    for theme in themes() {
        let paper = colour(theme, "paper");
        for name in [
            "ink", "soft", "good", "warn", "bad", "c0", "c1", "c2", "c3", "c4", "c5",
        ] {
            let found = contrast(colour(theme, name), paper);
            assert!(found >= 4.5, "{name}: {found:.2}");
        }
        for (word, wash) in [
            ("warn", "warn-wash"),
            ("bad", "bad-wash"),
            ("ink", "warn-wash"),
            ("ink", "bad-wash"),
        ] {
            let found = contrast(colour(theme, word), colour(theme, wash));
            assert!(found >= 4.5, "{word} on {wash}: {found:.2}");
        }
    }
}

#[test]
fn size_series_and_loads_keep_their_order_when_only_brightness_is_seen() {
    for theme in themes() {
        for (letter, count) in [("q", 4), ("l", 7)] {
            let bright: Vec<f64> = (0..count)
                .map(|index| oklab(colour(theme, &format!("{letter}{index}")))[0])
                .collect();
            let ascending = bright.is_sorted();
            let descending = bright.iter().rev().is_sorted();
            assert!(ascending || descending, "{letter}: {bright:?}");
        }
    }
}
