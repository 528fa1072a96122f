//! Linux guests in QEMU, for tests of devices and gateways that serve a virtual machine.
//!
//! A guest is Debian's cloud kernel with an initramfs that this crate builds in memory: a static
//! busybox, the modules of virtio-net, and a shell script of the test. The script writes to the serial
//! console, and the test waits for its lines. With a usable `/dev/kvm` a guest boots in about a second;
//! without it QEMU emulates the processor, and a guest boots in about six. `FULLSEND_TESTVM_ACCEL` (`kvm`
//! or `tcg`) overrides the choice.
//!
//! ```no_run
//! use fullsend_testvm::{GuestImage, VmBuilder};
//!
//! let image = match GuestImage::find() {
//!     Ok(image) => image,
//!     Err(missing) => return println!("skipped: {missing}"),
//! };
//! let mut vm = VmBuilder::new(&image)
//!     .qemu_args(["-netdev", "user,id=net0", "-device", "virtio-net-pci,netdev=net0"])
//!     .script("ip link set eth0 up\necho @@ link is up\n")
//!     .boot()
//!     .unwrap();
//! assert_eq!(vm.wait_for("@@ link").unwrap(), "@@ link is up");
//! ```
//!
//! It needs the packages `qemu-system-x86`, `linux-image-cloud-amd64` and `busybox-static` of Debian.
#![forbid(unsafe_code)]

mod accelerator;
mod console;
mod cpio;
mod image;
mod vm;

pub use image::{GuestImage, Missing};
pub use vm::{Vm, VmBuilder};
