//! A live view in the terminal of calls, call sites and labels, as top(1) shows processes.
//!
//! The view draws on the controlling terminal, not on a standard stream, since those belong to the
//! traced program. The figures of the last second are the difference of two traces, so the view
//! costs the traced program nothing more.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::time::Duration;

use ratatui::backend::{Backend, CrosstermBackend};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use ratatui::crossterm::{cursor, execute};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table};
use ratatui::{Terminal, TerminalOptions, Viewport};

use crate::model::Trace;
use crate::units::{NONE, counted, grouped, percent, time, time_unpadded};

/// What the rows are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tab {
    /// Labels with their kernel functions.
    #[default]
    Labels,
    /// System calls.
    Calls,
    /// Call sites.
    Sites,
}

impl Tab {
    const ALL: [(Tab, char, &'static str); 3] = [
        (Tab::Labels, 'l', "labels"),
        (Tab::Calls, 'c', "calls"),
        (Tab::Sites, 's', "sites"),
    ];

    fn next(self) -> Tab {
        match self {
            Tab::Labels => Tab::Calls,
            Tab::Calls => Tab::Sites,
            Tab::Sites => Tab::Labels,
        }
    }
}

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyAction {
    /// No key, or time to draw again.
    None,
    /// No more view.
    Close,
    /// What Ctrl-C does: interrupt the command.
    Interrupt,
}

/// The view. The terminal is as it was when this is dropped.
pub struct View {
    screen: Terminal<CrosstermBackend<File>>,
    tab: Tab,
    before: Sums,
}

/// A sum that grows, by the name of its row.
type Sums = HashMap<String, (u64, u64)>;

/// A row: its name, other cells, how often and how long so far.
struct Entry {
    name: String,
    note: String,
    count: u64,
    total_ns: u64,
    max_ns: u64,
}

impl View {
    /// Takes the terminal.
    ///
    /// # Errors
    ///
    /// There is no controlling terminal.
    pub fn open() -> io::Result<View> {
        let mut terminal = File::options()
            .read(true)
            .write(true)
            .open("/dev/tty")
            .map_err(|error| {
                io::Error::new(
                    error.kind(),
                    format!("/dev/tty: {error}; --live needs a terminal to draw on"),
                )
            })?;
        enable_raw_mode()?;
        execute!(terminal, EnterAlternateScreen, cursor::Hide)?;
        let viewport = viewport(size().unwrap_or_default());
        Ok(View {
            screen: Terminal::with_options(
                CrosstermBackend::new(terminal),
                TerminalOptions { viewport },
            )?,
            tab: Tab::default(),
            before: Sums::new(),
        })
    }

    /// Shows a trace. Call it about once a second: "now" is since the last call.
    ///
    /// # Errors
    ///
    /// The terminal was closed.
    pub fn draw(&mut self, trace: &Trace) -> io::Result<()> {
        show(&mut self.screen, trace, self.tab, &self.before)?;
        self.before = sums(trace, self.tab);
        Ok(())
    }

    /// Waits for keys, not longer than this.
    ///
    /// # Errors
    ///
    /// The terminal was closed.
    pub fn keys(&mut self, most: Duration) -> io::Result<KeyAction> {
        if !event::poll(most)? {
            return Ok(KeyAction::None);
        }
        let Event::Key(key) = event::read()? else {
            return Ok(KeyAction::None);
        };
        if key.kind != KeyEventKind::Press {
            return Ok(KeyAction::None);
        }
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return Ok(KeyAction::Interrupt);
            }
            KeyCode::Char('q') | KeyCode::Esc => return Ok(KeyAction::Close),
            KeyCode::Tab => self.switch_to(self.tab.next()),
            KeyCode::Char(letter) => {
                if let Some((tab, ..)) = Tab::ALL.iter().find(|(_, key, _)| *key == letter) {
                    self.switch_to(*tab);
                }
            }
            _ => {}
        }
        Ok(KeyAction::None)
    }

    fn switch_to(&mut self, tab: Tab) {
        self.tab = tab;
        self.before.clear();
    }
}

/// Terminals on a serial line do not know their size, and then it is nothing: they have had 80 by
/// 24 for long.
fn viewport(size: (u16, u16)) -> Viewport {
    match size {
        (0, _) | (_, 0) => Viewport::Fixed(Rect::new(0, 0, 80, 24)),
        _ => Viewport::Fullscreen,
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        let _ = execute!(
            self.screen.backend_mut(),
            LeaveAlternateScreen,
            cursor::Show
        );
        let _ = disable_raw_mode();
    }
}

fn show<B: Backend>(
    screen: &mut Terminal<B>,
    trace: &Trace,
    tab: Tab,
    before: &Sums,
) -> Result<(), B::Error> {
    let entries = entries(trace, tab);
    let all_ns: u64 = entries.iter().map(|entry| entry.total_ns).sum();
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let head = [Cells::head(match tab {
        Tab::Labels => "LABEL",
        Tab::Calls => "CALL",
        Tab::Sites => "CALL SITE",
    })];
    let rows = entries
        .iter()
        .map(|entry| Cells::of(entry, before, all_ns).row());
    let widths = [
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(12),
        Constraint::Length(9),
        Constraint::Length(7),
        Constraint::Length(9),
        Constraint::Percentage(25),
        Constraint::Fill(1),
    ];
    let table = Table::new(rows, widths)
        .header(head[0].row().style(bold))
        .column_spacing(2);
    screen.draw(|frame| {
        let [top, middle, bottom] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Min(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(Paragraph::new(title(trace)), top);
        frame.render_widget(table, middle);
        frame.render_widget(Paragraph::new(keys_line(tab)), bottom);
    })?;
    Ok(())
}

fn title(trace: &Trace) -> Vec<Line<'static>> {
    let text = format!(
        "{}: {} in {}, {}",
        if trace.command.is_empty() {
            "attached".to_owned()
        } else {
            trace.command.join(" ")
        },
        counted(trace.calls(), "call", "calls"),
        counted(trace.processes() as u64, "process", "processes"),
        time_unpadded(trace.length_ns()),
    );
    vec![Line::from(text), Line::default()]
}

fn keys_line(tab: Tab) -> Line<'static> {
    let mut spans = Vec::new();
    for (one, _, name) in Tab::ALL {
        let style = match one == tab {
            true => Style::new().add_modifier(Modifier::REVERSED),
            false => Style::new(),
        };
        spans.push(Span::styled(format!(" {name} "), style));
    }
    spans.push(Span::raw(
        "  Tab or first letter: switch   q: close the view   Ctrl-C: interrupt",
    ));
    Line::from(spans)
}

/// A row's cells as text; numbers are padded, since the widget aligns to the left.
struct Cells([String; 8]);

impl Cells {
    fn head(name: &str) -> Cells {
        Cells(
            [
                "   NOW/s ",
                "   TIME/s",
                "       TOTAL",
                "     TIME",
                "  SHARE",
                "  LONGEST",
                name,
                "",
            ]
            .map(str::to_owned),
        )
    }

    fn of(entry: &Entry, before: &Sums, all_ns: u64) -> Cells {
        let (count, total_ns) = before
            .get(&entry.name)
            .copied()
            .unwrap_or((entry.count, entry.total_ns));
        let now = entry.count.saturating_sub(count);
        let now_ns = entry.total_ns.saturating_sub(total_ns);
        Cells([
            format!("{:>8} ", if now == 0 { NONE.into() } else { grouped(now) }),
            format!("{:>9}", time(now_ns)),
            format!("{:>12}", grouped(entry.count)),
            format!("{:>9}", time(entry.total_ns)),
            format!("{:>7}", percent(entry.total_ns, all_ns)),
            format!("{:>9}", time(entry.max_ns)),
            entry.name.clone(),
            entry.note.clone(),
        ])
    }

    fn row(&self) -> Row<'static> {
        Row::new(self.0.clone())
    }
}

fn sums(trace: &Trace, tab: Tab) -> Sums {
    let pair = |entry: Entry| (entry.name, (entry.count, entry.total_ns));
    entries(trace, tab).into_iter().map(pair).collect()
}

fn entries(trace: &Trace, tab: Tab) -> Vec<Entry> {
    let mut entries: HashMap<String, Entry> = HashMap::new();
    let mut add = |name: String, note: &str, count: u64, total_ns: u64, max_ns: u64| {
        let entry = entries.entry(name.clone()).or_insert(Entry {
            name,
            note: note.to_owned(),
            count: 0,
            total_ns: 0,
            max_ns: 0,
        });
        entry.count += count;
        entry.total_ns += total_ns;
        entry.max_ns = entry.max_ns.max(max_ns);
    };
    for site in &trace.sites {
        match tab {
            Tab::Calls => add(
                site.call.clone(),
                "",
                site.count,
                site.wall_ns,
                site.wall_max_ns,
            ),
            Tab::Sites => {
                let location = trace
                    .locations
                    .get(site.location)
                    .map(|location| location.description())
                    .unwrap_or_default();
                add(
                    format!("{} {location}", site.call),
                    "",
                    site.count,
                    site.wall_ns,
                    site.wall_max_ns,
                );
            }
            Tab::Labels => {
                for sleep in &site.sleeps {
                    let symbol = sleep.symbol.as_deref().unwrap_or_default();
                    add(
                        sleep.label.to_string(),
                        symbol,
                        sleep.count,
                        sleep.total_ns,
                        sleep.max_ns,
                    );
                }
            }
        }
    }
    let mut entries: Vec<Entry> = entries.into_values().collect();
    entries.sort_by(|one, other| (other.total_ns, &one.name).cmp(&(one.total_ns, &other.name)));
    entries
}

#[cfg(test)]
mod tests {
    use super::{Sums, Tab, show, sums};
    use crate::model::{LocationTotals, Trace};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn trace(count: u64) -> Trace {
        let site = serde_json::json!({
            "location": 0, "exe": "/bin/cat", "call": "read", "processes": 1, "count": count, "errors": 0,
            "wall_ns": 1000 * count, "wall_min_ns": 1, "wall_max_ns": 2000, "in_band_min_ns": 1, "in_band_max_ns": 1,
            "faults_minor": 0, "faults_major": 0, "preemptions": {"count": 0, "total_ns": 0},
            "slept": {"count": 0, "total_ns": 0}, "wakeup_ns": 0, "histogram": [], "sleeps": []
        });
        let site: LocationTotals = serde_json::from_value(site).expect("a site");
        Trace {
            command: vec!["cat".into()],
            sites: vec![site],
            ..Trace::default()
        }
    }

    #[test]
    fn rate_is_the_difference_when_a_second_sample_is_taken() {
        let mut screen = Terminal::new(TestBackend::new(100, 8)).expect("a screen");
        show(&mut screen, &trace(10), Tab::Calls, &Sums::new()).expect("drawn");
        let before = sums(&trace(10), Tab::Calls);
        show(&mut screen, &trace(17), Tab::Calls, &before).expect("drawn");
        let text = screen.backend().to_string();
        let row = text
            .lines()
            .find(|line| line.contains("read"))
            .expect("a row");
        assert!(row.contains("7 ") && row.contains("17"), "{text}");
        assert!(text.contains("17 calls"), "{text}");
    }
}
