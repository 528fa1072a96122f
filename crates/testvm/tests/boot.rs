//! A guest boots, loads the driver of its card, and exchanges lines with the test.

use fullsend_testvm::{GuestImage, VmBuilder};

#[test]
fn a_guest_boots_with_a_network_card() {
    let image = match GuestImage::find() {
        Ok(image) => image,
        Err(missing) => return println!("skipped: {missing}"),
    };
    let mut vm = VmBuilder::new(&image)
        .qemu_args(["-netdev", "hubport,id=net0,hubid=0"])
        .qemu_args([
            "-device",
            "virtio-net-pci,netdev=net0,mac=52:54:00:12:34:56",
        ])
        .file("hello", "#!/bin/sh\necho hello from $0\n")
        .script("echo @@ card $(cat /sys/class/net/eth0/address)")
        .script("echo @@ $(/hello)")
        .script("read word; echo @@ got $word")
        .boot()
        .expect("QEMU starts");
    let expect = |line: Result<String, String>, expected: &str| match line {
        Ok(line) => assert_eq!(line, expected),
        Err(error) => panic!("{error}"),
    };
    expect(vm.wait_for("@@"), "@@ card 52:54:00:12:34:56");
    expect(vm.wait_for("@@"), "@@ hello from /hello");
    vm.send_line("this").expect("QEMU runs");
    expect(vm.wait_for("@@"), "@@ got this");
    // The guest turns itself off at the end of its script.
    assert!(vm.wait_for("@@").unwrap_err().contains("the guest ended"));
}
