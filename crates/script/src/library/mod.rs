//! A library with packetdrill's interface as a script's target, driven like packetdrill does.
//!
//! Time is the library's `gettimeofday`, so that a library with virtual time takes no real time.
//! Between events the script sleeps in the library's `usleep`, packets are received from
//! `netdev_receive`, and a call for which the script gives an end runs on a second thread.
#![allow(unsafe_code, reason = "the functions of a C library")]

mod memory;
mod sockets;
mod table;
mod target;
mod thread;

use std::ffi::{CStr, CString};
use std::path::Path;

use fullsend_posix::Errno;
use libc::{epoll_event, pollfd};

use table::{Init, MaybeTable, Table};
pub(crate) use target::LibraryTarget;

/// A call, to be made on either thread.
type Job = Box<dyn FnOnce(&Table) -> CallOutput + Send>;

/// The result of a call.
#[derive(Default)]
struct CallOutput {
    value: isize,
    errno: i32,
    /// The library's time at which the call returned, in us.
    at_us: i64,
    data: Vec<Vec<u8>>,
    control: Vec<u8>,
    /// `msg_flags`.
    flags: i32,
    /// The peer's address.
    name: Vec<u8>,
    polled: Vec<pollfd>,
    events: Vec<epoll_event>,
}

impl CallOutput {
    /// Returns the result with errno, read before another call can set it.
    fn from_return(value: impl TryInto<isize>) -> Self {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
        Self {
            value: value.try_into().unwrap_or(-1),
            errno,
            ..Self::default()
        }
    }

    fn result(self) -> Result<Self, Errno> {
        if self.value < 0 {
            Err(Errno(self.errno))
        } else {
            Ok(self)
        }
    }
}

/// A loaded library with packetdrill's interface.
pub struct Library {
    init: Init,
    flags: Option<String>,
}

impl Library {
    /// Loads a library. `flags` is the value of `--so_flags`.
    ///
    /// Without `local=` in the flags, the script's settings are passed before them, and the
    /// script's commands are interpreted here and written to a settings file. With it, the shell
    /// runs the commands, as with packetdrill.
    ///
    /// # Errors
    /// Returns the loader's error, or that the library does not have the interface.
    pub fn open(path: &Path, flags: Option<&str>) -> Result<Self, String> {
        let shown = path.display();
        let name = CString::new(path.as_os_str().as_encoded_bytes())
            .map_err(|_| format!("the library's path {shown} contains a NUL byte"))?;
        let how = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE | libc::RTLD_DEEPBIND;
        // SAFETY: the library's constructors run; the user chose the library.
        let library = unsafe { libc::dlopen(name.as_ptr(), how) };
        if library.is_null() {
            // SAFETY: after a failure `dlerror` returns a C string.
            let why = unsafe { CStr::from_ptr(libc::dlerror()) };
            return Err(why.to_string_lossy().into_owned());
        }
        // SAFETY: the library is loaded, and the name is a C string.
        let init = unsafe { libc::dlsym(library, c"packetdrill_interface_init".as_ptr()) };
        if init.is_null() {
            return Err(format!(
                "{shown} does not export packetdrill_interface_init; name a library with \
                 packetdrill's interface"
            ));
        }
        // SAFETY: packetdrill's interface defines the type of the function of this name.
        let init = unsafe { std::mem::transmute::<*mut libc::c_void, Init>(init) };
        Ok(Self {
            init,
            flags: flags.map(str::to_owned),
        })
    }

    /// Starts a run. The library ends the process if it rejects the flags.
    fn begin(&self, flags: &str) -> Result<Table, String> {
        let flags = CString::new(flags).map_err(|_| "--so-flags contains a NUL byte".to_owned())?;
        let mut table: MaybeTable = [None; 33];
        // SAFETY: a C string, and a table of the interface's size.
        unsafe { (self.init)(flags.as_ptr(), &raw mut table) };
        Table::new(&table).map_err(|n| {
            format!("the library does not provide function {n} of packetdrill's interface")
        })
    }
}
