//! The file systems on which opening a file does not block.
//!
//! `RESOLVE_CACHED` guarantees only that the path walk does not block. The open that follows
//! depends on the file system. On a disk file system it touches memory only, but NFS may ask its
//! server, and FUSE always asks its daemon. So the loop opens files only on devices known to be
//! harmless at startup. On all others, and on those mounted later, a helper opens them. A wrong
//! classification is slower, but never blocks.
//!
//! Sources: proc_pid_mountinfo(5), statfs(2), the kernel's `fs/nfs/file.c` and `fs/fuse/file.c`.

use rustix::fd::AsFd;
use rustix::fs::fstatfs;

/// The file system whose pages belong to files of a lower layer.
const OVERLAY: &str = "overlay";

/// File systems whose `open` only touches memory. An overlay behaves like its layers; layers on a
/// network file system are not considered.
const HARMLESS: [&str; 14] = [
    "ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "bcachefs", "zfs", "tmpfs", "ramfs", OVERLAY,
    "squashfs", "erofs", "iso9660",
];

/// `f_type` of btrfs (linux/magic.h).
const BTRFS_MAGIC: i64 = 0x9123_683E;

/// `f_type` of tmpfs and memfd (linux/magic.h).
pub(crate) const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Device numbers of harmless file systems.
#[derive(Debug, Default)]
pub(crate) struct NonBlockingFilesystems {
    devices: Vec<u64>,
    overlays: Vec<u64>,
    /// All devices that mountinfo names.
    mounted: Vec<u64>,
}

impl NonBlockingFilesystems {
    /// Harmless file systems that are mounted now. Reads /proc, so call it before serving.
    pub(crate) fn mounted() -> NonBlockingFilesystems {
        // Without /proc no device is known to be harmless, and helpers open all files.
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mut all = NonBlockingFilesystems::default();
        for (kind, device) in mounts.lines().filter_map(mounted_device) {
            all.mounted.push(device);
            if HARMLESS.contains(&kind) {
                all.devices.push(device);
            }
            if kind == OVERLAY {
                all.overlays.push(device);
            }
        }
        for devices in [&mut all.devices, &mut all.mounted] {
            devices.sort_unstable();
            devices.dedup();
        }
        all
    }

    /// Add a root's device if mountinfo could not name it: btrfs numbers each subvolume by itself. A file system
    /// which mountinfo names is not asked.
    pub(crate) fn add_root(&mut self, directory: impl AsFd, device: u64) {
        if self.mounted.binary_search(&device).is_err()
            && !self.contains(device)
            && fstatfs(&directory).is_ok_and(|found| found.f_type == BTRFS_MAGIC)
        {
            self.devices.push(device);
            self.devices.sort_unstable();
        }
    }

    /// Files on this device are opened without waiting.
    pub(crate) fn contains(&self, device: u64) -> bool {
        self.devices.binary_search(&device).is_ok()
    }

    /// Files on this device keep their pages in another file, of the layer below.
    pub(crate) fn is_overlay(&self, device: u64) -> bool {
        self.overlays.contains(&device)
    }
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw` → ext3 on the device 98:0.
fn mounted_device(line: &str) -> Option<(&str, u64)> {
    let (mount, file_system) = line.split_once(" - ")?;
    let kind = file_system.split(' ').next()?;
    let (major, minor) = mount.split(' ').nth(2)?.split_once(':')?;
    let device = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
    Some((kind, device))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_and_type_are_taken_from_mountinfo() {
        let ext4 =
            "36 35 98:7 /a\\040b /mnt rw,noatime master:1 - ext4 /dev/root rw,errors=continue";
        assert_eq!(
            mounted_device(ext4),
            Some(("ext4", rustix::fs::makedev(98, 7)))
        );
        for other in ["nfs4", "fuse.sshfs", "fuseblk", "cifs", "9p"] {
            let line = format!("36 35 0:41 / /mnt rw - {other} server:/x rw");
            let found = mounted_device(&line).expect("a device");
            assert_eq!(found, (other, rustix::fs::makedev(0, 41)));
            assert!(!HARMLESS.contains(&found.0), "{other}");
        }
        assert_eq!(mounted_device("nonsense"), None);
    }
}
