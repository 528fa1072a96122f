//! The entry point of the library for packetdrill: one function that fills a table of functions.

use std::ffi::{CStr, c_char, c_void};

use crate::{calls, instance, netdev};

/// A function of the table, whose type is given by its position.
type Slot = *const c_void;

/// `struct packetdrill_interface`: 33 pointers.
#[repr(C)]
pub(crate) struct Interface {
    userdata: *mut c_void,
    functions: [Slot; 32],
}

const _: () = assert!(size_of::<Interface>() == 33 * size_of::<usize>());

/// Returns the functions in the order of packetdrill's table.
fn functions() -> [Slot; 32] {
    [
        calls::free as Slot,
        calls::socket as Slot,
        calls::bind as Slot,
        calls::listen as Slot,
        calls::accept as Slot,
        calls::connect as Slot,
        calls::read as Slot,
        calls::readv as Slot,
        calls::recv as Slot,
        calls::recvfrom as Slot,
        calls::recvmsg as Slot,
        calls::write as Slot,
        calls::writev as Slot,
        calls::send as Slot,
        calls::sendto as Slot,
        calls::sendmsg as Slot,
        calls::fcntl as Slot,
        calls::ioctl as Slot,
        calls::close as Slot,
        calls::shutdown as Slot,
        calls::getsockopt as Slot,
        calls::setsockopt as Slot,
        calls::poll as Slot,
        netdev::netdev_send as Slot,
        netdev::netdev_receive as Slot,
        calls::usleep as Slot,
        calls::gettimeofday as Slot,
        calls::epoll_create as Slot,
        calls::epoll_ctl as Slot,
        calls::epoll_wait as Slot,
        calls::pipe as Slot,
        calls::splice as Slot,
    ]
}

/// Starts a run and fills packetdrill's table. It cannot report an error to packetdrill, so it
/// writes the error to standard error and ends the program.
#[unsafe(no_mangle)]
unsafe extern "C" fn packetdrill_interface_init(flags: *const c_char, interface: *mut Interface) {
    let flags = if flags.is_null() {
        "".into()
    } else {
        // SAFETY: packetdrill passes the string of --so_flags, which ends with a NUL.
        unsafe { CStr::from_ptr(flags) }.to_string_lossy()
    };
    let begun = std::panic::catch_unwind(|| instance::begin(&flags));
    let error = match begun {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some("the stack panicked; please report this".to_owned()),
    };
    if let Some(error) = error {
        eprintln!("fullsend: {error}");
        // SAFETY: ends the process without running exit handlers.
        unsafe { libc::_exit(1) };
    }
    let filled = Interface {
        // Unused, as there is only one stack.
        userdata: std::ptr::dangling_mut(),
        functions: functions(),
    };
    // SAFETY: packetdrill passes memory for the table.
    unsafe { interface.write(filled) };
}
