//! `fullsend gateway install-links`: links with the names of the programs that this program stands in
//! for.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use super::Personality;

#[derive(Args)]
pub(crate) struct InstallArgs {
    /// Directory for the links; put it first in PATH.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Replace files that are not links to this program.
    #[arg(long)]
    force: bool,
}

/// Creates a link to this program for each personality.
pub(crate) fn install_links(args: &InstallArgs) -> Result<()> {
    let program = std::env::current_exe().context("cannot find this program's file")?;
    fs::create_dir_all(&args.directory)
        .with_context(|| format!("cannot create {}", args.directory.display()))?;
    for (_, name) in Personality::ALL {
        let link = args.directory.join(name);
        make_link(&program, &link, args.force)?;
        outln!("{} -> {}", link.display(), program.display());
    }
    Ok(())
}

fn make_link(program: &Path, link: &Path, force: bool) -> Result<()> {
    let context = || format!("cannot create the link {}", link.display());
    match symlink(program, link) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let is_ours = fs::canonicalize(link).is_ok_and(|path| path == *program);
            if !is_ours && !force {
                bail!(
                    "{} exists and is another program; remove it, choose another directory, or \
                     add --force",
                    link.display()
                );
            }
            fs::remove_file(link).with_context(context)?;
            symlink(program, link).with_context(context)
        }
        Err(error) => Err(error).with_context(context),
    }
}
