//! `headway-lab` as a user meets it: what its parts do to a program in it, and that nothing stays
//! behind.

mod support;

mod certificates;
mod crash;
mod environments;
mod parts;
mod outage;
mod remote;
mod study;
mod arguments;
