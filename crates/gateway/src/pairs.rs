//! Ordered pairs of names and values in one allocation: the storage of field lists and variables.

/// Pairs of byte strings. Both are bounded by the heads they come from, far below 4 GiB.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Pairs {
    /// Name, value, name, value…
    bytes: Vec<u8>,
    /// Where each name and each value ends.
    ends: Vec<(u32, u32)>,
}

impl Pairs {
    pub(crate) fn push(&mut self, name: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(name);
        self.push_value_of_name_just_written(value);
    }

    /// Adds a pair; the bytes of the name are mapped by `change`.
    pub(crate) fn push_changed(&mut self, name: &[u8], change: impl Fn(u8) -> u8, value: &[u8]) {
        self.bytes.extend(name.iter().map(|byte| change(*byte)));
        self.push_value_of_name_just_written(value);
    }

    fn push_value_of_name_just_written(&mut self, value: &[u8]) {
        let name_end = self.bytes.len() as u32;
        self.bytes.extend_from_slice(value);
        self.ends.push((name_end, self.bytes.len() as u32));
    }

    /// Appends to the value of the last pair.
    pub(crate) fn extend_last(&mut self, separator: &[u8], value: &[u8]) {
        if let Some((_, value_end)) = self.ends.last_mut() {
            self.bytes.extend_from_slice(separator);
            self.bytes.extend_from_slice(value);
            *value_end = self.bytes.len() as u32;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let starts = std::iter::once(0).chain(self.ends.iter().map(|(_, value_end)| *value_end));
        starts
            .zip(&self.ends)
            .map(|(start, (name_end, value_end))| {
                (
                    &self.bytes[start as usize..*name_end as usize],
                    &self.bytes[*name_end as usize..*value_end as usize],
                )
            })
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&[u8], &[u8]) -> bool) {
        let mut kept = Pairs::default();
        for (name, value) in self.iter().filter(|(name, value)| keep(name, value)) {
            kept.push(name, value);
        }
        *self = kept;
    }
}
