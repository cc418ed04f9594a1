//! Messages between processes of one server, as bytes: a protocol is a table of messages.
//!
//! [`messages!`](crate::messages) takes the table and makes the type, its encoding and its decoding
//! of it, so the three cannot differ. Each message has exactly one encoding, and everything else is
//! [`Malformed`]. Transport is packets with descriptors ([`fd_passing`](crate::fd_passing)).
//!
//! A message is its number as a byte, then its fields. Integers are little-endian, a bool is 0 or
//! 1, a string is its length as u32 and its bytes, a list its length as u32 and its items, an
//! option a bool and the value if there is one.
//!
//! Both ends are the same binary, so no version is negotiated. The first message of a protocol has
//! a version all the same ([`Version`]), which finds a binary that was replaced meanwhile.

use std::error::Error;
use std::ffi::CString;
use std::fmt::{self, Display};

use rustix::io::Errno;

use crate::spawn::{SpawnError, SpawnStage};

/// Bytes that are no message of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed {
    /// What is wrong.
    pub what: &'static str,
}

impl Display for Malformed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "malformed message: {}", self.what)
    }
}

impl Error for Malformed {}

/// A part of a message.
pub trait Field: Sized {
    /// Appends its encoding.
    fn write(&self, bytes: &mut Vec<u8>);

    /// Takes it from the front.
    ///
    /// # Errors
    /// If the bytes are not its encoding.
    fn read(bytes: &mut &[u8]) -> Result<Self, Malformed>;
}

/// Decodes a whole message.
///
/// # Errors
/// If the bytes are no message, or more than one.
pub fn decode<M: Field>(mut bytes: &[u8]) -> Result<M, Malformed> {
    let message = M::read(&mut bytes)?;
    match bytes.is_empty() {
        true => Ok(message),
        false => Err(Malformed { what: "too long" }),
    }
}

/// Defines the messages of a protocol, or a type that is one of several: an `enum` with a number
/// for each variant. Also defines a `struct` that is a field of messages.
///
/// ```
/// use headway_os::codec::{Field, Malformed, decode};
///
/// headway_os::messages! {
///     /// What the client wants.
///     #[derive(Debug, PartialEq)]
///     pub enum Order {
///         /// Stop.
///         1 => Stop,
///         /// Wait.
///         2 => Wait {
///             /// For this time.
///             ms: u32,
///         },
///         /// Say something.
///         3 => Say(text: std::ffi::CString),
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
macro_rules! messages {
    (
        $(#[$attribute:meta])*
        $access:vis enum $name:ident {
            $(
                $(#[$variant_attribute:meta])*
                $number:literal => $variant:ident
                $({ $( $(#[$field_attribute:meta])* $field:ident: $type:ty ),* $(,)? })?
                $(( $value:ident: $value_type:ty ))?
            ),* $(,)?
        }
    ) => {
        $(#[$attribute])*
        $access enum $name {
            $(
                $(#[$variant_attribute])*
                $variant
                $({ $( $(#[$field_attribute])* $field: $type ),* })?
                $(( $value_type ))?
            ),*
        }

        impl $crate::codec::Field for $name {
            fn write(&self, bytes: &mut Vec<u8>) {
                match self {
                    $(
                        $name::$variant $({ $( $field ),* })? $(( $value ))? => {
                            bytes.push($number);
                            $( $( $crate::codec::Field::write($field, bytes); )* )?
                            $( $crate::codec::Field::write($value, bytes); )?
                        }
                    )*
                }
            }

            fn read(bytes: &mut &[u8]) -> Result<$name, $crate::codec::Malformed> {
                match <u8 as $crate::codec::Field>::read(bytes)? {
                    $(
                        $number => Ok(
                            $name::$variant
                            $({ $( $field: $crate::codec::Field::read(bytes)? ),* })?
                            $(( <$value_type as $crate::codec::Field>::read(bytes)? ))?
                        ),
                    )*
                    _ => Err($crate::codec::Malformed {
                        what: concat!("unknown ", stringify!($name)),
                    }),
                }
            }
        }
    };
    (
        $(#[$attribute:meta])*
        $access:vis struct $name:ident {
            $( $(#[$field_attribute:meta])* $field_access:vis $field:ident: $type:ty ),* $(,)?
        }
    ) => {
        $(#[$attribute])*
        $access struct $name {
            $( $(#[$field_attribute])* $field_access $field: $type ),*
        }

        impl $crate::codec::Field for $name {
            fn write(&self, bytes: &mut Vec<u8>) {
                $( $crate::codec::Field::write(&self.$field, bytes); )*
            }

            fn read(bytes: &mut &[u8]) -> Result<$name, $crate::codec::Malformed> {
                Ok($name { $( $field: $crate::codec::Field::read(bytes)? ),* })
            }
        }
    };
}

/// The version of a protocol, in its first message. Another version does not decode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version<const NUMBER: u16>;

impl<const NUMBER: u16> Field for Version<NUMBER> {
    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend(NUMBER.to_le_bytes());
    }

    fn read(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        match u16::from_le_bytes(array(bytes)?) == NUMBER {
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
            impl Field for $type {
                fn write(&self, bytes: &mut Vec<u8>) {
                    bytes.extend(self.to_le_bytes());
                }

                fn read(bytes: &mut &[u8]) -> Result<$type, Malformed> {
                    array(bytes).map(<$type>::from_le_bytes)
                }
            }
        )*
    };
}

integers!(u8, u32, u64);

impl Field for bool {
    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.push(u8::from(*self));
    }

    fn read(bytes: &mut &[u8]) -> Result<bool, Malformed> {
        match u8::read(bytes)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed {
                what: "a bool is neither 0 nor 1",
            }),
        }
    }
}

impl Field for CString {
    fn write(&self, bytes: &mut Vec<u8>) {
        (self.as_bytes().len() as u32).write(bytes);
        bytes.extend(self.as_bytes());
    }

    fn read(bytes: &mut &[u8]) -> Result<CString, Malformed> {
        let length = u32::read(bytes)? as usize;
        CString::new(take(bytes, length)?).map_err(|_| Malformed {
            what: "NUL in a string",
        })
    }
}

impl<T: Field> Field for Vec<T> {
    fn write(&self, bytes: &mut Vec<u8>) {
        (self.len() as u32).write(bytes);
        self.iter().for_each(|item| item.write(bytes));
    }

    fn read(bytes: &mut &[u8]) -> Result<Vec<T>, Malformed> {
        // Nothing is reserved for a length that may be wrong.
        let mut items = Vec::new();
        for _ in 0..u32::read(bytes)? {
            items.push(T::read(bytes)?);
        }
        Ok(items)
    }
}

impl<T: Field> Field for Option<T> {
    fn write(&self, bytes: &mut Vec<u8>) {
        self.is_some().write(bytes);
        self.iter().for_each(|value| value.write(bytes));
    }

    fn read(bytes: &mut &[u8]) -> Result<Option<T>, Malformed> {
        bool::read(bytes)?.then(|| T::read(bytes)).transpose()
    }
}

impl Field for SpawnError {
    fn write(&self, bytes: &mut Vec<u8>) {
        self.step.number().write(bytes);
        (self.errno.raw_os_error() as u32).write(bytes);
    }

    fn read(bytes: &mut &[u8]) -> Result<SpawnError, Malformed> {
        let step = SpawnStage::from_number(u8::read(bytes)?);
        Ok(SpawnError {
            step: step.ok_or(Malformed {
                what: "unknown step",
            })?,
            errno: Errno::from_raw_os_error(u32::read(bytes)? as i32),
        })
    }
}

fn take<'b>(bytes: &mut &'b [u8], length: usize) -> Result<&'b [u8], Malformed> {
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

    messages! {
        #[derive(Clone, Debug, PartialEq)]
        enum Message {
            1 => Start {
                version: Version<3>,
                name: Option<CString>,
            },
            2 => List(items: Vec<Item>),
            200 => Stop,
        }
    }

    messages! {
        #[derive(Clone, Debug, PartialEq)]
        struct Item {
            size: u64,
            known: bool,
        }
    }

    fn encoded(message: &Message) -> Vec<u8> {
        let mut bytes = Vec::new();
        message.write(&mut bytes);
        bytes
    }

    fn messages() -> Vec<Message> {
        let item = |size, known| Item { size, known };
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
                assert!(decode::<Message>(&bytes[..length]).is_err(), "{length}");
            }
            let longer = [&bytes[..], &[0]].concat();
            let too_long = Err(Malformed { what: "too long" });
            assert_eq!(decode::<Message>(&longer), too_long);
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
    fn what_is_not_in_the_table_is_malformed() {
        let cases: [(&[u8], &str); 6] = [
            (&[], "too short"),
            (&[3], "unknown Message"),
            (&[1, 4, 0, 0], "another version of the protocol"),
            (&[1, 3, 0, 2], "a bool is neither 0 nor 1"),
            (&[1, 3, 0, 1, 1, 0, 0, 0, 0], "NUL in a string"),
            (&[2, 255, 255, 255, 255], "too short"),
        ];
        for (bytes, what) in cases {
            assert_eq!(decode::<Message>(bytes), Err(Malformed { what }));
        }
    }
}
