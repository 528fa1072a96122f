//! Measures TCP between a QEMU guest and the host's loopback through passt and gvproxy programs, in turns: the speed
//! in both directions, and the processor time of the program and of QEMU, which depends less on what else
//! the machine does.
//!
//! ```text
//! cargo run --release -p fullsend-cli --example vm_speed -- 1500 4 /usr/bin/passt target/release/passt \
//!     vhost:target/release/passt loopback
//! ```
//!
//! The arguments are the MTU, the number of rounds and the programs: `vhost:` selects vhost-user instead
//! of a stream of frames, `gvproxy:` a program with gvproxy's command line, and `loopback` is the guest's
//! own loopback. Needs iperf3 on the host.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a measurement in real time, for a terminal"
)]

use std::error::Error;
use std::fmt;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use fullsend_testvm::{GuestImage, VmBuilder};

const SECONDS: u32 = 4;

/// A process that ends with the value.
struct Process(Child);

impl Process {
    fn start(program: &str, arguments: &[&str]) -> Result<Self, Box<dyn Error>> {
        let mut command = Command::new(program);
        let command = command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        Ok(Self(command.spawn()?))
    }

    fn seconds(&self) -> Result<f64, Box<dyn Error>> {
        processor_time(self.0.id())
    }
}

/// Returns the processor time of a process and its threads, in seconds.
fn processor_time(process: u32) -> Result<f64, Box<dyn Error>> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    let ticks = fields.skip(11).take(2).map(str::parse::<f64>);
    Ok(ticks.sum::<Result<f64, _>>()? / 100.0)
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The network that carries the guest's packets.
enum Network<'a> {
    /// A passt with QEMU's frames on a stream.
    Stream(&'a str),
    /// A passt with vhost-user.
    VhostUser(&'a str),
    /// A gvproxy with QEMU's frames on a stream.
    Gvproxy(&'a str),
    /// The guest's loopback.
    Loopback,
}

impl<'a> Network<'a> {
    fn parse(argument: &'a str) -> Self {
        match argument.split_once(':') {
            Some(("vhost", program)) => Self::VhostUser(program),
            Some(("gvproxy", program)) => Self::Gvproxy(program),
            _ if argument == "loopback" => Self::Loopback,
            _ => Self::Stream(argument),
        }
    }

    /// Starts the program that listens at `socket`.
    fn start(&self, mtu: &str, socket: &Path) -> Result<Option<Process>, Box<dyn Error>> {
        let _ = fs::remove_file(socket);
        let path = socket.display().to_string();
        let common =
            format!("-f -q -s {path} -a 10.0.2.15 -n 255.255.255.0 -g 10.0.2.2 -4 -m {mtu}");
        let of_gvproxy = format!("-listen-qemu unix://{path} -mtu {mtu} -ssh-port 2299");
        let mut arguments: Vec<_> = common.split(' ').collect();
        let program = match self {
            Self::Loopback => return Ok(None),
            Self::Stream(program) => program,
            Self::VhostUser(program) => {
                arguments.push("--vhost-user");
                program
            }
            Self::Gvproxy(program) => {
                arguments = of_gvproxy.split(' ').collect();
                program
            }
        };
        let process = Process::start(program, &arguments)?;
        while !socket.exists() {
            sleep(Duration::from_millis(50));
        }
        Ok(Some(process))
    }

    /// Returns QEMU's arguments.
    fn card(&self, socket: &Path) -> String {
        let path = socket.display();
        match self {
            Self::Stream(_) | Self::Gvproxy(_) => format!(
                "-netdev stream,id=net0,server=off,addr.type=unix,addr.path={path} \
                 -device virtio-net-pci,netdev=net0"
            ),
            // QEMU 7.2 crashes with MSI-X if it emulates the processor.
            Self::VhostUser(_) => format!(
                "-chardev socket,id=c0,path={path} -netdev vhost-user,id=net0,chardev=c0 \
                 -device virtio-net-pci,netdev=net0,vectors=0"
            ),
            Self::Loopback => "-netdev user,id=net0 -device virtio-net-pci,netdev=net0".to_owned(),
        }
    }

    /// Returns the addresses of the guest, its router, and the host's loopback.
    fn addresses(&self) -> [&'static str; 3] {
        match self {
            Self::Loopback => ["10.0.2.15", "10.0.2.2", "127.0.0.1"],
            Self::Stream(_) | Self::VhostUser(_) => ["10.0.2.15", "10.0.2.2", "10.0.2.2"],
            Self::Gvproxy(_) => ["192.168.127.2", "192.168.127.1", "192.168.127.254"],
        }
    }
}

/// The result of one direction.
#[derive(Clone, Copy, Default)]
struct Speed {
    gbit_per_second: f64,
    /// Processor time of QEMU for each Gbit.
    vm_seconds_per_gbit: f64,
    /// Processor time of the program for each Gbit; `None` without a program.
    seconds_per_gbit: Option<f64>,
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of_program = self.seconds_per_gbit.unwrap_or_default();
        write!(
            f,
            "{:.2} ({of_program:.3} + {:.3})",
            self.gbit_per_second, self.vm_seconds_per_gbit
        )
    }
}

/// Measures from the guest to the host, and back.
fn run(network: &Network<'_>, mtu: &str, folder: &Path) -> Result<[Speed; 2], Box<dyn Error>> {
    let socket = folder.join("socket");
    let passt = network.start(mtu, &socket)?;
    let image = GuestImage::find()?;
    let [guest, router, server] = network.addresses();
    let script = format!(
        "ip link set eth0 mtu {mtu} up; ip addr add {guest}/24 dev eth0
         ip route add default via {router}
         iperf3 -s -D
         for way in '' -R; do
             echo @@ ready
             read -r line
             echo \"@@ bytes $(iperf3 -J -t {SECONDS} -O 1 $way -c {server} | grep -A6 sum_received |
                 sed -n 's/.*bits_per_second\":[^0-9]*\\([0-9.e+]*\\).*/\\1/p')\"
         done
         read -r line"
    );
    let mut vm = VmBuilder::new(&image)
        .qemu_args(network.card(&socket).split(' '))
        .program("/usr/bin/iperf3")?
        .script(&script)
        .boot()?;
    let seconds = || passt.as_ref().map(Process::seconds).transpose();
    let mut results = [Speed::default(); 2];
    for result in &mut results {
        vm.wait_for("@@ ready")?;
        let (before, vm_before) = (seconds()?, processor_time(vm.process_id())?);
        vm.send_line("go")?;
        let line = vm.wait_for("@@ bytes")?;
        let gbit = line.trim_start_matches("@@ bytes ").trim().parse::<f64>()? / 1e9;
        // The first second is not part of the speed.
        let transferred = gbit * f64::from(SECONDS + 1);
        let used = seconds()?.zip(before).map(|(after, before)| after - before);
        *result = Speed {
            gbit_per_second: gbit,
            vm_seconds_per_gbit: (processor_time(vm.process_id())? - vm_before) / transferred,
            seconds_per_gbit: used.map(|used| used / transferred),
        };
    }
    Ok(results)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [mtu, rounds, programs @ ..] = &arguments[..] else {
        return Err("usage: vm_speed MTU ROUNDS PROGRAM...".into());
    };
    let folder = std::env::temp_dir().join(format!("vm-speed-{}", std::process::id()));
    fs::create_dir(&folder)?;
    // Debian's passt becomes another user.
    fs::set_permissions(&folder, Permissions::from_mode(0o777))?;
    let _server = Process::start("iperf3", &["-s"])?;
    println!(
        "Gbit/s, and seconds of processor time of the program and of QEMU for each Gbit, at MTU {mtu}"
    );
    for _ in 0..rounds.parse()? {
        for program in programs {
            let [to_host, to_guest] = run(&Network::parse(program), mtu, &folder)?;
            println!("{program}: guest to host {to_host}, host to guest {to_guest}");
        }
    }
    fs::remove_dir_all(&folder)?;
    Ok(())
}
