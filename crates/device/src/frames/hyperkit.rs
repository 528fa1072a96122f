//! The handshake of HyperKit and VPNKit: a hello that is echoed, and a command that is answered with the
//! settings of the guest's interface.

use std::io;

/// Magic bytes, version and commit of the peer.
const HELLO_LEN: usize = 49;
const MAGIC: &[u8] = b"VMN3T";
/// The command's type and the interface's UUID.
const COMMAND_LEN: usize = 41;
const COMMAND_ETHERNET: u8 = 1;
const REPLY_LEN: usize = 258;
const REPLY_INTERFACE: u8 = 1;
const ETHERNET_HEADER_LEN: u16 = 14;

/// A handshake in progress, which reads exactly its own bytes and none of the following frames.
#[derive(Debug)]
pub(super) struct Handshake {
    guest_mac: [u8; 6],
    mtu: u16,
    received: Vec<u8>,
    has_hello: bool,
}

impl Handshake {
    pub(super) fn new(guest_mac: [u8; 6], mtu: u32) -> Self {
        Self {
            guest_mac,
            mtu: u16::try_from(mtu).unwrap_or(u16::MAX),
            received: Vec::with_capacity(HELLO_LEN),
            has_hello: false,
        }
    }

    /// Returns the number of bytes missing from the current message, at least 1.
    pub(super) fn wanted(&self) -> usize {
        self.len() - self.received.len()
    }

    const fn len(&self) -> usize {
        if self.has_hello {
            COMMAND_LEN
        } else {
            HELLO_LEN
        }
    }

    /// Processes received bytes, at most [`wanted`](Self::wanted). Returns the answer when a message is
    /// complete, and whether that completes the handshake.
    ///
    /// # Errors
    /// `InvalidData` for messages of another protocol.
    pub(super) fn receive(&mut self, bytes: &[u8]) -> io::Result<Option<(Vec<u8>, bool)>> {
        self.received.extend_from_slice(bytes);
        if self.received.len() < self.len() {
            return Ok(None);
        }
        if !self.has_hello {
            if !self.received.starts_with(MAGIC) {
                return Err(invalid("the hello does not begin with VMN3T"));
            }
            self.has_hello = true;
            let echo = std::mem::take(&mut self.received);
            return Ok(Some((echo, false)));
        }
        if self.received[0] != COMMAND_ETHERNET {
            let text = format!("the command {} is not 1 (Ethernet)", self.received[0]);
            return Err(invalid(&text));
        }
        let mut reply = vec![0; REPLY_LEN];
        reply[0] = REPLY_INTERFACE;
        reply[1..3].copy_from_slice(&self.mtu.to_le_bytes());
        let longest = self.mtu.saturating_add(ETHERNET_HEADER_LEN);
        reply[3..5].copy_from_slice(&longest.to_le_bytes());
        reply[5..11].copy_from_slice(&self.guest_mac);
        Ok(Some((reply, true)))
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("{what}; the peer does not use the protocol of HyperKit"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [0x5a, 0x94, 0xef, 0xe4, 0x0c, 0xee];

    fn hello() -> Vec<u8> {
        [MAGIC, &[0x7f; HELLO_LEN - MAGIC.len()]].concat()
    }

    #[test]
    fn the_hello_is_echoed_and_the_command_answered() {
        let mut handshake = Handshake::new(MAC, 1500);
        assert_eq!(handshake.wanted(), 49);
        assert_eq!(handshake.receive(&hello()[..40]).unwrap(), None);
        assert_eq!(handshake.wanted(), 9);
        let echo = handshake.receive(&hello()[40..]).unwrap();
        assert_eq!(echo, Some((hello(), false)));
        assert_eq!(handshake.wanted(), 41);
        let (reply, complete) = handshake.receive(&[1; 41]).unwrap().unwrap();
        assert!(complete);
        assert_eq!(reply.len(), 258);
        assert_eq!(reply[..5], [1, 0xdc, 0x05, 0xea, 0x05]);
        assert_eq!(reply[5..11], MAC);
    }

    #[test]
    fn other_protocols_are_errors() {
        let mut handshake = Handshake::new(MAC, 1500);
        assert!(handshake.receive(&[0; 49]).is_err());
        let mut handshake = Handshake::new(MAC, 1500);
        let _ = handshake.receive(&hello()).unwrap();
        assert!(handshake.receive(&[2; 41]).is_err());
    }
}
