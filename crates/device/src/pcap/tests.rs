use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::process::Command;

use fullsend_offload::Link;

use super::{Capture, CapturedDevice};
use crate::test_packet;
use crate::{Device, PairConfig, pair};

/// A file that is deleted at the end of the test.
struct TempFile(std::path::PathBuf);

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn tshark_reads_the_capture() {
    if Command::new("tshark").arg("--version").output().is_err() {
        println!("skipped: needs tshark");
        return;
    }
    let name = format!("fullsend-pcap-{}.pcapng", std::process::id());
    let path = TempFile(std::env::temp_dir().join(name));
    let capture = Capture::new(File::create(&path.0).unwrap()).unwrap();
    let (a, b) = pair(PairConfig {
        queue: 2,
        ..PairConfig::default()
    });
    let clock = |start: u64| {
        let mut now = start;
        move || {
            now += 1_000_000_001;
            now
        }
    };
    let mut a = CapturedDevice::with_clock(
        a,
        capture.add_interface("left", Link::Ip).unwrap(),
        clock(0),
    );
    let mut b = CapturedDevice::with_clock(
        b,
        capture.add_interface("right", Link::Ip).unwrap(),
        clock(5),
    );

    let ends = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
    let mut batch: VecDeque<_> = [5, 300, 64_000]
        .map(|len| test_packet::udp(ends, (1000, 2000), &vec![1; len], 0))
        .into();
    let mut got = Vec::new();
    // The link holds two packets, so that the third is sent, and recorded, by the second call.
    a.transmit(&mut batch).unwrap();
    b.receive(&mut got, 10).unwrap();
    a.transmit(&mut batch).unwrap();
    b.receive(&mut got, 10).unwrap();
    assert_eq!(got.len(), 3);

    let fields = "frame.interface_name frame.time_epoch frame.packet_flags_direction \
                  frame.len ip.src udp.dstport udp.length";
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(&path.0).args(["-T", "fields"]);
    for field in fields.split_whitespace() {
        tshark.args(["-e", field]);
    }
    let out = tshark.output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().map(|l| l.split('\t').collect()).collect();
    let row = |n: usize, name: &str, direction: &str, len: usize| {
        assert_eq!(rows[n][0], name, "{text}");
        assert!(rows[n][2].ends_with(direction), "{text}");
        let lens = ((28 + len).to_string(), (8 + len).to_string());
        assert_eq!((rows[n][3], rows[n][6]), (&*lens.0, &*lens.1), "{text}");
        assert_eq!((rows[n][4], rows[n][5]), ("10.0.0.1", "2000"), "{text}");
    };
    assert_eq!(rows.len(), 6, "{text}");
    row(0, "left", "2", 5);
    row(1, "left", "2", 300);
    row(2, "right", "1", 5);
    row(3, "right", "1", 300);
    row(4, "left", "2", 64_000);
    row(5, "right", "1", 64_000);
    assert!(rows[0][1].contains("1.000000001"), "{text}");
    assert!(rows[3][1].contains("1.000000006"), "{text}");
    assert!(rows[4][1].contains("2.000000002"), "{text}");
}

#[test]
fn a_full_disk_stops_the_capture_but_not_the_traffic() {
    struct FullAfter(usize);
    impl io::Write for FullAfter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self
                .0
                .checked_sub(bytes.len())
                .ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let capture = Capture::new(FullAfter(100)).unwrap();
    let (a, mut b) = pair(PairConfig::default());
    let mut a = CapturedDevice::new(a, capture.add_interface("a", Link::Ip).unwrap());
    let ends = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
    let mut got = Vec::new();
    for _ in 0..3 {
        let packet = test_packet::udp(ends, (1, 2), b"hello", 0);
        a.transmit(&mut [packet].into()).unwrap();
        assert_eq!(b.receive(&mut got, 10).unwrap(), 1);
    }
}
