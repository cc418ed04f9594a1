//! Assigns the kernel functions that the tracer timed to the kept calls.

use headway_debox::{Function, FunctionTimes, Symbols};

use crate::model::{FunctionAt, Trace};

impl Trace {
    /// Gives each kept call its functions, with the names they have in the running kernel, and says
    /// what is missing of them.
    pub fn add_functions(&mut self, times: &FunctionTimes, symbols: Option<&Symbols>) {
        for kept in &mut self.kept {
            let found = times.of_call(kept.thread, kept.start_ns, kept.wall_ns);
            kept.functions = (found.functions.iter())
                .map(|function| named(function, symbols))
                .collect();
            kept.functions_dropped = found.dropped;
        }
        let missing = times.missing();
        self.missing.extend(
            missing
                .iter()
                .map(|text| format!("Kernel functions: {text}.")),
        );
    }
}

fn named(function: &Function, symbols: Option<&Symbols>) -> FunctionAt {
    let known = symbols.and_then(|symbols| symbols.name(function.address));
    FunctionAt {
        name: known.map_or_else(
            || format!("{:#x}", function.address),
            |(name, _)| name.to_owned(),
        ),
        depth: function.depth,
        start_ns: function.start_ns,
        length_ns: function.length_ns,
    }
}
