//! The descriptors of the start message, by name.
//!
//! `SCM_RIGHTS` transfers a list without names. So the message says what each descriptor is, in the
//! order of the list, and the worker asks by name. A descriptor that is missing or that it did not
//! ask for is an error, and not another descriptor.

use std::fmt::{self, Display};
use std::os::fd::{BorrowedFd, OwnedFd};

use serde::{Deserialize, Serialize};

/// What a descriptor of the start message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StartDescriptor {
    /// A listener in the clear.
    Listener,
    /// A listener that speaks TLS.
    TlsListener,
    /// The statistics that workers share for accept balancing.
    SharedCounters,
    /// The connections per address of all workers.
    AddressBoard,
    /// The socket to the log process.
    Log,
    /// Certificates, keys and the secret of session tickets, for a worker that does handshakes itself.
    Keys,
}

impl Display for StartDescriptor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            StartDescriptor::Listener => "listener",
            StartDescriptor::TlsListener => "TLS listener",
            StartDescriptor::SharedCounters => "shared counters",
            StartDescriptor::AddressBoard => "connections per address",
            StartDescriptor::Log => "socket to the log process",
            StartDescriptor::Keys => "certificates and keys",
        })
    }
}

/// Descriptors that do not fit the start message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DescriptorError {
    /// Not as many descriptors arrived as the message names.
    #[error("start message: {named} descriptors are named and {arrived} arrived")]
    Count {
        /// Number of names.
        named: usize,
        /// Number of descriptors.
        arrived: usize,
    },
    /// One that the configuration needs is not there.
    #[error("start message: missing descriptor: {0}")]
    Missing(StartDescriptor),
    /// One that the configuration does not need is there.
    #[error("start message: unexpected descriptor: {0}")]
    Surplus(StartDescriptor),
}

/// The descriptors of a start message, to send.
#[derive(Debug, Default)]
pub struct OutgoingDescriptors<'fd> {
    /// Their names, which belong into the message.
    pub names: Vec<StartDescriptor>,
    /// The descriptors themselves.
    pub descriptors: Vec<BorrowedFd<'fd>>,
}

impl<'fd> OutgoingDescriptors<'fd> {
    /// Adds descriptors with one name.
    pub fn add(
        &mut self,
        name: StartDescriptor,
        descriptors: impl IntoIterator<Item = BorrowedFd<'fd>>,
    ) {
        self.descriptors.extend(descriptors);
        self.names.resize(self.descriptors.len(), name);
    }
}

/// The descriptors of a start message that has arrived.
#[derive(Debug)]
pub struct StartDescriptors(Vec<(StartDescriptor, OwnedFd)>);

impl StartDescriptors {
    /// Joins descriptors and names.
    ///
    /// # Errors
    /// If there are not as many of both.
    pub fn new(
        names: Vec<StartDescriptor>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<StartDescriptors, DescriptorError> {
        if names.len() != descriptors.len() {
            return Err(DescriptorError::Count {
                named: names.len(),
                arrived: descriptors.len(),
            });
        }
        Ok(StartDescriptors(
            names.into_iter().zip(descriptors).collect(),
        ))
    }

    /// Takes the first descriptor with this name.
    ///
    /// # Errors
    /// If there is none.
    pub fn take(&mut self, name: StartDescriptor) -> Result<OwnedFd, DescriptorError> {
        let position = self.0.iter().position(|(found, _)| *found == name);
        let position = position.ok_or(DescriptorError::Missing(name))?;
        Ok(self.0.remove(position).1)
    }

    /// Takes all descriptors with this name, in their order.
    ///
    /// # Errors
    /// If there is none.
    pub fn take_all(&mut self, name: StartDescriptor) -> Result<Vec<OwnedFd>, DescriptorError> {
        let all: Vec<OwnedFd> = self
            .0
            .extract_if(.., |(found, _)| *found == name)
            .map(|(_, one)| one)
            .collect();
        match all.is_empty() {
            true => Err(DescriptorError::Missing(name)),
            false => Ok(all),
        }
    }

    /// Takes the descriptor with this name if it is `wanted`.
    ///
    /// # Errors
    /// If it is wanted and there is none.
    pub fn take_if(
        &mut self,
        wanted: bool,
        name: StartDescriptor,
    ) -> Result<Option<OwnedFd>, DescriptorError> {
        wanted.then(|| self.take(name)).transpose()
    }

    /// Ends taking descriptors.
    ///
    /// # Errors
    /// If one is left.
    pub fn finish(self) -> Result<(), DescriptorError> {
        match self.0.first() {
            Some((name, _)) => Err(DescriptorError::Surplus(*name)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsFd, AsRawFd};

    fn descriptor() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    fn arrived(names: &[StartDescriptor]) -> StartDescriptors {
        let descriptors = names.iter().map(|_| descriptor()).collect();
        StartDescriptors::new(names.to_vec(), descriptors).unwrap()
    }

    #[test]
    fn descriptors_are_taken_by_name_whatever_their_order() {
        let (listener, log) = (descriptor(), descriptor());
        let (listener_number, log_number) = (listener.as_raw_fd(), log.as_raw_fd());
        let names = vec![StartDescriptor::Log, StartDescriptor::Listener];
        let mut arrived = StartDescriptors::new(names, vec![log, listener]).unwrap();
        let taken = arrived.take(StartDescriptor::Listener).unwrap();
        assert_eq!(taken.as_raw_fd(), listener_number);
        assert!(matches!(
            arrived.take_if(false, StartDescriptor::Log),
            Ok(None)
        ));
        let taken = arrived.take_if(true, StartDescriptor::Log).unwrap();
        assert_eq!(taken.unwrap().as_raw_fd(), log_number);
        assert_eq!(arrived.finish(), Ok(()));
    }

    #[test]
    fn missing_or_surplus_descriptor_is_named_in_the_error() {
        let mut two = arrived(&[StartDescriptor::Listener, StartDescriptor::AddressBoard]);
        let error = two.take(StartDescriptor::Log).unwrap_err();
        assert_eq!(
            error.to_string(),
            "start message: missing descriptor: socket to the log process"
        );
        two.take(StartDescriptor::Listener).unwrap();
        assert_eq!(
            two.take(StartDescriptor::Listener).unwrap_err(),
            DescriptorError::Missing(StartDescriptor::Listener)
        );
        assert_eq!(
            two.finish().unwrap_err().to_string(),
            "start message: unexpected descriptor: connections per address"
        );
    }

    #[test]
    fn count_of_names_and_descriptors_is_compared() {
        let error = StartDescriptors::new(vec![StartDescriptor::Listener], vec![]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "start message: 1 descriptors are named and 0 arrived"
        );
    }

    #[test]
    fn each_descriptor_gets_its_name_when_several_are_added() {
        let files = [descriptor(), descriptor(), descriptor()];
        let mut outgoing = OutgoingDescriptors::default();
        outgoing.add(
            StartDescriptor::Listener,
            files[..2].iter().map(AsFd::as_fd),
        );
        outgoing.add(StartDescriptor::AddressBoard, None);
        outgoing.add(StartDescriptor::Log, [files[2].as_fd()]);
        let names = [
            StartDescriptor::Listener,
            StartDescriptor::Listener,
            StartDescriptor::Log,
        ];
        assert_eq!(outgoing.names, names);
        assert_eq!(outgoing.descriptors[2].as_raw_fd(), files[2].as_raw_fd());
    }
}
