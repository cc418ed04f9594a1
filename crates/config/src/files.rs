//! What files are to clients: their tags, and which of their names are followed.

use super::strategy::named_values;

named_values! {
    /// What the entity tag of a file is made of.
    EtagSource, "kind of tag" {
        /// Modification time and size, which copies of a site on several servers share.
        #[default]
        MtimeSize = "mtime-size",
        /// The same, and the inode number.
        Inode = "inode",
        /// A checksum of the content, up to `small-file-max`. Larger files have `mtime-size`.
        Content = "content",
    }
}

named_values! {
    /// Which symbolic links below a root are followed.
    Symlinks, "choice of symbolic links" {
        /// Those that lead to something in the root, also if their target is written absolutely.
        #[default]
        Inside = "inside",
        /// Those with the same owner as what they lead to, wherever that is.
        Owner = "owner",
        /// None.
        None = "none",
        /// All, wherever they lead.
        Any = "any",
    }
}
