//! All suites of the command but that of `headway-lab counters`.

mod common;

mod application;
mod group;
mod install;
mod lab;
mod reference;
mod schedule;
mod servers;
mod specweb99;
mod study;
