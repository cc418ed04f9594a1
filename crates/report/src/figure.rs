//! The parts a page is made of: figures with captions, tables, legends.
//!
//! Everything here returns finished elements and expects finished elements; words of others go
//! through [`escaped`] before they come here, unless a parameter says that it is plain text.

use std::fmt::Write;

use crate::chart::{Chart, LineStyle, Size, shape};
use crate::html::escaped;

/// A drawing with its caption.
pub(crate) struct Figure {
    /// The end of its anchor's name: `figure-…`.
    pub id: &'static str,
    /// What the drawing shows, plain text.
    pub title: String,
    /// What to know and how to read it, one paragraph each, plain text.
    pub caption: Vec<String>,
    /// The figure of the papers that this one follows, plain text.
    pub source: &'static str,
    /// The drawing.
    pub drawing: Drawing,
    /// The numbers of the figure, as an element.
    pub numbers: Option<Table>,
}

/// One large drawing, or several smaller ones of one form.
pub(crate) enum Drawing {
    /// A legend (may be empty) and a drawing made for two widths.
    One(String, [String; 2]),
    /// A legend (may be empty) and panels.
    Panels(String, Vec<Panel>),
}

/// One of several drawings of the same form.
pub(crate) struct Panel {
    /// The heading of the panel, as the content of an element.
    pub heading: String,
    /// The drawings of the panel, for a narrow column.
    pub drawing: String,
}

impl Drawing {
    /// A chart drawn for both widths.
    pub fn one(legend: String, draw: impl Fn(Size) -> Chart) -> Drawing {
        let (wide, narrow) = (draw(Size::WIDE), draw(Size::NARROW));
        Drawing::One(legend, [wide.svg("wide"), narrow.svg("narrow")])
    }

    /// One panel for each item, or one large drawing when there is only one.
    pub fn each<T>(
        legend: String,
        items: &[T],
        heading: impl Fn(&T) -> String,
        draw: impl Fn(&T, Size, &str) -> String,
    ) -> Drawing {
        if let [only] = items {
            let drawn = [
                draw(only, Size::WIDE, "wide"),
                draw(only, Size::NARROW, "narrow"),
            ];
            return Drawing::One(legend, drawn);
        }
        let panel = |item: &T| Panel {
            heading: heading(item),
            drawing: draw(item, Size::NARROW, ""),
        };
        Drawing::Panels(legend, items.iter().map(panel).collect())
    }
}

impl Figure {
    /// The element.
    pub fn html(&self) -> String {
        let caption = Caption {
            id: self.id,
            title: &self.title,
            paragraphs: &self.caption,
            source: self.source,
        };
        framed(&caption, &self.drawing, self.numbers.as_ref())
    }
}

/// What is written beside a drawing, plain text.
pub(crate) struct Caption<'a> {
    /// The end of its anchor's name: `figure-…`.
    pub id: &'a str,
    /// What the drawing shows.
    pub title: &'a str,
    /// What to know and how to read it, one paragraph each.
    pub paragraphs: &'a [String],
    /// The figure of the papers that this one follows.
    pub source: &'a str,
}

/// A drawing with its words and, folded, its numbers.
pub(crate) fn framed(caption: &Caption, drawing: &Drawing, numbers: Option<&Table>) -> String {
    // Two columns of panels leave room for the caption beside them, three do not.
    let spread = match drawing {
        Drawing::Panels(_, panels) if columns(panels.len()) == "three" => " class=\"spread\"",
        _ => "",
    };
    let mut out = format!("<figure id=\"figure-{}\"{spread}>", caption.id);
    let (legend, drawn) = match drawing {
        Drawing::One(legend, drawn) => (legend, drawn.concat()),
        Drawing::Panels(legend, panels) => (legend, laid_out(panels)),
    };
    let _ = write!(
        out,
        "<div class=\"drawing\">{legend}{drawn}</div><figcaption><h3>{}</h3>",
        escaped(caption.title)
    );
    for paragraph in caption.paragraphs {
        let _ = write!(out, "<p>{}</p>", escaped(paragraph));
    }
    if !caption.source.is_empty() {
        let _ = write!(out, "<p class=\"source\">{}</p>", escaped(caption.source));
    }
    if let Some(table) = numbers {
        let table = table.html(caption.title);
        let _ = write!(
            out,
            "<details><summary>The numbers</summary>{table}</details>"
        );
    }
    out + "</figcaption></figure>"
}

/// Four panels look better as two by two than as three and one.
fn columns(panels: usize) -> &'static str {
    match panels {
        1 => "one",
        2 | 4 => "two",
        _ => "three",
    }
}

fn laid_out(panels: &[Panel]) -> String {
    let columns = columns(panels.len());
    let mut out = format!("<div class=\"panels {columns}\">");
    for panel in panels {
        let _ = write!(
            out,
            "<div class=\"panel\"><h3>{}</h3>{}</div>",
            panel.heading, panel.drawing
        );
    }
    out + "</div>"
}

/// Rows with a name each, under named columns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    /// The columns' names, elements; the first stands over the rows' names.
    pub head: Vec<String>,
    /// Cells, elements' content; the first is the row's name.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table under plain column names.
    pub fn new(head: &[&str]) -> Table {
        Table {
            head: head.iter().map(|name| escaped(name)).collect(),
            rows: Vec::new(),
        }
    }

    /// The element; it scrolls by itself, also by keyboard, where the page is too narrow for it.
    pub fn html(&self, name: &str) -> String {
        let name = escaped(name);
        let mut out = format!(
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{name}, table\"><table><thead><tr>"
        );
        for cell in &self.head {
            let _ = write!(out, "<th scope=\"col\">{cell}</th>");
        }
        out.push_str("</tr></thead><tbody>");
        for row in &self.rows {
            out.push_str("<tr>");
            for (index, cell) in row.iter().enumerate() {
                if index == 0 {
                    let _ = write!(out, "<th scope=\"row\">{cell}</th>");
                } else {
                    let _ = write!(out, "<td>{cell}</td>");
                }
            }
            out.push_str("</tr>");
        }
        out + "</tbody></table></div>"
    }
}

/// A piece of line with its point, as it looks in the charts.
pub(crate) fn sample(style: LineStyle) -> String {
    let (colour, dash) = (style.colour, style.dash);
    let point = shape(style.shape, 17.0, 6.0, 3.4);
    format!(
        "<svg viewBox=\"0 0 34 12\" aria-hidden=\"true\"><path class=\"line c{colour} d{dash}\" d=\"M0 6H34\"/>\
         <path class=\"point c{colour}\" d=\"{point}\"/></svg>"
    )
}

/// What the looks mean: names are plain text.
pub(crate) fn legend<'a>(entries: impl IntoIterator<Item = (LineStyle, &'a str)>) -> String {
    let items: String = entries
        .into_iter()
        .map(|(style, name)| format!("<li>{}<span>{}</span></li>", sample(style), escaped(name)))
        .collect();
    format!("<ul class=\"legend\">{items}</ul>")
}
