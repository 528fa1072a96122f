//! The entry point of the library for packetdrill: one function that fills a table of functions.

use std::ffi::{CStr, c_char, c_void};

use fullsend_blocking::c::c_calls;

use crate::{calls, instance};

/// A function of the table, whose type is given by its position.
type FunctionPointer = *const c_void;

/// `struct packetdrill_interface`: 33 pointers.
#[repr(C)]
pub(crate) struct PacketdrillInterface {
    userdata: *mut c_void,
    functions: [FunctionPointer; 32],
}

const _: () = assert!(size_of::<PacketdrillInterface>() == 33 * size_of::<usize>());

/// Lists the functions of a table of signatures.
macro_rules! list {
    ($($kind:ident $name:ident($($arguments:tt)*) -> $return:ty;)*) => {
        [$(calls::$name as FunctionPointer),*]
    };
}

/// Returns the functions in the order of packetdrill's table.
fn functions() -> [FunctionPointer; 32] {
    c_calls!(list)
}

/// Starts a run and fills packetdrill's table. It cannot report an error to packetdrill, so it
/// writes the error to standard error and ends the program.
#[unsafe(no_mangle)]
unsafe extern "C" fn packetdrill_interface_init(
    flags: *const c_char,
    interface: *mut PacketdrillInterface,
) {
    let flags = if flags.is_null() {
        "".into()
    } else {
        // SAFETY: packetdrill passes the string of --so_flags, which ends with a NUL.
        unsafe { CStr::from_ptr(flags) }.to_string_lossy()
    };
    let started = std::panic::catch_unwind(|| instance::start_run(&flags));
    let error = match started {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some("the stack panicked; please report this".to_owned()),
    };
    if let Some(error) = error {
        eprintln!("fullsend: {error}");
        // SAFETY: ends the process without running exit handlers.
        unsafe { libc::_exit(1) };
    }
    let filled = PacketdrillInterface {
        // Unused, as there is only one stack.
        userdata: std::ptr::dangling_mut(),
        functions: functions(),
    };
    // SAFETY: packetdrill passes memory for the table.
    unsafe { interface.write(filled) };
}
