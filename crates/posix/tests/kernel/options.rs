//! Scenarios of options and ioctls, by topic.

#[path = "options/ip.rs"]
pub(crate) mod ip;
#[path = "options/reports.rs"]
pub(crate) mod reports;
#[path = "options/sharing.rs"]
pub(crate) mod sharing;
#[path = "options/socket.rs"]
pub(crate) mod socket;
#[path = "options/tcp.rs"]
pub(crate) mod tcp;

use crate::backend::{Backend, Log, Ret};

const ZEROCOPY: i32 = 60;

fn try_int(b: &mut dyn Backend, log: &mut Log, fd: Ret, level: i32, name: i32, values: &[i32]) {
    log.note(
        &format!("{level} {name} default"),
        b.get_int(fd, level, name),
    );
    for &value in values {
        let set = b.set_int(fd, level, name, value);
        let got = b.get_int(fd, level, name);
        log.note(&format!("{level} {name} = {value}"), (set, got));
    }
}
