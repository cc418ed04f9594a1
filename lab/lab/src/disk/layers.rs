//! How a disk's file system is mounted: by itself, or below an overlay.
//!
//! With an overlay the file system is mounted on `lower/`. Its folder `image` is the lower layer;
//! while files are put there it is bound to `files/`. The upper layer is beside it, or on a tmpfs.
//!
//! Source: Linux `Documentation/filesystems/overlayfs.rst`.

use std::ffi::{CString, OsStr};
use std::fs;
use std::io;
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountFlags, mount, mount_bind};

use super::layout::DiskLayout;
use super::spec::{DiskSpec, Filesystem, Upper};
use super::{DiskError, kernel};

/// Owner of the lower layer, user and group: any but those that servers run as.
const IMAGE_OWNER: &str = "1000:1000";

/// The folder of the lower layer on the disk.
const IMAGE_FOLDER: &str = "image";

/// What a disk is mounted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Files are put on it.
    Filling,
    /// A server serves them.
    Serving,
}

/// Mounts everything so that the files are in `files/`.
pub(super) fn mount_all(
    device: &Path,
    layout: &DiskLayout,
    spec: &DiskSpec,
    purpose: Purpose,
) -> Result<(), DiskError> {
    let Some(upper) = spec.overlay else {
        return mount_device(device, &layout.files, spec, purpose);
    };
    mount_device(device, &layout.lower, spec, purpose)?;
    let done = match purpose {
        Purpose::Filling => bind_image(layout),
        Purpose::Serving => mount_overlay(layout, upper),
    };
    done.map_err(|cause| DiskError::io("mounting the overlay", &layout.files, cause))
}

fn mount_device(
    device: &Path,
    folder: &Path,
    spec: &DiskSpec,
    purpose: Purpose,
) -> Result<(), DiskError> {
    let serving = purpose == Purpose::Serving;
    let read_only = serving && !spec.writable && spec.overlay != Some(Upper::Disk);
    let mut flags = MountFlags::NODEV | MountFlags::NOSUID;
    flags |= match serving && spec.writable {
        true => MountFlags::RELATIME,
        false => MountFlags::NOATIME,
    };
    flags.set(MountFlags::RDONLY, read_only);
    let options = match spec.filesystem {
        // The kernel would write the tables that mkfs left out, in the middle of a measurement.
        Filesystem::Ext4 if !read_only => Some(c"noinit_itable"),
        Filesystem::Ext4 | Filesystem::Remote => None,
        // Two disks of one seed have one name, and xfs would refuse the second.
        Filesystem::Xfs => Some(c"nouuid"),
    };
    let name = spec.filesystem.name();
    mount(device, folder, name, flags, options).map_err(|cause| match cause {
        // mount(2): the file system is not configured in the kernel.
        Errno::NODEV => DiskError::Missing {
            what: format!("{name} in the kernel"),
            remedy: "load its module, or take another file system",
        },
        cause => DiskError::io("mounting the disk", folder, cause.into()),
    })
}

/// The layers are made when the disk is first mounted, which is to fill it.
fn bind_image(layout: &DiskLayout) -> io::Result<()> {
    let image = layout.lower.join(IMAGE_FOLDER);
    for folder in [
        &image,
        &layout.lower.join("upper"),
        &layout.lower.join("work"),
    ] {
        fs::create_dir_all(folder)?;
    }
    Ok(mount_bind(image, &layout.files)?)
}

fn mount_overlay(layout: &DiskLayout, upper: Upper) -> io::Result<()> {
    let above = match upper {
        Upper::Disk => &layout.lower,
        Upper::Tmpfs => {
            let flags = MountFlags::NODEV | MountFlags::NOSUID;
            mount("tmpfs", &layout.upper, "tmpfs", flags, Some(c"mode=755"))?;
            fs::create_dir(layout.upper.join("upper"))?;
            fs::create_dir(layout.upper.join("work"))?;
            &layout.upper
        }
    };
    let option = |name: &str, folder: &Path| {
        let mut option = OsStr::new(name).to_owned();
        option.push(folder);
        option.into_encoded_bytes()
    };
    let options = [
        option("lowerdir=", &layout.lower.join(IMAGE_FOLDER)),
        option("upperdir=", &above.join("upper")),
        option("workdir=", &above.join("work")),
    ];
    let options = CString::new(options.join(&b","[..]))?;
    let flags = MountFlags::NODEV | MountFlags::NOSUID;
    Ok(mount(
        "overlay",
        &layout.files,
        "overlay",
        flags,
        options.as_c_str(),
    )?)
}

/// Gives the files that were put there to the owner of the image.
pub(super) fn give_away(layout: &DiskLayout) -> Result<(), DiskError> {
    let arguments = ["--recursive", "--no-dereference", IMAGE_OWNER].map(OsStr::new);
    let all = [&arguments[..], &[layout.files.as_os_str()]].concat();
    kernel::run("chown", &all).map(drop)
}
