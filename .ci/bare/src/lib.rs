//! Nothing of its own: its build shows that the core needs no `std`.
#![no_std]

pub use {fullsend_posix as posix, fullsend_qdisc as qdisc, fullsend_stack as stack};
