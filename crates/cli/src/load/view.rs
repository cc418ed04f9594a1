//! `load --live full`: a view of the run in the terminal, while it goes on.
//!
//! It draws on standard error, as the progress line does, twice per second. Typed keys are not shown. Ctrl-C ends
//! the run, as without a view. The verdict on the client is provisional. The final one comes at the end of the run and
//! uses more data.

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Stderr};

use clap::{Args, ValueEnum};
use headway_latency::Histogram;
use headway_latency::format::{count, number, percent, printable, time_us};
use headway_load::session::RunContext;
use headway_load::session::bars;
use headway_load::session::progress::{Progress, View, ViewMaker};
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, size};
use ratatui::crossterm::{cursor, execute};
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::Failure;

/// Values of a sparkline: one minute.
const VALUES: usize = 120;
/// The longest bar of the histogram.
const BAR_WIDTH: usize = 40;
/// An open loop of which fewer requests start is not the load that was wanted.
const STARTED_MIN: f64 = 0.95;

/// How a run is shown while it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Live {
    /// Not at all, as with --quiet
    Off,
    /// A line
    Line,
    /// Rate, latencies and errors, now and over the last minute
    Full,
}

#[derive(Debug, Args)]
pub(super) struct LiveOptions {
    /// Show the run while it goes on: off, line or full [default: line, on a terminal]
    #[arg(
        long,
        value_enum,
        value_name = "HOW",
        conflicts_with = "quiet",
        help_heading = "Output",
        hide_possible_values = true,
        hide_short_help = true
    )]
    live: Option<Live>,
}

impl LiveOptions {
    /// Writes the option into the surroundings of a run.
    pub(super) fn apply(&self, title: String, around: &mut RunContext) -> Result<(), Failure> {
        match self.live {
            None | Some(Live::Line) => {}
            Some(Live::Off) => around.progress = None,
            Some(Live::Full) => {
                if !io::stderr().is_terminal() {
                    let text = "--live full draws on standard error, which is no terminal";
                    return Err(Failure::Usage(text.to_owned()));
                }
                around.view = Some(ViewMaker::new(move || {
                    Ok(Box::new(Screen::open(History::new(title.clone()))?))
                }));
            }
        }
        Ok(())
    }
}

/// The terminal. It is as it was when this is dropped.
struct Screen {
    terminal: Terminal<CrosstermBackend<Stderr>>,
    before: Option<Termios>,
    history: History,
}

impl Screen {
    fn open(history: History) -> io::Result<Screen> {
        let before = tcgetattr(io::stderr()).ok();
        if let Some(before) = &before {
            let mut quiet = before.clone();
            quiet.local_modes -= LocalModes::ECHO | LocalModes::ICANON;
            tcsetattr(io::stderr(), OptionalActions::Now, &quiet)?;
        }
        // Terminals on a serial line do not know their size, and then it is nothing.
        let viewport = match size() {
            Ok((1.., 1..)) => Viewport::Fullscreen,
            _ => Viewport::Fixed(Rect::new(0, 0, 80, 24)),
        };
        execute!(io::stderr(), EnterAlternateScreen, cursor::Hide)?;
        Ok(Screen {
            terminal: Terminal::with_options(
                CrosstermBackend::new(io::stderr()),
                TerminalOptions { viewport },
            )?,
            before,
            history,
        })
    }
}

impl View for Screen {
    fn show(&mut self, progress: &Progress) {
        self.history.take(progress);
        let lines = self.history.lines(progress);
        // A terminal that is gone shows nothing.
        let _ = self.terminal.draw(|frame| draw(frame, &lines));
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = execute!(io::stderr(), LeaveAlternateScreen, cursor::Show);
        if let Some(before) = &self.before {
            let _ = tcsetattr(io::stderr(), OptionalActions::Now, before);
        }
    }
}

fn draw(frame: &mut Frame<'_>, lines: &[String]) {
    let lines: Vec<Line<'_>> = lines.iter().map(|line| Line::from(line.as_str())).collect();
    frame.render_widget(Paragraph::new(lines), frame.area());
}

/// What was seen so far.
struct History {
    title: String,
    before: Progress,
    /// Requests per second, and the 99th percentile in microseconds, of each half second.
    rates: VecDeque<f64>,
    p99s_us: VecDeque<f64>,
    /// Requests that started per second, now.
    started_per_s: f64,
    /// All latencies that were measured.
    all: Histogram,
}

impl History {
    fn new(title: String) -> History {
        History {
            title,
            before: Progress::default(),
            rates: VecDeque::new(),
            p99s_us: VecDeque::new(),
            started_per_s: 0.0,
            all: Histogram::new(),
        }
    }

    fn take(&mut self, now: &Progress) {
        let elapsed_s = now.now_s - self.before.now_s;
        let per_s = |now: u64, before: u64| match elapsed_s > 0.0 {
            true => now.saturating_sub(before) as f64 / elapsed_s,
            false => 0.0,
        };
        push(&mut self.rates, per_s(now.done, self.before.done));
        push(
            &mut self.p99s_us,
            now.latencies.percentile(99.0) as f64 / 1e3,
        );
        self.started_per_s = per_s(now.started, self.before.started);
        if now.is_measured {
            self.all.merge(&now.latencies);
        }
        self.before = now.clone();
    }

    fn lines(&self, now: &Progress) -> Vec<String> {
        let rate = self.rates.back().copied().unwrap_or_default();
        let offered = match now.offered_per_s {
            Some(offered) => format!(", {}/s offered", number(offered)),
            None => String::new(),
        };
        let share = match now.done {
            0 => String::new(),
            done => format!(" ({})", percent(now.errors as f64 / done as f64)),
        };
        let mut lines = vec![
            format!("headway load {}   {}", printable(&self.title), now.stage),
            String::new(),
            format!(
                "  requests   {}/s{offered}, {} ended",
                number(rate),
                count(now.done)
            ),
            format!("  errors     {}{share}", count(now.errors)),
            format!(
                "  now        {} in flight, {} waiting, {} connections",
                count(now.in_flight),
                count(now.waiting),
                count(now.connections)
            ),
            format!("  client     {}", self.client(now)),
            String::new(),
            format!(
                "  latency   {:>10}{:>10}{:>10}{:>10}{:>10}",
                "mean", "p50", "p90", "p99", "max"
            ),
            format!("  now       {}", figures(&now.latencies)),
            format!("  measured  {}", figures(&self.all)),
            String::new(),
            format!("  rate       {}", sparkline(&self.rates)),
            format!("  p99        {}", sparkline(&self.p99s_us)),
            String::new(),
        ];
        let all = self.all.count().max(1) as f64;
        let within = |us: f64| match us.is_finite() {
            true => self.all.count_within((us * 1e3) as u64) as f64 / all,
            false => self.all.count() as f64 / all,
        };
        let bars = bars::lines(&bars::ranges(within), BAR_WIDTH);
        lines.extend(bars.iter().map(|bar| format!("  {bar}")));
        lines
    }

    /// Whether this is the load that was wanted, as far as it is known.
    fn client(&self, now: &Progress) -> String {
        if now.dropped > 0 {
            return format!(
                "invalid: {} requests could not be recorded",
                count(now.dropped)
            );
        }
        match now.offered_per_s {
            Some(offered) if now.is_measured && self.started_per_s < STARTED_MIN * offered => {
                format!(
                    "suspect: only {} requests started per second",
                    number(self.started_per_s)
                )
            }
            _ if now.waiting > 0 => "suspect: requests wait for a connection".to_owned(),
            _ => "no sign so far that it is the bottleneck".to_owned(),
        }
    }
}

fn push(values: &mut VecDeque<f64>, value: f64) {
    if values.len() == VALUES {
        values.pop_front();
    }
    values.push_back(value);
}

fn figures(of: &Histogram) -> String {
    let percentile = |percent| of.percentile(percent) as f64;
    let all_ns = [
        of.mean_ns(),
        percentile(50.0),
        percentile(90.0),
        percentile(99.0),
        of.max_ns() as f64,
    ];
    let shown = all_ns.map(|ns| match of.count() {
        0 => format!("{:>10}", "–"),
        _ => format!("{:>10}", time_us(ns / 1e3)),
    });
    shown.concat()
}

/// A sparkline. The largest value has full height. The newest is at the right.
fn sparkline(values: &VecDeque<f64>) -> String {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let largest = values.iter().copied().fold(0.0, f64::max);
    let level = |value: &f64| match largest > 0.0 {
        true => LEVELS[((value / largest * 8.0).ceil() as usize).clamp(1, 8) - 1],
        false => LEVELS[0],
    };
    values.iter().map(level).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::backend::TestBackend;

    fn progress(seconds: f64, done: u64, ns: u64) -> Progress {
        let mut latencies = Histogram::new();
        latencies.record_n(ns, 100);
        Progress {
            stage: "2 s of 10 s".to_owned(),
            is_measured: true,
            now_s: seconds,
            started: done,
            done,
            errors: done / 10,
            connections: 64,
            offered_per_s: Some(200.0),
            latencies,
            ..Progress::default()
        }
    }

    #[test]
    fn view_has_rates_latencies_errors_sparklines_and_a_histogram() {
        let mut seen = History::new("http://127.0.0.1/".to_owned());
        seen.take(&progress(0.5, 100, 150_000));
        let last = progress(1.0, 150, 1_500_000);
        seen.take(&last);
        let mut screen = Terminal::new(TestBackend::new(80, 24)).unwrap();
        let lines = seen.lines(&last);
        screen.draw(|frame| draw(frame, &lines)).unwrap();
        let shown = screen.backend().to_string();
        for part in [
            "headway load http://127.0.0.1/   2 s of 10 s",
            "100/s, 200/s offered, 150 ended",
            "errors     15 (10 %)",
            "64 connections",
            "suspect: only 100 requests started per second",
            "rate       █▄",
            "p99        ▁█",
            "up to 200 µs        50 %  ████",
            "up to 2 ms          50 %  ████",
        ] {
            assert!(shown.contains(part), "{part}\n{shown}");
        }
    }

    #[test]
    fn client_is_said_to_be_invalid_when_rows_are_lost() {
        let seen = History::new(String::new());
        let said = |progress: &Progress| seen.client(progress);
        let mut now = Progress::default();
        assert_eq!(said(&now), "no sign so far that it is the bottleneck");
        now.waiting = 3;
        assert!(said(&now).contains("wait for a connection"));
        now.dropped = 2;
        assert_eq!(said(&now), "invalid: 2 requests could not be recorded");
    }
}
