//! Properties of an interface that ethtool(8) shows.

use std::io;

use super::Iface;

const ETHTOOL_GDRVINFO: u32 = 0x3;
const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct Channels {
    cmd: u32,
    max: [u32; 4],
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct DriverInfo {
    cmd: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

/// The receive queues of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReceiveQueues {
    pub(crate) count: u32,
    /// Whether each queue is also a transmit queue.
    pub(crate) combined: bool,
}

impl Iface {
    /// Calls the `SIOCETHTOOL` request.
    ///
    /// # Safety
    /// `T` must be the structure of the command that its first field names.
    unsafe fn ethtool<T>(&self, value: &mut T) -> io::Result<()> {
        let mut req = self.name.request();
        req.ifr_ifru.ifru_data = std::ptr::from_mut(value).cast();
        self.call(libc::SIOCETHTOOL, &mut req)
    }

    /// Returns the receive queues in use, or one queue if the driver does not report them.
    pub(crate) fn receive_queues(&self) -> ReceiveQueues {
        let mut channels = Channels {
            cmd: ETHTOOL_GCHANNELS,
            ..Channels::default()
        };
        // SAFETY: the structure of this command.
        match unsafe { self.ethtool(&mut channels) } {
            Ok(()) => ReceiveQueues {
                count: channels.combined.saturating_add(channels.rx).max(1),
                combined: channels.combined > 0,
            },
            Err(_) => ReceiveQueues {
                count: 1,
                combined: true,
            },
        }
    }

    /// Returns whether the interface is an end of a veth pair.
    pub(crate) fn is_veth(&self) -> bool {
        let mut info = DriverInfo {
            cmd: ETHTOOL_GDRVINFO,
            driver: [0; 32],
            rest: [0; 160],
        };
        // SAFETY: the structure of this command.
        let got = unsafe { self.ethtool(&mut info) };
        got.is_ok() && info.driver.starts_with(b"veth\0")
    }
}
