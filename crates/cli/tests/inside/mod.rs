//! Commands of `gateway run` and `pasta` that attack their gateway, as root and as another user.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use super::pasta_net::Net;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_fullsend");
/// An ordinary user.
pub(crate) const USER: u32 = 65_534;
/// The users that run commands.
pub(crate) const USERS: [Option<u32>; 2] = [None, Some(USER)];
/// The options of pasta for a command in a network that does not depend on the host's.
pub(crate) const PASTA: &str =
    "pasta --config-net -4 -a 10.7.0.9/24 -g 10.7.0.1 -t none -u none -T none";

/// Returns a command of the program, as a user and in the test's folder, which becomes the user's.
pub(crate) fn program(net: &Net, user: Option<u32>, arguments: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .args(arguments.split(' '))
        .env("DIR", net.path("."))
        .env("HOME", net.path("."))
        .env_remove("XDG_CONFIG_HOME")
        .current_dir(net.path("."))
        .stdin(Stdio::null());
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    let owner = user.unwrap_or(0);
    chown(net.path("."), Some(owner), Some(owner)).unwrap();
    command
}

/// Runs a script of bash in a gateway's network.
pub(crate) fn run(net: &Net, user: Option<u32>, options: &str, script: &str) -> Output {
    let arguments = format!("gateway run{options} --");
    let mut command = program(net, user, &arguments);
    let output = command.args(["bash", "-c", script]).output();
    output.expect("the program starts")
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
