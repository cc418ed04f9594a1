//! The master process: binds, spawns, watches, reports.
