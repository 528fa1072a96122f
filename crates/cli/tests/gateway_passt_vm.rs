//! A Linux guest in QEMU with passt as its network. Needs root and QEMU.

mod passt_vm;
mod pasta_net;

use std::os::unix::net::UnixListener;

use fullsend_testvm::GuestImage;
use passt_vm::{FrameRelay, MessageRelay, assert_guest_is_served, boot, start_servers};
use pasta_net::with_net;

/// The memory of a guest of `VmBuilder`.
const MEMORY_MIB: u32 = 256;

#[test]
fn a_guest_has_addresses_names_data_pings_and_keeps_connections() {
    let image = match GuestImage::find() {
        Ok(image) => image,
        Err(missing) => return println!("skipped: {missing}"),
    };
    with_net(move |net| {
        let (passt_path, qemu_path) = (net.path("passt.socket"), net.path("qemu.socket"));
        let arguments = format!("-q -t 127.0.0.1/8080:80 -s {}", passt_path.display());
        let _passt = net.start("passt", &arguments);
        let relay = FrameRelay::start(UnixListener::bind(&qemu_path).unwrap(), passt_path);
        let signal = start_servers();
        let qemu_args = [
            "-netdev".to_owned(),
            format!(
                "stream,id=net0,server=off,addr.type=unix,addr.path={}",
                qemu_path.display()
            ),
            "-device".to_owned(),
            "virtio-net-pci,netdev=net0".to_owned(),
        ];
        let mut vm = boot(&image, &qemu_args);
        assert_guest_is_served(&mut vm, 65520, &signal, || relay.replace_connection());
    });
}

#[test]
fn a_guest_over_vhost_user_has_the_same_and_keeps_connections() {
    let image = match GuestImage::find() {
        Ok(image) => image,
        Err(missing) => return println!("skipped: {missing}"),
    };
    with_net(move |net| {
        let (passt_path, qemu_path) = (net.path("passt.socket"), net.path("qemu.socket"));
        let arguments = format!(
            "-q --vhost-user -m 1500 -t 127.0.0.1/8080:80 -s {}",
            passt_path.display()
        );
        let passt = net.start("passt", &arguments);
        let mut relay = MessageRelay::start(UnixListener::bind(&qemu_path).unwrap(), passt_path);
        let signal = start_servers();
        let qemu_args = [
            "-chardev".to_owned(),
            format!("socket,id=c0,path={},reconnect=1", qemu_path.display()),
            "-netdev".to_owned(),
            "vhost-user,id=net0,chardev=c0".to_owned(),
            "-device".to_owned(),
            // QEMU 7.2 crashes with MSI-X if it emulates the processor.
            "virtio-net-pci,netdev=net0,vectors=0".to_owned(),
            // Memory in a file on a disk, as huge pages have it in theirs.
            "-object".to_owned(),
            format!(
                "memory-backend-file,id=file,size={MEMORY_MIB}M,share=on,mem-path={}",
                net.path("memory").display()
            ),
            "-machine".to_owned(),
            "memory-backend=file".to_owned(),
        ];
        let mut vm = boot(&image, &qemu_args);
        relay.wait_for_connection();
        assert_guest_is_served(&mut vm, 1500, &signal, || relay.replace_connection());
        drop(vm);
        assert!(passt.is_running());
    });
}

#[test]
#[ignore = "runs in the guests of the other tests"]
fn the_dhcpv6_client_of_a_guest() {
    println!("@@ dhcpv6 {}", passt_vm::request_address().unwrap());
}
