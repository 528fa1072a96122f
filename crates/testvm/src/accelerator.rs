//! The choice between KVM and emulation.

use std::env;
use std::fs::OpenOptions;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use crate::console::Console;

/// Everything that the processor has, except a register (`IA32_ARCH_CAPABILITIES`) and an instruction
/// that KVM within a virtual machine may not support.
const KVM: [&str; 4] = [
    "-accel",
    "kvm",
    "-cpu",
    "max,arch-capabilities=off,cx16=off",
];
/// QEMU emulates `rep movsb`, with which a kernel copies where it is fast, byte by byte: without these
/// features, TCP in a guest is five to nine times as fast.
const EMULATION: [&str; 4] = ["-accel", "tcg", "-cpu", "max,erms=off,fsrm=off"];

/// A kernel whose first line takes longer runs faster in emulation: KVM within some virtual machines is
/// that slow.
const PROBE: Duration = Duration::from_secs(5);

/// Returns QEMU's arguments. The first call boots `kernel` to test KVM.
pub(crate) fn arguments(kernel: &Path) -> [&'static str; 4] {
    static CHOICE: OnceLock<[&str; 4]> = OnceLock::new();
    *CHOICE.get_or_init(|| {
        let kvm = match env::var("FULLSEND_TESTVM_ACCEL").as_deref() {
            Ok("kvm") => true,
            Ok("tcg") => false,
            _ => is_kvm_usable(kernel),
        };
        if kvm { KVM } else { EMULATION }
    })
}

fn is_kvm_usable(kernel: &Path) -> bool {
    let device = OpenOptions::new().read(true).write(true).open("/dev/kvm");
    if device.is_err() {
        return false;
    }
    let guest = Command::new("qemu-system-x86_64")
        .args(["-nodefaults", "-no-user-config", "-display", "none"])
        .args(["-no-reboot", "-serial", "stdio", "-m", "128M"])
        .args(KVM)
        .arg("-kernel")
        .arg(kernel)
        .args(["-append", "earlyprintk=ttyS0 console=ttyS0"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut guest) = guest else {
        return false;
    };
    let console = guest.stdout.take().map(Console::read).unwrap_or_default();
    let started = console.wait_for("Linux version", 0, PROBE).is_ok();
    // An error means that it has already ended.
    let _ = guest.kill();
    let _ = guest.wait();
    started
}
