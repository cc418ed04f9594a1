//! Looking at a trace while it grows: waits, draws the live view, and knows when it is over.

use anyhow::Context;
use headway_trace::Outcome;
use headway_trace::Trace;
use headway_trace::launch::Launched;
use headway_trace::live::{KeyAction, View};
use std::fs::File;
use std::io::{IsTerminal, Seek, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// How often a view is drawn again.
const DRAW: Duration = Duration::from_secs(1);

/// Where records come from.
pub trait TraceSource {
    /// How often `poll` wants to be called.
    fn poll_interval(&self) -> Duration;

    /// Takes what has come. False once nothing more can come.
    fn poll(&mut self) -> anyhow::Result<bool>;

    /// Everything so far.
    fn trace(&mut self) -> anyhow::Result<Trace>;
}

/// The live view, if there is one.
pub struct Screen {
    view: Option<View>,
    drawn: Option<Instant>,
}

impl Screen {
    /// Takes the terminal if the view is wanted.
    pub fn new(live: bool) -> anyhow::Result<Screen> {
        let view = live.then(View::open).transpose().context("the live view")?;
        Ok(Screen { view, drawn: None })
    }

    /// Waits for keys, not longer than this, and draws when it is time. Without a view it does
    /// nothing at once.
    fn refresh(
        &mut self,
        source: &mut impl TraceSource,
        most: Duration,
    ) -> anyhow::Result<KeyAction> {
        let Some(view) = &mut self.view else {
            return Ok(KeyAction::None);
        };
        let wish = view.keys(most).context("the live view")?;
        match wish {
            KeyAction::Close => self.view = None,
            // A key may have selected other rows.
            _ if self.drawn.is_none_or(|drawn| drawn.elapsed() >= DRAW) => {
                view.draw(&source.trace()?).context("the live view")?;
                self.drawn = Some(Instant::now());
            }
            _ => {}
        }
        Ok(wish)
    }

    /// Watches until a command has ended.
    pub fn command<S: TraceSource>(
        mut self,
        source: &mut S,
        launched: &mut Launched,
    ) -> anyhow::Result<Outcome> {
        loop {
            let most = match self.view {
                Some(_) => Duration::ZERO,
                None => source.poll_interval(),
            };
            if let Some(outcome) = launched.wait(most).context("waiting for the command")? {
                return Ok(outcome);
            }
            source.poll()?;
            let most = source.poll_interval();
            if self.refresh(source, most)? == KeyAction::Interrupt {
                launched.interrupt();
            }
        }
    }

    /// Watches until nothing more comes, or `over` says so, or the view is closed.
    pub fn processes<S: TraceSource>(
        mut self,
        source: &mut S,
        over: impl Fn() -> bool,
    ) -> anyhow::Result<()> {
        while source.poll()? && !over() {
            let most = source.poll_interval();
            if self.view.is_none() {
                std::thread::sleep(most);
            }
            if self.refresh(source, most)? != KeyAction::None {
                break;
            }
        }
        Ok(())
    }
}

/// What a command writes to a terminal that a view is drawn on, held back until the view is closed.
pub struct HeldOutput {
    out: Option<File>,
    error: Option<File>,
}

impl HeldOutput {
    /// Nothing so far.
    pub fn new() -> anyhow::Result<HeldOutput> {
        let file = || tempfile::tempfile().context("a file for the command's output");
        let out = std::io::stdout().is_terminal().then(file).transpose()?;
        let error = std::io::stderr().is_terminal().then(file).transpose()?;
        Ok(HeldOutput { out, error })
    }

    /// The command's standard output and error.
    pub fn streams(&self) -> anyhow::Result<(Stdio, Stdio)> {
        let stream = |file: &Option<File>| match file {
            Some(file) => file
                .try_clone()
                .map(Stdio::from)
                .context("a file for the command's output"),
            None => Ok(Stdio::inherit()),
        };
        Ok((stream(&self.out)?, stream(&self.error)?))
    }

    /// Lets go of it.
    pub fn release(self) -> anyhow::Result<()> {
        let copy = |file: Option<File>, to: &mut dyn Write| match file {
            Some(mut file) => file
                .rewind()
                .and_then(|()| std::io::copy(&mut file, to))
                .map(drop),
            None => Ok(()),
        };
        copy(self.out, &mut std::io::stdout()).context("the command's output")?;
        copy(self.error, &mut std::io::stderr()).context("the command's standard error")
    }
}
