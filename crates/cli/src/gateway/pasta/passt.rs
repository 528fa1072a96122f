//! `passt`: a network with the host's addresses for a virtual machine whose monitor connects to a socket,
//! with the interface that QEMU, libvirt and libkrun use.

use std::ffi::OsString;
use std::net::Ipv6Addr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use fullsend::VhostUser;
use fullsend::control::SocketFile;
use fullsend_device::{Device, FrameLink, Framing, PeerEvent};
use fullsend_gateway::namespace::{SocketRemover, SocketTables, inherited_fd};
use tokio::sync::Notify;

use super::auto::AutoForwards;
use super::forward_table::ForwardTable;
use super::network::Plan;
use super::options::{Options, Program};
use super::{Caller, Named, Prepared, builder, prepare, run};
use crate::gateway::json_socket;
use crate::gateway::memory;
use crate::gateway::policy;
use crate::gateway::service::{captured, relay, runtime};
use crate::gateway::udp_filter;

const USAGE: &str = "usage: passt [OPTION]...";
/// The capabilities of the vhost-user backend, as passt prints them.
pub(super) const CAPABILITIES: &str = "{\n  \"type\": \"net\"\n}";
/// The gateway's link-local address if the caller chooses its Ethernet address.
const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0x9855, 0x9aff, 0xfe55, 0x9a55);
/// Numbers in the names of the sockets that are tried without `--socket`.
const DEFAULT_SOCKETS: std::ops::Range<u32> = 1..100;

/// Runs the program with the arguments after its name.
pub(in crate::gateway) fn main(arguments: Vec<OsString>) -> ExitCode {
    run(Program::Passt, USAGE, arguments, |options| {
        serve(options)?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Serves virtual machines, in the background unless `--foreground` is given.
fn serve(options: &Options) -> Result<()> {
    let mut plan = Plan::of_virtual_machine(options)?;
    udp_filter::apply(None, &mut plan.config)?;
    memory::apply(options.memory, &mut plan.config)?;
    let policy = policy::apply(options.policy.as_deref(), &mut plan.config)?;
    let peer_ended = Arc::new(Notify::new());
    let guest = Guest::new(options, &plan, &peer_ended)?;
    let caller = Caller::start(options)?;
    let remover = guest
        .file
        .as_ref()
        .map(|file| SocketRemover::start(&[file]));
    let _remover = remover
        .transpose()
        .context("cannot start the process that removes the socket")?;
    let tables = [
        SocketTables::of_this_thread()?,
        SocketTables::of_this_thread()?,
    ];
    let Prepared {
        control,
        tools,
        opener,
    } = prepare(options, &plan, policy, (Named::create(options)?, None))?;
    runtime()?.block_on(async {
        let gateway = builder(&plan, guest.device, opener).build()?;
        // The forwards follow no port.
        let [of_guest, of_host] = tables;
        let auto = [
            AutoForwards::of_guest(of_guest, plan.guest),
            AutoForwards::of_host(of_host, plan.guest),
        ];
        let table = ForwardTable::new(&plan, gateway.handle(), auto);
        if let Some(socket) = control {
            tokio::spawn(socket.serve(table)?);
        }
        let _files = tools.serve(&gateway)?;
        caller.release()?;
        let one_off = options.one_off;
        relay(gateway, async {
            if !one_off {
                std::future::pending::<()>().await;
            }
            peer_ended.notified().await;
            Ok(())
        })
        .await
    })
}

/// The virtual machine's side.
struct Guest {
    device: Box<dyn Device>,
    /// The socket on which passt listens.
    file: Option<SocketFile>,
}

impl Guest {
    /// Opens the device. `ended` is notified when a virtual machine's connection ends.
    fn new(options: &Options, plan: &Plan, ended: &Arc<Notify>) -> Result<Self> {
        let ended = ended.clone();
        if options.vhost_user {
            return Self::vhost_user(options, plan, move || ended.notify_one());
        }
        let link = FrameLink::new(plan.config.mtu).context("cannot make the device")?;
        let mut link = link.on_peer(move |event| {
            if matches!(event, PeerEvent::Disconnected { .. }) {
                ended.notify_one();
            }
        });
        let mut file = None;
        match socket(options)? {
            Socket::Connected(socket) => link.attachment()?.attach(socket, Framing::Qemu)?,
            Socket::Listening(listener, listening_file) => {
                file = Some(listening_file);
                link.listen(listener.into(), Framing::Qemu)?;
            }
        }
        Ok(Self {
            device: captured(link, &plan.interface_name, options.pcap.as_deref())?,
            file,
        })
    }

    /// Opens the device of `--vhost-user`. `ended` is called when a monitor's connection ends.
    fn vhost_user(
        options: &Options,
        plan: &Plan,
        ended: impl FnMut() + Send + 'static,
    ) -> Result<Self> {
        let (device, file) = match socket(options)? {
            Socket::Connected(socket) => {
                let device = VhostUser::from_socket(socket);
                (device.outlive_connection(), None)
            }
            Socket::Listening(listener, file) => (VhostUser::from_listener(listener), Some(file)),
        };
        let device = device.mtu(plan.config.mtu).on_disconnect(ended);
        // Memory in a file is usual, and the monitor's fault must not end the process without a word.
        let device = device.handle_sigbus().open();
        let device = device.context("cannot make the vhost-user device")?;
        Ok(Self {
            device: captured(device, &plan.interface_name, options.pcap.as_deref())?,
            file,
        })
    }
}

/// The socket of the virtual machine's monitor.
enum Socket {
    Connected(OwnedFd),
    Listening(UnixListener, SocketFile),
}

/// Returns the socket of `--fd`, or a newly bound one.
fn socket(options: &Options) -> Result<Socket> {
    if let Some(fd) = options.fd {
        let socket = inherited_fd(fd).with_context(|| format!("cannot use --fd {fd}"))?;
        return Ok(Socket::Connected(socket));
    }
    let (listener, path) = bind(options)?;
    let file = SocketFile::of(&path).context("cannot use the socket")?;
    Ok(Socket::Listening(listener, file))
}

/// Binds the socket of `--socket`, or the first free one of passt's default names.
fn bind(options: &Options) -> Result<(UnixListener, PathBuf)> {
    let bind = |path: &Path| json_socket::bind(path, "virtual machine's");
    let (listener, path) = if let Some(path) = &options.socket {
        (bind(path)?, path.clone())
    } else {
        let paths = DEFAULT_SOCKETS.map(|n| PathBuf::from(format!("/tmp/passt_{n}.socket")));
        let mut bound = paths.map(|path| (bind(&path), path));
        let found = bound.find_map(|(listener, path)| Some((listener.ok()?, path)));
        found.context("cannot create a socket in /tmp; choose its path with --socket")?
    };
    if !options.quiet {
        errln!("UNIX domain socket bound at {}", path.display());
        errln!("start QEMU with: {}", qemu_arguments(options, &path));
    }
    Ok((listener, path))
}

/// Returns the QEMU arguments that use the socket.
fn qemu_arguments(options: &Options, path: &Path) -> String {
    let path = path.display();
    if options.vhost_user {
        return format!(
            "-object memory-backend-memfd,id=mem,size=SIZE,share=on -machine memory-backend=mem \
             -device virtio-net-pci,netdev=s -chardev socket,id=c,path={path} \
             -netdev vhost-user,id=s,chardev=c"
        );
    }
    format!(
        "-device virtio-net-pci,netdev=s -netdev \
         stream,id=s,server=off,addr.type=unix,addr.path={path}"
    )
}

impl Plan {
    /// Returns the plan for a virtual machine, which gets its addresses by DHCP, DHCPv6 and router
    /// advertisements.
    fn of_virtual_machine(options: &Options) -> Result<Self> {
        let mut plan = Self::new(options)?;
        let relays = options.dns_forward.is_empty() && options.dns.is_empty() && !options.no_dns;
        let config = &mut plan.config;
        if options.mac.is_some() {
            // libvirt passes the guest's own Ethernet address, from which the guest also derives its
            // link-local address.
            config.link_local = Some(LINK_LOCAL);
        }
        if relays {
            // At the gateway's address, DNS reaches the host's resolvers wherever they are.
            let is_local = |address: &Ipv6Addr| address.is_unicast_link_local();
            let has_v4 = config.ipv4.is_some();
            if let Some(v4) = &mut config.ipv4 {
                v4.dns = Some(v4.gateway);
            }
            if let Some(v6) = &mut config.ipv6
                && (!has_v4 || !is_local(&v6.gateway))
            {
                v6.dns = Some(v6.gateway);
            }
        }
        Ok(plan)
    }
}
