//! A sheet: a page of tables and bars for results that are neither runs nor studies of the papers.
//!
//! A page of text, tables and groups of bars for results that are not run directories, in the form
//! of all our pages. It needs no script and no network. Nothing is measured or judged here; all
//! text is escaped here.

use std::fmt::Write;

use crate::GENERATOR_META;
use crate::chart::{Group, Groups, Size, colour};
use crate::figure::{Caption, Drawing, Table, framed};
use crate::html::escaped;
use crate::page::{POLICY, STYLE};

const OWN_STYLE: &str = include_str!("sheet.css");

/// A whole page.
#[derive(Clone, Debug, Default)]
pub struct Sheet {
    /// What made it, above the title: `Headway counters`.
    pub maker: String,
    /// The title.
    pub title: String,
    /// When, where, on what, in one line.
    pub about: String,
    /// What a reader must know before any figure.
    pub alarms: Vec<String>,
    /// The sections.
    pub sections: Vec<SheetSection>,
    /// At the end.
    pub footer: String,
}

/// A section of a sheet.
#[derive(Clone, Debug, Default)]
pub struct SheetSection {
    /// The anchor of the section: letters and hyphens.
    pub id: &'static str,
    /// The title of the section.
    pub title: String,
    /// What the section is about.
    pub lead: String,
    /// The parts of the section.
    pub parts: Vec<SheetPart>,
}

/// A part of a section.
#[derive(Clone, Debug)]
pub enum SheetPart {
    /// A paragraph.
    Text(String),
    /// A table.
    Table(SheetTable),
    /// Bars with their numbers.
    Bars(SheetBars),
}

/// A table under named columns.
#[derive(Clone, Debug, Default)]
pub struct SheetTable {
    /// Heading of the table.
    pub title: String,
    /// What to know, below the title.
    pub note: String,
    /// The columns' names; the first stands over the rows' names.
    pub head: Vec<String>,
    /// Cells; the first is the row's name. A cell of several words is set as text.
    pub rows: Vec<Vec<String>>,
}

/// Bars in groups.
#[derive(Clone, Debug)]
pub struct SheetBars {
    /// The end of the table's anchor: letters, digits and hyphens.
    pub id: String,
    /// What the bars show.
    pub title: String,
    /// What to know and how to read it.
    pub caption: Vec<String>,
    /// The figure of the papers that this one follows.
    pub source: String,
    /// The unit, above the bars.
    pub above: String,
    /// What the series are called.
    pub series: Vec<String>,
    /// Values stand on one another.
    pub stacked: bool,
    /// Name, values in the order of the series, and the dash of a stack.
    pub groups: Vec<(String, Vec<Option<f64>>, Option<f64>)>,
    /// A value as text.
    pub format: fn(f64) -> String,
}

/// The document.
///
/// ```
/// use headway_report::{Sheet, sheet};
/// let page = sheet(&Sheet { title: "Counts <1>".into(), ..Sheet::default() });
/// assert!(page.contains("<h1>Counts &lt;1&gt;</h1>"));
/// ```
pub fn sheet(of: &Sheet) -> String {
    let mut out = String::with_capacity(1 << 17);
    let (title, maker) = (escaped(&of.title), escaped(&of.maker));
    let _ = write!(
        out,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         {GENERATOR_META}<title>{title} – {maker}</title><style>{STYLE}{OWN_STYLE}</style></head>\
         <body><main><header><p class=\"eyebrow\">{maker}</p><h1>{title}</h1><p class=\"about\">{}</p>",
        escaped(&of.about)
    );
    for alarm in &of.alarms {
        let _ = write!(
            out,
            "<p class=\"alarm suspect\" role=\"alert\">{}</p>",
            escaped(alarm)
        );
    }
    out.push_str("<nav aria-label=\"Contents\">");
    for section in &of.sections {
        let _ = write!(
            out,
            "<a href=\"#{}\">{}</a>",
            section.id,
            escaped(&section.title)
        );
    }
    out.push_str("</nav></header>");
    of.sections
        .iter()
        .for_each(|section| one(&mut out, section));
    let _ = writeln!(
        out,
        "<footer>{}</footer></main></body></html>",
        escaped(&of.footer)
    );
    out
}

fn one(out: &mut String, section: &SheetSection) {
    let _ = write!(
        out,
        "<section id=\"{}\"><h2>{}</h2>",
        section.id,
        escaped(&section.title)
    );
    if !section.lead.is_empty() {
        let _ = write!(out, "<p>{}</p>", escaped(&section.lead));
    }
    for part in &section.parts {
        match part {
            SheetPart::Text(text) => drop(write!(out, "<p>{}</p>", escaped(text))),
            SheetPart::Table(table) => tabled(out, table),
            SheetPart::Bars(bars) => out.push_str(&drawn(bars)),
        }
    }
    out.push_str("</section>");
}

fn tabled(out: &mut String, of: &SheetTable) {
    let _ = write!(out, "<div class=\"tabled\"><h3>{}</h3>", escaped(&of.title));
    if !of.note.is_empty() {
        let _ = write!(out, "<p>{}</p>", escaped(&of.note));
    }
    let table = Table {
        head: of.head.iter().map(|cell| escaped(cell)).collect(),
        rows: of
            .rows
            .iter()
            .map(|row| row.iter().map(|cell| escaped(cell)).collect())
            .collect(),
    };
    // Reasons are sentences, which must be allowed to break.
    let html = table.html(&of.title);
    let mut rest = html.as_str();
    while let Some((before, after)) = rest.split_once("<td>") {
        let (cell, after) = after.split_once("</td>").unwrap_or((after, ""));
        let class = if cell.split(' ').count() > 3 {
            " class=\"words\""
        } else {
            ""
        };
        let _ = write!(out, "{before}<td{class}>{cell}</td>");
        rest = after;
    }
    out.push_str(rest);
    out.push_str("</div>");
}

fn drawn(of: &SheetBars) -> String {
    let groups: Vec<Group> = of
        .groups
        .iter()
        .map(|(name, values, dash)| Group {
            name: name.clone(),
            values: values.clone(),
            dash: *dash,
        })
        .collect();
    let description = format!("{} for {}", of.series.join(", "), names(&groups));
    let draw = |size: Size, class: &str| {
        Groups {
            size,
            title: &of.title,
            description: &description,
            above: &of.above,
            series: &of.series,
            stacked: of.stacked,
            groups: &groups,
            format: of.format,
        }
        .svg(class)
    };
    let drawing = Drawing::One(
        legend(of),
        [draw(Size::WIDE, "wide"), draw(Size::NARROW, "narrow")],
    );
    let mut head = vec![""];
    head.extend(of.series.iter().map(String::as_str));
    let has_dash = groups.iter().any(|group| group.dash.is_some());
    if has_dash {
        head.push("measured");
    }
    let mut numbers = Table::new(&head);
    let cell = |value: &Option<f64>| {
        value.map_or_else(
            || crate::units::NONE.to_owned(),
            |value| escaped(&(of.format)(value)),
        )
    };
    for group in &groups {
        let mut row = vec![escaped(&group.name)];
        row.extend(group.values.iter().map(cell));
        if has_dash {
            row.push(cell(&group.dash));
        }
        numbers.rows.push(row);
    }
    let caption = Caption {
        id: &of.id,
        title: &of.title,
        paragraphs: &of.caption,
        source: &of.source,
    };
    framed(&caption, &drawing, Some(&numbers))
}

fn names(groups: &[Group]) -> String {
    let names: Vec<&str> = groups.iter().map(|group| group.name.as_str()).collect();
    names.join(", ")
}

fn legend(of: &SheetBars) -> String {
    let items = of.series.iter().enumerate().map(|(series, name)| {
        format!(
            "<li><svg class=\"swatch {}\" viewBox=\"0 0 16 14\" aria-hidden=\"true\"><rect width=\"16\" height=\"14\"/></svg><span>{}</span></li>",
            colour(series, of.stacked),
            escaped(name)
        )
    });
    format!("<ul class=\"legend\">{}</ul>", items.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sheet_escapes_text_and_allows_line_breaks() {
        let table = SheetTable {
            title: "T <x>".into(),
            head: vec!["a".into(), "b".into()],
            rows: vec![
                vec!["r & s".into(), "12".into()],
                vec!["why".into(), "no <counter> counts it here".into()],
            ],
            ..SheetTable::default()
        };
        let bars = SheetBars {
            id: "x".into(),
            title: "Bars".into(),
            caption: vec!["How <to> read".into()],
            source: "Figure 4.1".into(),
            above: "Mb/s".into(),
            series: vec!["1T-SMP".into(), "2P".into()],
            stacked: false,
            groups: vec![("nginx".into(), vec![Some(1000.0), None], None)],
            format: |value| format!("{value:.0}"),
        };
        let page = sheet(&Sheet {
            maker: "Headway counters".into(),
            title: "T".into(),
            alarms: vec!["no <counters>".into()],
            sections: vec![SheetSection {
                id: "s",
                title: "S".into(),
                parts: vec![
                    SheetPart::Table(table),
                    SheetPart::Bars(bars),
                    SheetPart::Text("p < q".into()),
                ],
                ..SheetSection::default()
            }],
            ..Sheet::default()
        });
        assert!(page.contains(GENERATOR_META) && page.contains("<td>12</td>"));
        assert!(
            page.contains("<td class=\"words\">no &lt;counter&gt; counts it here</td>"),
            "{page}"
        );
        assert!(page.contains("no &lt;counters&gt;") && !page.contains("<counter"));
        assert!(page.contains("id=\"figure-x\"") && page.contains("nginx, 1T-SMP: 1000"));
        assert!(
            page.contains(&format!("<td>{}</td>", crate::units::NONE)),
            "a gap is shown as one"
        );
    }
}
