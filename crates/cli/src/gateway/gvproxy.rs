//! `gvproxy`: the network of a virtual machine, configured over HTTP, with the interface that Podman's
//! machines, CRC and Lima use.

mod api;
mod exposures;
mod flags;
mod http;
mod links;
mod listen;
mod notifications;
mod options;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use fullsend::TcpListener;
use fullsend_gateway::Gateway;
use fullsend_gateway::namespace::{HostSockets, Sandbox, close_inherited};

use super::json_socket;
use super::memory;
use super::policy;
use super::service::{capture, relay, resolv_conf_opener, runtime};
use super::tool_sockets::ToolSockets;
use super::udp_filter;
use crate::output::ErrorLine;
use crate::private_file;
use api::Api;
use exposures::Client;
use links::{GuestEvents, GuestLinks, Links};
use listen::{ApiSocket, SocketPath};
use notifications::{Notification, Notifications};
use options::{Command, Options};

/// The port at the gateway's address at which the guest reaches the API.
const API_PORT: u16 = 80;
/// The exit status of Go's programs after a wrong command line.
const USAGE_ERROR: u8 = 2;

/// Runs the program with the arguments after its name.
pub(crate) fn main(arguments: Vec<OsString>) -> ExitCode {
    let options = match options::parse(arguments) {
        Ok(Command::Help) => {
            outln!("{}", options::usage());
            return ExitCode::SUCCESS;
        }
        Ok(Command::Version) => {
            let version = env!("CARGO_PKG_VERSION");
            outln!("gvproxy version v0.8 (fullsend {version})");
            return ExitCode::SUCCESS;
        }
        Ok(Command::Serve(options)) => options,
        Err(error) => {
            errln!("{error:#}");
            return ExitCode::from(USAGE_ERROR);
        }
    };
    match serve(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            errln!("gvproxy: {}", ErrorLine(&error));
            ExitCode::FAILURE
        }
    }
}

fn serve(options: &Options) -> Result<()> {
    if let Some(path) = &options.log_file {
        redirect_log(path)?;
    }
    let (notifications, sender) = Notifications::new(options.notification.clone());
    let api_sockets = options.listen.iter().map(ApiSocket::new);
    let api_sockets = api_sockets.collect::<Result<Vec<_>>>()?;
    let services = options.services.as_ref().map(ApiSocket::new).transpose()?;
    let links = Links::bind(options)?;
    let pid_file = options
        .pid_file
        .as_deref()
        .map(PidFile::write)
        .transpose()?;
    let mut config = options.config.clone();
    udp_filter::apply(None, &mut config)?;
    memory::apply(options.memory, &mut config)?;
    let policy = policy::apply(options.policy.as_deref(), &mut config)?;
    let tools = ToolSockets::from_environment().with_policy(policy, None)?;
    let of_api = api_sockets.iter().chain(&services);
    let files = of_api.filter_map(ApiSocket::file).chain(links.files());
    let files = (files.collect::<Vec<_>>(), pid_file.as_ref());
    let host_sockets = start_host_sockets(&notifications, files)?;
    let capture = capture("guest", options.pcap.as_deref())?;
    let opener = resolv_conf_opener(&config, None)?;
    close_inherited();
    restrict(&links);
    runtime()?.block_on(async {
        let sockets = host_sockets.started()?;
        let events = GuestEvents::new(sender.clone());
        let reported = events.clone();
        let mut builder = Gateway::builder()
            .config(config)
            .join_guests(true)
            .on_guest(move |event| reported.on_event(event));
        if let Some(opener) = opener {
            builder = builder.resolv_conf_opener(opener);
        }
        let gateway = builder.build()?;
        // A client at these addresses acts as the host, or becomes another guest.
        let api_addresses = api_sockets.iter().chain(&services);
        let api_addresses = api_addresses.filter_map(ApiSocket::address);
        for address in api_addresses.chain(links.addresses().iter().copied()) {
            gateway.handle().hide_from_guests(address);
        }
        let api = Api::new(gateway.handle(), sockets.clone());
        for entry in options.forwards() {
            let local = entry.local.clone();
            let exposed = api.exposures().expose(&entry, Client::Host).await;
            exposed.with_context(|| format!("cannot forward {local}; change -ssh-port"))?;
        }
        // The API forwards the host's ports to the guest, which a policy must not allow.
        if !tools.has_policy() {
            let at_gateway = (options.network.gateway, API_PORT);
            let listener = TcpListener::bind(gateway.handle().stack(), at_gateway)?;
            tokio::spawn(http::serve_guest(api.clone(), listener));
        }
        let guests = GuestLinks::new(gateway.handle(), options.config.mtu, capture);
        for listener in api_sockets {
            tokio::spawn(http::serve(
                api.clone(),
                listener.started()?,
                Some(guests.clone()),
            ));
        }
        if let Some(listener) = services {
            tokio::spawn(http::serve(api.clone(), listener.started()?, None));
        }
        let _link_files = links.start(&guests, &events)?;
        let _files = tools.serve(&gateway)?;
        tokio::spawn(notifications.send(sockets));
        sender.send(Notification::Ready);
        relay(gateway, async {
            events.ended().await;
            Ok(())
        })
        .await
    })
}

/// Starts the process that uses paths of the host, which the sandbox hides: requests create sockets, and
/// notifications connect to one, at paths that the caller chooses. The process removes the files of
/// `sockets` and `pid_file` at the end.
fn start_host_sockets(
    notifications: &Notifications,
    (sockets, pid_file): (Vec<&SocketPath>, Option<&PidFile>),
) -> Result<HostSockets> {
    let bind = |path: &Path| {
        let bound = json_socket::bind(path, "exposed");
        bound.map_err(|error| io::Error::other(format!("{error:#}")))
    };
    let started = HostSockets::start(notifications.socket(), bind, || {
        sockets.into_iter().for_each(SocketPath::remove);
        pid_file.into_iter().for_each(PidFile::remove);
    });
    started.context("cannot start the process that binds sockets")
}

/// Gives up the access that a running gateway does not need.
fn restrict(links: &Links) {
    let sandbox = Sandbox {
        // The kernel finds the sockets of vfkit's virtual machines by their paths.
        own_root: !links.has_datagrams(),
        ..Sandbox::default()
    };
    for refused in sandbox.apply_where_possible() {
        tracing::warn!("{refused}; the gateway runs without this restriction");
    }
}

/// Appends everything that this process writes to standard error to a file.
fn redirect_log(path: &Path) -> Result<()> {
    let file = private_file::append(path, "log file")?;
    rustix::stdio::dup2_stderr(&file).context("cannot write the log to a file")
}

/// A file with the number of this process, removed on drop unless another process has written its own
/// number.
struct PidFile {
    /// The absolute path: the process that removes the file has another current directory.
    path: PathBuf,
    text: String,
}

impl PidFile {
    fn write(path: &Path) -> Result<Self> {
        let text = std::process::id().to_string();
        let written = private_file::create(path, "PID file")?.write_all(text.as_bytes());
        written.with_context(|| format!("cannot write the PID file {}", path.display()))?;
        let path = std::path::absolute(path).context("the current directory has no path")?;
        Ok(Self { path, text })
    }

    fn remove(&self) {
        if fs::read_to_string(&self.path).is_ok_and(|text| text == self.text) {
            // Another program may have removed the file.
            let _: io::Result<()> = fs::remove_file(&self.path);
        }
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Parses bytes as each part of a request that gvproxy's API parses itself, for the fuzz target.
pub fn parse_requests(bytes: &[u8]) {
    api::parse_any(bytes);
    exposures::parse_any(bytes);
    http::parse_any(bytes);
}
