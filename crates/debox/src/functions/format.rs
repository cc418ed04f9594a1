//! The layout of a `funcgraph_exit` event, which describes a function's whole call when it returns.
//!
//! The kernel describes its events in tracefs, since fields have been added (`retval`) and may be
//! added again. An event that has all the fields we need is accepted, whatever else it has.
//!
//! Source: Documentation/trace/events.rst, "Event formats"; kernel/trace/trace_entries.h.

/// A field of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Field {
    offset: usize,
    size: usize,
}

/// The layout of the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitFormat {
    id: u16,
    thread: Field,
    function: Field,
    depth: Field,
    called: Field,
    returned: Field,
}

/// A function that has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The thread that ran it.
    pub thread: u32,
    /// The address of the tracer's hook in the function: its start, or behind the landing
    /// instruction at its start.
    pub address: u64,
    /// How many traced functions it is called from.
    pub depth: u16,
    /// When the function was called, on the tracer's own clock, which is not that of the ring.
    pub called_ns: u64,
    /// The time from its call to its return, on the same clock.
    pub length_ns: u64,
}

impl ExitFormat {
    /// From the text of `events/ftrace/funcgraph_exit/format`. `None` if a field is missing.
    pub fn parse(text: &str) -> Option<ExitFormat> {
        let id = text.lines().find_map(|line| line.strip_prefix("ID:"))?;
        let field = |name: &str| {
            let line = text.lines().find(|line| names(line, name))?;
            let field = Field {
                offset: number(line, "offset:")?,
                size: number(line, "size:")?,
            };
            matches!(field.size, 1 | 2 | 4 | 8).then_some(field)
        };
        Some(ExitFormat {
            id: id.trim().parse().ok()?,
            thread: field("common_pid")?,
            function: field("func")?,
            depth: field("depth")?,
            called: field("calltime")?,
            returned: field("rettime")?,
        })
    }

    /// The function of an event; `None` if it is another kind of event.
    pub fn read(&self, event: &[u8]) -> Option<Exit> {
        let id = u16::from_ne_bytes(event.get(..2)?.try_into().ok()?);
        if id != self.id {
            return None;
        }
        let (called, returned) = (self.called.of(event)?, self.returned.of(event)?);
        Some(Exit {
            thread: self.thread.of(event)? as u32,
            address: self.function.of(event)?,
            depth: u16::try_from(self.depth.of(event)?).unwrap_or(u16::MAX),
            called_ns: called,
            length_ns: returned.saturating_sub(called),
        })
    }
}

impl Field {
    fn of(self, event: &[u8]) -> Option<u64> {
        let bytes = event.get(self.offset..self.offset.checked_add(self.size)?)?;
        let mut word = [0; 8];
        word[..self.size].copy_from_slice(bytes);
        Some(u64::from_le_bytes(word))
    }
}

/// Whether a line declares the field of this name: `field:unsigned long func;` and its position.
fn names(line: &str, name: &str) -> bool {
    let declaration = line.trim_start().strip_prefix("field:");
    let declaration = declaration.and_then(|rest| rest.split(';').next());
    declaration.is_some_and(|declaration| declaration.split(' ').next_back() == Some(name))
}

fn number(line: &str, key: &str) -> Option<usize> {
    let rest = &line[line.find(key)? + key.len()..];
    rest.split(';').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{Exit, ExitFormat};

    /// With `retval`, as kernels with `CONFIG_FUNCTION_GRAPH_RETVAL` have it.
    const FORMAT: &str = "name: funcgraph_exit\nID: 10\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:unsigned long func;\toffset:8;\tsize:8;\tsigned:0;\n\
        \tfield:unsigned long retval;\toffset:16;\tsize:8;\tsigned:0;\n\
        \tfield:int depth;\toffset:24;\tsize:4;\tsigned:1;\n\
        \tfield:unsigned int overrun;\toffset:28;\tsize:4;\tsigned:0;\n\
        \tfield:unsigned long long calltime;\toffset:32;\tsize:8;\tsigned:0;\n\
        \tfield:unsigned long long rettime;\toffset:40;\tsize:8;\tsigned:0;\n";

    fn event(id: u16) -> Vec<u8> {
        let mut event = id.to_ne_bytes().to_vec();
        event.extend([0, 0]);
        event.extend(77_u32.to_ne_bytes());
        event.extend(0xffff_ffff_8100_0000_u64.to_ne_bytes());
        event.extend(0_u64.to_ne_bytes());
        event.extend(3_u32.to_ne_bytes());
        event.extend(0_u32.to_ne_bytes());
        event.extend(1000_u64.to_ne_bytes());
        event.extend(1250_u64.to_ne_bytes());
        event
    }

    #[test]
    fn fields_are_read_at_the_offsets_of_the_format_when_it_has_additional_fields() {
        let format = ExitFormat::parse(FORMAT).expect("all fields are there");
        let exit = Exit {
            thread: 77,
            address: 0xffff_ffff_8100_0000,
            depth: 3,
            called_ns: 1000,
            length_ns: 250,
        };
        assert_eq!(format.read(&event(10)), Some(exit));
        assert_eq!(format.read(&event(11)), None);
        assert_eq!(format.read(&event(10)[..40]), None);
    }

    #[test]
    fn format_is_refused_when_a_field_is_missing_or_no_number() {
        assert_eq!(ExitFormat::parse(""), None);
        assert_eq!(
            ExitFormat::parse(&FORMAT.replace(" calltime", " begun")),
            None
        );
        assert_eq!(ExitFormat::parse(&FORMAT.replace("size:4", "size:3")), None);
    }
}
