//! A library with packetdrill's interface as a script's target: played as packetdrill does it.
//!
//! Time is what the library's `gettimeofday` shows: one whose clock is virtual needs none.
//! Between events the script sleeps by the library's `usleep`, packets come out of
//! `netdev_receive`, and a call that the script gives an end is made on a second thread.
#![allow(unsafe_code, reason = "the functions of a C library")]

mod drill;
mod memory;
mod sockets;
mod table;
mod thread;

use std::ffi::{CStr, CString};
use std::path::Path;

use fullsend_posix::Errno;
use libc::{epoll_event, pollfd};

pub(crate) use drill::Drill;
use table::{Init, MaybeTable, Table};

/// A call to be made on whichever thread.
type Job = Box<dyn FnOnce(&Table) -> Done + Send>;

/// What came of it.
#[derive(Default)]
struct Done {
    value: isize,
    errno: i32,
    /// When it returned.
    at_us: i64,
    data: Vec<Vec<u8>>,
    control: Vec<u8>,
    /// `msg_flags`.
    flags: i32,
    /// The other end's address.
    name: Vec<u8>,
    polled: Vec<pollfd>,
    events: Vec<epoll_event>,
}

impl Done {
    /// Takes errno at once, before anything else can set it.
    fn of(value: impl TryInto<isize>) -> Self {
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

/// A library that was loaded, as packetdrill loads it.
pub struct Library {
    init: Init,
    flags: Option<String>,
}

impl Library {
    /// Loads it. `flags` is what `--so_flags` says; without any `local=` in it the script's own
    /// settings stand before it, and commands of the script are understood here and put into a
    /// settings file. With it they are run by the shell, as packetdrill does.
    ///
    /// # Errors
    /// What the loader says, or that it is no such library.
    pub fn open(path: &Path, flags: Option<&str>) -> Result<Self, String> {
        let shown = path.display();
        let name = CString::new(path.as_os_str().as_encoded_bytes())
            .map_err(|_| format!("{shown}: a NUL in its name"))?;
        let how = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE | libc::RTLD_DEEPBIND;
        // SAFETY: the library's constructors run; the user chose it.
        let library = unsafe { libc::dlopen(name.as_ptr(), how) };
        if library.is_null() {
            // SAFETY: after a failure it is a text of the loader's.
            let why = unsafe { CStr::from_ptr(libc::dlerror()) };
            return Err(why.to_string_lossy().into_owned());
        }
        // SAFETY: a library that is loaded, and a name.
        let init = unsafe { libc::dlsym(library, c"packetdrill_interface_init".as_ptr()) };
        if init.is_null() {
            return Err(format!("{shown} has no packetdrill_interface_init"));
        }
        // SAFETY: that is the type of the function of this name.
        let init = unsafe { std::mem::transmute::<*mut libc::c_void, Init>(init) };
        Ok(Self {
            init,
            flags: flags.map(str::to_owned),
        })
    }

    /// Begins a run. One that the library does not like ends the process.
    fn begin(&self, flags: &str) -> Result<Table, String> {
        let flags = CString::new(flags).map_err(|_| "--so-flags: a NUL in it".to_owned())?;
        let mut table: MaybeTable = [None; 33];
        // SAFETY: a text and room for the table.
        unsafe { (self.init)(flags.as_ptr(), &raw mut table) };
        Table::new(&table).map_err(|n| format!("the library has left out function {n}"))
    }
}
