//! `--functions`: the kernel's functions with their times where it has function_graph for
//! instances, and a word where not.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use super::support::{missing, skip, traced};

const INSTANCES: &str = "/sys/kernel/tracing/instances";

/// Trace instances of ours that are left over.
fn left() -> Vec<String> {
    let entries = std::fs::read_dir(INSTANCES).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with("headway-")).collect()
}

/// Lets one test at a time trace functions, or the instance of one would be what another left.
static ONE: Mutex<()> = Mutex::new(());

/// A sleep traced with functions, and why there are none.
fn sleeping() -> (Value, Option<String>) {
    let (trace, ran) = traced(&["--functions=150"], &["sh", "-c", "sleep 0.05; exit 5"]);
    assert_eq!(ran.code, Some(5), "{}", ran.error);
    let missing = missing(&trace);
    let why = missing
        .lines()
        .find(|line| line.starts_with("Kernel functions are not timed"));
    let why = why.map(str::to_owned);
    (trace, why)
}

/// The longest kept call.
fn longest(trace: &Value) -> &Value {
    let kept = trace["kept"].as_array().expect("a list").iter();
    kept.max_by_key(|kept| kept["wall_ns"].as_u64())
        .expect("sleep slept")
}

/// Needs: a kernel without it, or no privilege: the other two run then
#[test]
fn summary_says_why_there_are_no_function_times_when_the_kernel_has_no_function_graph() {
    let test = "summary_says_why_there_are_no_function_times_when_the_kernel_has_no_function_graph";
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (trace, why) = sleeping();
    let Some(why) = why else {
        return skip(
            test,
            "a kernel without function_graph in instances, or no privilege",
        );
    };
    assert!(
        why.contains("the kernel stack at each sleep instead"),
        "{why}"
    );
    let reasons = [
        "no function_graph",
        "one global buffer",
        "closed to this user",
        "not mounted",
    ];
    assert!(reasons.iter().any(|reason| why.contains(reason)), "{why}");
    assert!(longest(&trace)["functions"].is_null());
    assert_eq!(left(), Vec::<String>::new());
}

/// Needs: root; function_graph in trace instances (Linux 6.11)
#[test]
fn kept_call_has_its_functions_when_the_kernel_has_function_graph() {
    let test = "kept_call_has_its_functions_when_the_kernel_has_function_graph";
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (trace, why) = sleeping();
    if why.is_some() || !Path::new(INSTANCES).exists() {
        return skip(test, "root; function_graph in trace instances (Linux 6.11)");
    }
    let kept = longest(&trace);
    let functions = kept["functions"].as_array().expect("functions");
    assert!(functions.len() <= 150, "{}", functions.len());
    let slept = functions
        .iter()
        .filter(|function| function["length_ns"].as_u64() >= Some(50_000_000));
    let names: Vec<&str> = slept
        .filter_map(|function| function["name"].as_str())
        .collect();
    assert!(names.contains(&"schedule"), "{names:?}");
    assert_eq!(left(), Vec::<String>::new());
}
