//! `pasta`: a network for an existing network namespace, or for a command in a new one, with the host's
//! addresses, and with the interface that Podman and RootlessKit use. `passt`: such a network for a
//! virtual machine.

mod auto;
mod control;
mod forward_table;
mod network;
mod options;
pub(in crate::gateway) mod passt;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use anyhow::{Context, Result};
use fullsend_device::{Device, Tun};
use fullsend_gateway::namespace::{
    Background, FileOpener, FirstProcess, GuestSockets, Identity, InterfaceSetup, NamespaceEnd,
    Namespaces, NewNamespaces, Sandbox, SocketTables, Spawned, Tap, close_inherited, open_null,
    open_tap,
};
use fullsend_gateway::{Builder, Gateway};

use super::memory;
use super::policy::{self, PolicySource};
use super::service::{
    PidFile, captured, leave_terminal, relay, relay_command, resolv_conf_opener, runtime,
};
use super::tool_sockets::ToolSockets;
use super::udp_filter;
use crate::output::ErrorLine;
use auto::AutoForwards;
use control::ControlSocket;
use forward_table::ForwardTable;
use network::Plan;
use options::{Command, Destination, Options, Program};

pub(in crate::gateway) use control::INTERFACES;
pub(in crate::gateway) use options::parse_guest_ports;

const USAGE: &str = "usage: pasta [OPTION]... [COMMAND [ARG]... | PID | PATH | NAME]";
/// The version of pasta whose command line this program implements.
const VERSION: &str = "2026_07_16";

/// Runs the program with the arguments after its name.
pub(crate) fn main(arguments: Vec<OsString>) -> ExitCode {
    run(Program::Pasta, USAGE, arguments, serve)
}

/// Answers an informational request of pasta's or passt's arguments, or serves with `serve`.
fn run(
    program: Program,
    usage: &str,
    arguments: Vec<OsString>,
    serve: impl FnOnce(&Options) -> Result<ExitCode>,
) -> ExitCode {
    let name = program.name();
    let options = match options::parse(program, arguments) {
        Ok(Command::Help) => {
            outln!("{usage}\n{}", options::help(program));
            return ExitCode::SUCCESS;
        }
        Ok(Command::Version) => {
            outln!("{name} {VERSION} (fullsend {})", env!("CARGO_PKG_VERSION"));
            return ExitCode::SUCCESS;
        }
        Ok(Command::PrintCapabilities) => match program {
            Program::Passt => {
                outln!("{}", passt::CAPABILITIES);
                return ExitCode::SUCCESS;
            }
            Program::Pasta => return ExitCode::FAILURE,
        },
        Ok(Command::Serve(mut options)) => {
            set_user(program, &mut options);
            options
        }
        Err(error) => {
            errln!("{name}: {error:#}");
            errln!("{usage}");
            return ExitCode::FAILURE;
        }
    };
    serve(&options).unwrap_or_else(|error| {
        errln!("{name}: {}", ErrorLine(&error));
        ExitCode::FAILURE
    })
}

/// Sets and reports another user for a gateway that root has started without naming one.
fn set_user(program: Program, options: &mut Options) {
    if options.user.is_some() {
        return;
    }
    let name = program.name();
    let line = match Identity::instead_of_root() {
        Ok(None) => return,
        Ok(user) => {
            options.user = user;
            format!("{name}: Started as root, will change to nobody.")
        }
        Err(error) => format!("{name}: {error}; the gateway runs as root"),
    };
    if !options.quiet {
        errln!("{line}");
    }
}

/// The guest's side.
struct Guest {
    device: Box<dyn Device>,
    /// The sockets in the guest's namespace, if the gateway needs any.
    sockets: Option<GuestSockets>,
    /// The forwards that follow the listening ports of each side.
    auto: [AutoForwards; 2],
}

impl Guest {
    fn new(
        options: &Options,
        plan: &Plan,
        device: Box<dyn Device>,
        namespaces: &Namespaces,
    ) -> Result<Self> {
        // A later change of the forwards may need the sockets.
        let needs_sockets = plan.needs_guest_sockets() || options.conf_path.is_some();
        let sockets = needs_sockets
            .then(|| GuestSockets::with_user(namespaces, options.user))
            .transpose()?;
        for refused in sockets.iter().flat_map(GuestSockets::refused_restrictions) {
            tracing::warn!("{refused}; the gateway's process in the namespace runs without it");
        }
        let of_host = SocketTables::of_this_thread().context("cannot read the host's sockets")?;
        let of_guest = SocketTables::of(namespaces)?;
        Ok(Self {
            device,
            sockets,
            auto: [
                AutoForwards::of_guest(of_guest, plan.guest),
                AutoForwards::of_host(of_host, plan.guest),
            ],
        })
    }
}

fn serve(options: &Options) -> Result<ExitCode> {
    let mut plan = Plan::new(options)?;
    udp_filter::apply(None, &mut plan.config)?;
    memory::apply(options.memory, &mut plan.config)?;
    let policy = policy::apply(options.policy.as_deref(), &mut plan.config)?;
    let Some(destination) = &options.destination else {
        return Ok(ExitCode::FAILURE);
    };
    match destination {
        Destination::Command(command) => serve_command(options, (&plan, policy), command),
        Destination::Process(pid) => {
            let namespaces = match &options.userns {
                Some(user) => {
                    let net = format!("/proc/{pid}/ns/net");
                    Namespaces::at_path(net.as_ref(), Some(user))?
                }
                None => Namespaces::of_process(*pid)?,
            };
            let namespaces = entered(options, namespaces);
            let end = NamespaceEnd::of_process(*pid)?;
            serve_namespace(options, (&plan, policy), namespaces, end)
        }
        Destination::Path(path) => {
            let namespaces = Namespaces::at_path(path, options.userns.as_deref())?;
            let namespaces = entered(options, namespaces);
            let end = NamespaceEnd::of_path(path)?;
            serve_namespace(options, (&plan, policy), namespaces, end)
        }
    }
}

/// Returns the namespaces as the gateway enters them: with `--netns-only`, in the caller's user
/// namespace.
fn entered(options: &Options, namespaces: Namespaces) -> Namespaces {
    if options.netns_only {
        namespaces.without_user()
    } else {
        namespaces
    }
}

/// Serves an existing namespace, in the background unless `--foreground` is given.
fn serve_namespace(
    options: &Options,
    (plan, policy): (&Plan, Option<PolicySource>),
    namespaces: Namespaces,
    end: NamespaceEnd,
) -> Result<ExitCode> {
    let tap = open_tap(&namespaces, &plan.interface_name, Some(&plan.setup))?;
    warn_of_routes(options, &tap);
    let device = Tun::tap(&tap.name).mtu(plan.config.mtu).adopt(tap.file)?;
    let device = captured(device, &tap.name, options.pcap.as_deref())?;
    let guest = Guest::new(options, plan, device, &namespaces)?;
    // The descriptors are closed, so that the namespace's name can be unmounted while the gateway runs.
    drop(namespaces);
    let end = if options.no_netns_quit {
        NamespaceEnd::never()
    } else {
        end
    };
    let caller = Caller::start(options)?;
    let named = Named::create(options)?;
    let prepared = prepare(options, plan, policy, (named, None))?;
    runtime()?.block_on(async {
        let (gateway, tools) = start(plan, guest, prepared)?;
        let _files = tools.serve(&gateway)?;
        caller.release()?;
        relay(gateway, end.wait()).await
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Serves a command in new namespaces, and returns its exit status.
fn serve_command(
    options: &Options,
    (plan, policy): (&Plan, Option<PolicySource>),
    command: &[OsString],
) -> Result<ExitCode> {
    let command = match command {
        [] => vec![std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into())],
        command => command.to_vec(),
    };
    let named = Named::create(options)?;
    let spawned: Spawned = NewNamespaces {
        user: !options.netns_only,
        run_as: options.user,
        first: FirstProcess::Command,
        tap: plan.interface_name.clone(),
        setup: InterfaceSetup {
            loopback: true,
            ..plan.setup.clone()
        },
        resolv_conf: None,
        read_only: policy.as_ref().and_then(PolicySource::guard),
        protected: named
            .pid_file
            .iter()
            .filter_map(PidFile::protected)
            .collect(),
        hidden: options.conf_path.iter().cloned().collect(),
        command,
    }
    .make()?;
    warn_of_routes(options, &spawned.tap);
    let file = spawned.tap.file.try_clone().context("cannot use the TAP")?;
    let device = Tun::tap(&spawned.tap.name)
        .mtu(plan.config.mtu)
        .adopt(file)?;
    let device = captured(device, &spawned.tap.name, options.pcap.as_deref())?;
    let guest = Guest::new(options, plan, device, spawned.namespaces())?;
    leave_terminal()?;
    let prepared = prepare(options, plan, policy, (named, Some(&spawned)))?;
    runtime()?.block_on(async {
        let (gateway, tools) = start(plan, guest, prepared)?;
        let reloads = tools.has_policy();
        let _files = tools.serve(&gateway)?;
        relay_command(gateway, &spawned, reloads).await
    })
}

/// Builds the gateway, starts to follow the listening ports, and serves pesto if requested.
fn start(plan: &Plan, guest: Guest, prepared: Prepared) -> Result<(Gateway, ToolSockets)> {
    let Prepared {
        control,
        tools,
        opener,
    } = prepared;
    let mut builder = builder(plan, guest.device, opener);
    if let Some(sockets) = guest.sockets {
        builder = builder.guest_sockets(sockets);
    }
    let gateway = builder.build()?;
    let table = ForwardTable::new(plan, gateway.handle(), guest.auto);
    if control.is_some() || !plan.auto.is_empty() {
        tokio::spawn(table.clone().follow());
    }
    if let Some(socket) = control {
        tokio::spawn(socket.serve(table)?);
    }
    Ok((gateway, tools))
}

/// Returns the builder of a gateway for a guest's device.
fn builder(plan: &Plan, device: Box<dyn Device>, opener: Option<FileOpener>) -> Builder {
    let builder = Gateway::builder()
        .config(plan.config.clone())
        .device(device);
    match opener {
        Some(opener) => builder.resolv_conf_opener(opener),
        None => builder,
    }
}

/// The process that started this one. It waits until the gateway serves, or with `--foreground` for the
/// gateway's end.
struct Caller {
    background: Option<Background>,
    null: OwnedFd,
}

impl Caller {
    /// Continues in the background if the options request it.
    fn start(options: &Options) -> Result<Self> {
        let null = open_null()?;
        let background = if options.foreground {
            None
        } else {
            Some(Background::start()?)
        };
        Ok(Self { background, null })
    }

    /// Ends the caller's wait.
    fn release(self) -> Result<()> {
        if let Some(background) = self.background {
            background.release(&self.null)?;
        }
        Ok(())
    }
}

/// The files and sockets that are opened before the gateway is restricted.
struct Prepared {
    control: Option<ControlSocket>,
    tools: ToolSockets,
    opener: Option<FileOpener>,
}

/// The files and sockets of the gateway whose names a command may find.
struct Named<'a> {
    pid_file: Option<PidFile<'a>>,
    control: Option<ControlSocket>,
}

impl<'a> Named<'a> {
    /// Creates the PID file, and binds the socket of pesto.
    fn create(options: &'a Options) -> Result<Self> {
        let pid_file = options.pid_file.as_deref().map(PidFile::create);
        let control = options.conf_path.as_deref().map(ControlSocket::bind);
        Ok(Self {
            pid_file: pid_file.transpose()?,
            control: control.transpose()?,
        })
    }
}

/// Writes the PID file, binds the sockets of our own tools, and gives up what a running gateway does not need.
fn prepare(
    options: &Options,
    plan: &Plan,
    policy: Option<PolicySource>,
    (named, command): (Named<'_>, Option<&Spawned>),
) -> Result<Prepared> {
    if let Some(file) = named.pid_file {
        file.write()?;
    }
    let tools = ToolSockets::from_environment().with_policy(policy, command)?;
    let opener = resolv_conf_opener(&plan.config, options.user)?;
    close_inherited();
    restrict(options)?;
    Ok(Prepared {
        control: named.control,
        tools,
        opener,
    })
}

/// Gives up the access that a running gateway does not need.
fn restrict(options: &Options) -> Result<()> {
    if let Some(user) = options.user {
        user.assume()?;
    }
    for refused in Sandbox::default().apply_where_possible() {
        if !options.quiet {
            tracing::warn!("{refused}; the gateway runs without this restriction");
        }
    }
    Ok(())
}

/// Logs the routes of the host that the guest cannot have.
fn warn_of_routes(options: &Options, tap: &Tap) {
    if !options.quiet {
        for refused in &tap.refused {
            tracing::warn!("{refused}; the guest has no such route");
        }
    }
}

/// Parses a request of pesto, for the fuzz target.
pub fn parse_request(request: &[u8]) {
    control::parse_any(request);
}
