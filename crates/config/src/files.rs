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
