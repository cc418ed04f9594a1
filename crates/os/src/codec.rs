//! Messages between processes of one server, as bytes: a protocol is a table of messages.
//!
//! [`encoding!`](crate::encoding) takes the table and makes encoding and decoding of it, so the two
//! cannot differ. Each message has exactly one encoding, and everything else is [`Malformed`].
//! Transport is packets with descriptors ([`fd_passing`](crate::fd_passing)).
//!
//! A message is its number as a byte, then its fields in the order of the table. Integers are
//! little-endian and a bool is 0 or 1. A string or a list is its length as u32 and its bytes or
//! items. An option is a bool, and the value if there is one. A result is 0 and the value, or 1 and
//! the error.
//!
//! Both ends are the same binary, so no version is negotiated. The first message of a protocol has
//! a version all the same ([`Version`]), which finds a binary that was replaced meanwhile.

use std::borrow::Cow;
use std::error::Error;
use std::ffi::CString;
use std::fmt::{self, Display};

use rustix::io::Errno;

use crate::spawn::{SpawnError, SpawnStage};

/// Bytes that are no message of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed {
    /// The mistake in the message.
    pub what: &'static str,
}

impl Display for Malformed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "malformed message: {}", self.what)
    }
}

impl Error for Malformed {}

/// A part of a message, which may borrow from the bytes.
pub trait Field<'b>: Sized {
    /// Appends its encoding.
    fn write(&self, bytes: &mut Vec<u8>);

    /// Takes it from the front.
    ///
    /// # Errors
    /// If the bytes are not its encoding.
    fn read(bytes: &mut &'b [u8]) -> Result<Self, Malformed>;
}

/// Decodes a whole message.
///
/// # Errors
/// If the bytes are no message, or more than one.
pub fn decode<'b, M: Field<'b>>(mut bytes: &'b [u8]) -> Result<M, Malformed> {
    let message = M::read(&mut bytes)?;
    match bytes.is_empty() {
        true => Ok(message),
        false => Err(Malformed { what: "too long" }),
    }
}

/// Implements [`Field`](crate::codec::Field) for an enum, whose variants have numbers, or for a
/// struct.
///
/// The compiler checks that the table has every variant and every field. `field: codec` names a
/// module with functions `write` and `read`, for a field whose encoding differs from that of its
/// type. A type that borrows is written `enum<'b> Name`, an enum with type parameters `enum Name for
/// Name<u32>`.
///
/// ```
/// use headway_os::codec::{Field, Malformed, decode};
///
/// #[derive(Debug, PartialEq)]
/// enum Order {
///     Stop,
///     Wait { ms: u32 },
///     Say(std::ffi::CString),
/// }
///
/// headway_os::encoding! {
///     enum Order {
///         1 => Stop,
///         2 => Wait { ms },
///         3 => Say(text),
///     }
/// }
///
/// let mut bytes = Vec::new();
/// Order::Wait { ms: 258 }.write(&mut bytes);
/// assert_eq!(bytes, [2, 2, 1, 0, 0]);
/// assert_eq!(decode(&bytes), Ok(Order::Wait { ms: 258 }));
/// assert_eq!(decode::<Order>(&[4]), Err(Malformed { what: "unknown Order" }));
/// ```
#[macro_export]
macro_rules! encoding {
    (enum $name:ident { $($table:tt)* }) => {
        $crate::encoding! { @enum ['bytes] [$name] $name $($table)* }
    };
    (enum $name:ident for $type:ty { $($table:tt)* }) => {
        $crate::encoding! { @enum ['bytes] [$type] $name $($table)* }
    };
    (enum<$life:lifetime> $name:ident { $($table:tt)* }) => {
        $crate::encoding! { @enum [$life] [$name<$life>] $name $($table)* }
    };
    (struct $name:ident { $( $field:ident $(: $codec:ident)? ),* $(,)? }) => {
        impl<'bytes> $crate::codec::Field<'bytes> for $name {
            fn write(&self, bytes: &mut Vec<u8>) {
                let $name { $( $field ),* } = self;
                $( $crate::encoding! { @write bytes $field $($codec)? } )*
            }

            fn read(bytes: &mut &'bytes [u8]) -> Result<Self, $crate::codec::Malformed> {
                Ok($name { $( $field: $crate::encoding! { @read bytes $($codec)? } ),* })
            }
        }
    };
    (
        @enum [$life:lifetime] [$type:ty] $name:ident
        $(
            $number:literal => $variant:ident
            $({ $( $field:ident $(: $codec:ident)? ),* $(,)? })?
            $(( $value:ident $(: $value_codec:ident)? ))?
        ),* $(,)?
    ) => {
        impl<$life> $crate::codec::Field<$life> for $type {
            fn write(&self, bytes: &mut Vec<u8>) {
                match self {
                    $(
                        $name::$variant $({ $( $field ),* })? $(( $value ))? => {
                            bytes.push($number);
                            $( $( $crate::encoding! { @write bytes $field $($codec)? } )* )?
                            $( $crate::encoding! { @write bytes $value $($value_codec)? } )?
                        }
                    )*
                }
            }

            fn read(bytes: &mut &$life [u8]) -> Result<Self, $crate::codec::Malformed> {
                match <u8 as $crate::codec::Field>::read(bytes)? {
                    $(
                        $number => Ok(
                            $name::$variant
                            $({ $( $field: $crate::encoding! { @read bytes $($codec)? } ),* })?
                            $(({
                                let $value = $crate::encoding! { @read bytes $($value_codec)? };
                                $value
                            }))?
                        ),
                    )*
                    _ => Err($crate::codec::Malformed {
                        what: concat!("unknown ", stringify!($name)),
                    }),
                }
            }
        }
    };
    (@write $bytes:ident $value:ident) => {
        $crate::codec::Field::write($value, $bytes);
    };
    (@write $bytes:ident $value:ident $codec:ident) => {
        $codec::write($value, $bytes);
    };
    (@read $bytes:ident) => {
        $crate::codec::Field::read($bytes)?
    };
    (@read $bytes:ident $codec:ident) => {
        $codec::read($bytes)?
    };
}

/// The version of a protocol, in its first message. Another version does not decode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version<const NUMBER: u16>;

impl<'b, const NUMBER: u16> Field<'b> for Version<NUMBER> {
    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend(NUMBER.to_le_bytes());
    }

    fn read(bytes: &mut &'b [u8]) -> Result<Self, Malformed> {
        match u16::read(bytes)? == NUMBER {
            true => Ok(Version),
            false => Err(Malformed {
                what: "another version of the protocol",
            }),
        }
    }
}

macro_rules! integers {
    ($($type:ty),*) => {
        $(
            impl<'b> Field<'b> for $type {
                fn write(&self, bytes: &mut Vec<u8>) {
                    bytes.extend(self.to_le_bytes());
                }

                fn read(bytes: &mut &'b [u8]) -> Result<$type, Malformed> {
                    array(bytes).map(<$type>::from_le_bytes)
                }
            }
        )*
    };
}

integers!(u8, u16, u32, u64, i64);

impl<'b> Field<'b> for bool {
    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.push(u8::from(*self));
    }

    fn read(bytes: &mut &'b [u8]) -> Result<bool, Malformed> {
        match u8::read(bytes)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed {
                what: "a bool is neither 0 nor 1",
            }),
        }
    }
}

impl<'b> Field<'b> for CString {
    fn write(&self, bytes: &mut Vec<u8>) {
        (self.as_bytes().len() as u32).write(bytes);
        bytes.extend(self.as_bytes());
    }

    fn read(bytes: &mut &'b [u8]) -> Result<CString, Malformed> {
        let length = u32::read(bytes)? as usize;
        CString::new(take(bytes, length)?).map_err(|_| Malformed {
            what: "NUL in a string",
        })
    }
}

impl<'b, T: Field<'b>> Field<'b> for Vec<T> {
    fn write(&self, bytes: &mut Vec<u8>) {
        (self.len() as u32).write(bytes);
        self.iter().for_each(|item| item.write(bytes));
    }

    fn read(bytes: &mut &'b [u8]) -> Result<Vec<T>, Malformed> {
        // Nothing is reserved for a length that may be wrong.
        let mut items = Vec::new();
        for _ in 0..u32::read(bytes)? {
            items.push(T::read(bytes)?);
        }
        Ok(items)
    }
}

impl<'b, T: Field<'b>> Field<'b> for Option<T> {
    fn write(&self, bytes: &mut Vec<u8>) {
        self.is_some().write(bytes);
        self.iter().for_each(|value| value.write(bytes));
    }

    fn read(bytes: &mut &'b [u8]) -> Result<Option<T>, Malformed> {
        bool::read(bytes)?.then(|| T::read(bytes)).transpose()
    }
}

impl<'b, T: Field<'b>, E: Field<'b>> Field<'b> for Result<T, E> {
    fn write(&self, bytes: &mut Vec<u8>) {
        self.is_err().write(bytes);
        match self {
            Ok(value) => value.write(bytes),
            Err(error) => error.write(bytes),
        }
    }

    fn read(bytes: &mut &'b [u8]) -> Result<Result<T, E>, Malformed> {
        Ok(match bool::read(bytes)? {
            false => Ok(T::read(bytes)?),
            true => Err(E::read(bytes)?),
        })
    }
}

impl<'b, A: Field<'b>, B: Field<'b>> Field<'b> for (A, B) {
    fn write(&self, bytes: &mut Vec<u8>) {
        self.0.write(bytes);
        self.1.write(bytes);
    }

    fn read(bytes: &mut &'b [u8]) -> Result<(A, B), Malformed> {
        Ok((A::read(bytes)?, B::read(bytes)?))
    }
}

impl<'b, T: Field<'b>, const LENGTH: usize> Field<'b> for [T; LENGTH] {
    fn write(&self, bytes: &mut Vec<u8>) {
        self.iter().for_each(|item| item.write(bytes));
    }

    fn read(bytes: &mut &'b [u8]) -> Result<[T; LENGTH], Malformed> {
        // Without an allocation.
        let mut error = None;
        let items = std::array::from_fn(|_| {
            let item: Result<T, Malformed> = T::read(bytes);
            item.map_err(|malformed| error = Some(malformed)).ok()
        });
        match error {
            Some(malformed) => Err(malformed),
            None => Ok(items.map(|item| item.expect("every item was read"))),
        }
    }
}

impl<'b> Field<'b> for Cow<'b, str> {
    fn write(&self, bytes: &mut Vec<u8>) {
        (self.len() as u32).write(bytes);
        bytes.extend(self.as_bytes());
    }

    fn read(bytes: &mut &'b [u8]) -> Result<Cow<'b, str>, Malformed> {
        let length = u32::read(bytes)? as usize;
        let text = std::str::from_utf8(take(bytes, length)?);
        text.map(Cow::Borrowed)
            .map_err(|_| Malformed { what: "not UTF-8" })
    }
}

impl<'b> Field<'b> for SpawnError {
    fn write(&self, bytes: &mut Vec<u8>) {
        self.step.number().write(bytes);
        (self.errno.raw_os_error() as u32).write(bytes);
    }

    fn read(bytes: &mut &'b [u8]) -> Result<SpawnError, Malformed> {
        let step = SpawnStage::from_number(u8::read(bytes)?);
        Ok(SpawnError {
            step: step.ok_or(Malformed {
                what: "unknown step",
            })?,
            errno: read_errno(bytes)?,
        })
    }
}

/// rustix panics at a number that no call returns.
fn read_errno(bytes: &mut &[u8]) -> Result<Errno, Malformed> {
    match u32::read(bytes)? {
        number @ 1..4096 => Ok(Errno::from_raw_os_error(number as i32)),
        _ => Err(Malformed {
            what: "no error number",
        }),
    }
}

/// Takes this many bytes from the front.
///
/// # Errors
/// If there are fewer.
pub fn take<'b>(bytes: &mut &'b [u8], length: usize) -> Result<&'b [u8], Malformed> {
    bytes
        .split_off(..length)
        .ok_or(Malformed { what: "too short" })
}

fn array<const LENGTH: usize>(bytes: &mut &[u8]) -> Result<[u8; LENGTH], Malformed> {
    let (first, rest) = bytes
        .split_first_chunk()
        .ok_or(Malformed { what: "too short" })?;
    *bytes = rest;
    Ok(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    enum Message<'b> {
        Start {
            version: Version<3>,
            name: Option<CString>,
        },
        List(Vec<Item>),
        Stop,
        Path {
            root: u16,
            path: &'b [u8],
        },
    }

    encoding! {
        enum<'b> Message {
            1 => Start { version, name },
            2 => List(items),
            3 => Path { root, path: rest },
            200 => Stop,
        }
    }

    #[derive(Clone, Debug, PartialEq)]
    struct Item {
        size: u64,
        known: bool,
        changed: Result<(i64, u32), [bool; 2]>,
    }

    encoding! {
        struct Item { size, known, changed }
    }

    /// At most three bytes, to the end of the message.
    mod rest {
        use super::*;

        pub fn write(value: &[u8], bytes: &mut Vec<u8>) {
            bytes.extend(value);
        }

        pub fn read<'b>(bytes: &mut &'b [u8]) -> Result<&'b [u8], Malformed> {
            let what = "path too long";
            match bytes.len() <= 3 {
                true => take(bytes, bytes.len()),
                false => Err(Malformed { what }),
            }
        }
    }

    fn encoded(message: &Message<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        message.write(&mut bytes);
        bytes
    }

    fn messages() -> Vec<Message<'static>> {
        let item = |size, known| Item {
            size,
            known,
            changed: if known {
                Ok((-1, 2))
            } else {
                Err([known, true])
            },
        };
        vec![
            Message::Start {
                version: Version,
                name: Some(c"a".into()),
            },
            Message::Start {
                version: Version,
                name: None,
            },
            Message::List(vec![]),
            Message::List(vec![item(1, true), item(u64::MAX, false)]),
            Message::Stop,
        ]
    }

    #[test]
    fn messages_read_back_as_written_and_no_part_of_one_does() {
        for message in messages() {
            let bytes = encoded(&message);
            assert_eq!(decode(&bytes), Ok(message));
            for length in 0..bytes.len() {
                let part = decode::<Message<'_>>(&bytes[..length]);
                assert!(part.is_err(), "{length} of {bytes:?}");
            }
            let longer = [&bytes[..], &[0]].concat();
            let too_long = Err(Malformed { what: "too long" });
            assert_eq!(decode::<Message<'_>>(&longer), too_long);
        }
    }

    #[test]
    fn encoding_is_the_number_and_the_fields_in_order() {
        let bytes: Vec<Vec<u8>> = messages().iter().map(encoded).collect();
        assert_eq!(bytes[0], [1, 3, 0, 1, 1, 0, 0, 0, b'a']);
        assert_eq!(bytes[1], [1, 3, 0, 0]);
        assert_eq!(bytes[4], [200]);
    }

    #[test]
    fn field_has_the_encoding_of_its_codec_when_one_is_named() {
        let message = Message::Path {
            root: 258,
            path: b"a/b",
        };
        let bytes = encoded(&message);
        assert_eq!(bytes, [3, 2, 1, b'a', b'/', b'b']);
        assert_eq!(decode(&bytes), Ok(message));
        let what = "path too long";
        let longer = [&bytes[..], b"c"].concat();
        assert_eq!(decode::<Message<'_>>(&longer), Err(Malformed { what }));
    }

    #[test]
    fn what_is_not_in_the_table_is_malformed() {
        let cases: [(&[u8], &str); 6] = [
            (&[], "too short"),
            (&[4], "unknown Message"),
            (&[1, 4, 0, 0], "another version of the protocol"),
            (&[1, 3, 0, 2], "a bool is neither 0 nor 1"),
            (&[1, 3, 0, 1, 1, 0, 0, 0, 0], "NUL in a string"),
            (&[2, 255, 255, 255, 255], "too short"),
        ];
        for (bytes, what) in cases {
            assert_eq!(decode::<Message<'_>>(bytes), Err(Malformed { what }));
        }
    }
}
