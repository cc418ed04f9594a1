//! Stands in for the disk until it is merged.
#![allow(missing_docs)]
use crate::disk::{DiskSpec, DiskStatistics, Order};
use std::path::Path;
#[derive(Debug, thiserror::Error)]
#[error("this build has no disk yet")]
pub struct DiskError;
#[derive(Debug)]
pub struct Disk(());
impl Disk {
    pub fn start(_: &DiskSpec, _: &Path) -> Result<Disk, DiskError> {
        Err(DiskError)
    }
    pub fn open(_: &Path) -> Result<Disk, DiskError> {
        Err(DiskError)
    }
    pub fn mount_point(&self) -> &Path {
        Path::new("/")
    }
    pub fn order(&self, _: Order) -> Result<(), DiskError> {
        Err(DiskError)
    }
    pub fn cool(&self) -> Result<(), DiskError> {
        Err(DiskError)
    }
    pub fn statistics(&self) -> Result<DiskStatistics, DiskError> {
        Err(DiskError)
    }
    pub fn stop(self) -> Result<(), DiskError> {
        Err(DiskError)
    }
}
