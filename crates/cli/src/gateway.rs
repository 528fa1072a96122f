//! The gateway: its own command, and the programs that it stands in for.
//!
//! Callers run those programs by name: a link to this binary named `slirp4netns` acts as that program,
//! and so does `fullsend slirp4netns`.

pub(crate) mod fuzzing;
mod getopt;
mod gvproxy;
mod install;
mod json_socket;
mod memory;
mod pasta;
mod personality;
mod pesto;
mod policy;
mod run;
mod service;
mod slirp4netns;
mod tool_sockets;
mod udp_filter;
mod values;

pub(crate) use personality::Personality;
pub(crate) use run::GatewayArgs;

use std::process::ExitCode;

use anyhow::Result;

/// Runs `fullsend gateway`.
pub(crate) fn run(args: GatewayArgs) -> Result<ExitCode> {
    match args.command {
        run::GatewayCommand::Run(args) => run::run(&args),
        run::GatewayCommand::InstallLinks(args) => {
            install::install_links(&args)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
