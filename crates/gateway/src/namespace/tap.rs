//! The guest's TAP, opened by a child process in the guest's namespaces.

use std::io;
use std::os::fd::OwnedFd;

use fullsend_device::Tun;

use super::child::{Message, in_child};
use super::interface::{Interface, InterfaceSetup, find, raise_queue_len};
use super::netlink::Netlink;
use super::{Namespaces, failed};

/// Most lines of a message, with the name and the refused routes.
const LINES_MAX: usize = 64;

/// An open TAP of another network namespace.
#[derive(Debug)]
pub struct Tap {
    /// The file, for [`fullsend_device::TunBuilder::adopt`]. It keeps the network namespace alive.
    pub file: OwnedFd,
    /// The interface's name.
    pub name: String,
    /// Size of the largest IP packet, bytes.
    pub mtu: u32,
    /// The guest's Ethernet address.
    pub mac: [u8; 6],
    /// The routes that the kernel has refused, one line each; if there are many, the first ones.
    pub refused: Vec<String>,
}

/// Opens the TAP `name` in `namespaces`, and configures it if `setup` is given.
///
/// An existing interface is used, e.g. a persistent one of the caller; otherwise one is created, and ends
/// with the file.
///
/// # Errors
/// The error of entering the namespaces, opening the TAP or applying a setting, with its text.
pub fn open_tap(
    namespaces: &Namespaces,
    name: &str,
    setup: Option<&InterfaceSetup>,
) -> io::Result<Tap> {
    let message = in_child(|| {
        namespaces.enter()?;
        open_here(name, setup)
    });
    decode(&mut message?)
}

/// Opens and configures the TAP in the caller's namespaces.
pub(super) fn open_here(name: &str, setup: Option<&InterfaceSetup>) -> io::Result<Message> {
    let (file, name) = Tun::tap(name).open_file()?;
    let mut netlink = Netlink::open().map_err(|e| failed("open a netlink socket", e))?;
    let interface = find(&mut netlink, &name)?;
    raise_queue_len(&mut netlink, &interface);
    let refused = match setup {
        Some(setup) => setup.apply(&mut netlink, &name)?,
        None => Vec::new(),
    };
    let interface = find(&mut netlink, &name)?;
    Ok(encode(&interface, &refused, file))
}

fn encode(interface: &Interface, refused: &[String], file: OwnedFd) -> Message {
    let mac = interface.mac.unwrap_or_default();
    let name = [interface.name.clone()];
    let lines: Vec<_> = name
        .iter()
        .chain(refused)
        .take(LINES_MAX)
        .cloned()
        .collect();
    let lines = lines.join("\n");
    let bytes = [&interface.mtu.to_ne_bytes()[..], &mac[..], lines.as_bytes()];
    Message {
        bytes: bytes.concat(),
        fds: vec![file],
    }
}

/// Removes the TAP's file from a message, whose other files stay, and returns the TAP.
pub(super) fn decode(message: &mut Message) -> io::Result<Tap> {
    let file = (!message.fds.is_empty()).then(|| message.fds.remove(0));
    let bytes = message.bytes.split_at_checked(10);
    let (Some(file), Some((fixed, lines))) = (file, bytes) else {
        return Err(io::Error::other("the child process passed no TAP"));
    };
    let (mtu, mac) = fixed.split_at(4);
    let lines = String::from_utf8_lossy(lines);
    let mut lines = lines.lines().map(str::to_owned);
    Ok(Tap {
        file,
        name: lines.next().unwrap_or_default(),
        mtu: u32::from_ne_bytes(mtu.try_into().expect("four bytes")),
        mac: mac.try_into().expect("six bytes"),
        refused: lines.collect(),
    })
}
